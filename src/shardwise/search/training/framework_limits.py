"""What training frameworks run: schedules, context parallelism, remat, and combinations of axes.

As their documentation and sources had it in 2026-11. A search for a framework leaves out layouts
beyond its limits, unless any layout is wanted (`Fixed.any_layout`); `frameworks` exports none of
them. A framework that is not named runs all: so does the trainer of this package, except for what
`runtime_limits` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shardwise.arrays import Num
from shardwise.hardware import Chip
from shardwise.models import ModelConfig, Moe, stack
from shardwise.strategy.layout import Form, Layout, Layouts
from shardwise.strategy.stages import stages
from shardwise.vocabulary import CONTEXT_KINDS, REMAT_POLICIES
from shardwise.workload import state_dtypes

SCHEDULES = {
    "megatron": ("1f1b", "interleaved"),
    "nemo": ("1f1b", "interleaved"),
    "torchtitan": ("gpipe", "1f1b", "interleaved", "zb-v"),
    "maxtext": ("gpipe", "interleaved"),
    "nanotron": ("gpipe", "1f1b"),
    "deepspeed": ("1f1b",),
    "megatron-deepspeed": ("gpipe", "1f1b"),
    "llm-foundry": (),
    "automodel": ("gpipe", "1f1b", "interleaved"),
    "hai-llm": ("1f1b", "dualpipe"),
}
CONTEXT = {
    "megatron": CONTEXT_KINDS,
    "nemo": CONTEXT_KINDS,
    "torchtitan": ("gather",),
    "maxtext": CONTEXT_KINDS,
    "nanotron": (),
    "deepspeed": ("ulysses",),
    "megatron-deepspeed": (),
    "llm-foundry": (),
    "automodel": ("gather", "ring"),
    "hai-llm": (),
}
REMAT = {  # those that the framework has no name for are exported as the nearest that it has
    "megatron": ("none", "norms", "mlp", "full"),
    "nemo": ("none", "norms", "mlp", "full"),
    "torchtitan": ("none", "dots", "full"),
    "maxtext": ("dots", "mlp", "full"),
}
_REMAT_OF_EXPERTS = {  # Megatron Core recomputes the activation function of experts alone
    "megatron": tuple(REMAT_POLICIES),
    "nemo": tuple(REMAT_POLICIES),
}
MOST_LESS = 2  # layers that the first and the last stage of torchtitan together have less


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkLimit:
    """Something of a layout that a framework does not run.

    Args:
        asked: the part of the layout: a format of `layout` and `model`.
        has: what the framework has in its place.
    """

    asked: str
    has: str


Rule = tuple[FrameworkLimit, Num]  # a limit, and whether a layout, or each of many, is within it
Rules = Callable[[ModelConfig, Chip, Layout | Layouts], Iterator[Rule]]


def state_of(framework: str, compute: str) -> dict[str, str | None]:
    """The dtypes of a framework's training state by default, by the names of `Train`.

    MaxText keeps fp32 weights; DeepSpeed sums gradients in the dtype of the weights.
    """
    dtypes = state_dtypes("fp32" if framework == "maxtext" else "", compute)
    if framework == "deepspeed":
        dtypes["gradients"] = dtypes["weights"]
    return dtypes


def is_known(framework: str) -> bool:
    """Whether a framework is named, of which it is known what it runs: not "" and "unknown"."""
    return framework in SCHEDULES


def runs_form(framework: str, form: Form, *, context_parallel: bool) -> bool:
    """Whether a framework runs the words of a form, but for remat; one without a name runs all.

    Args:
        context_parallel: whether sequences are sharded over `context`.
    """
    if framework not in SCHEDULES:
        return True
    if form.is_pipelined and form.schedule not in SCHEDULES[framework]:
        return False
    return not (context_parallel and form.context_kind not in CONTEXT[framework])


def remat_policies(framework: str, model: ModelConfig) -> tuple[str, ...]:
    """The remat policies that a framework has names for; one without a name has all."""
    policies = REMAT.get(framework, tuple(REMAT_POLICIES))
    if model.is_moe:
        policies = _REMAT_OF_EXPERTS.get(framework, policies)
    return policies


def limit_of(
    framework: str, model: ModelConfig, chip: Chip, layout: Layout
) -> FrameworkLimit | None:
    """The first limit of a framework that a layout is beyond, with its numbers; None within all."""
    for limit, supported in _rules(framework, model, chip, layout):
        if not supported:
            asked = limit.asked.format(layout=layout, model=model)
            return FrameworkLimit(asked=asked, has=limit.has)
    return None


def is_run(framework: str, model: ModelConfig, chip: Chip, layouts: Layouts) -> Num:
    """Whether a framework runs each of the layouts."""
    runs: Num = (layouts.sizes["pipe"] > 0) & _has_its_zero(framework, layouts)
    for _, supported in _rules(framework, model, chip, layouts):
        runs = runs & supported
    return runs


def _has_its_zero(framework: str, layouts: Layouts) -> Num:
    """Whether the ZeRO stage of layouts with whole weights is that of the framework.

    Export writes the framework's only one for both stages. torchtitan scatters the gradients of a
    pipeline once a step, MaxText sums whole gradients of several microbatches.
    """
    if layouts.zero not in (1, 2) or framework not in ("torchtitan", "maxtext"):
        return True
    is_summed: Num = layouts.is_pipelined
    if framework == "maxtext":
        is_summed = is_summed | (layouts.n_microbatches > 1)
    return is_summed == (layouts.zero == 1)


def _rules(
    framework: str, model: ModelConfig, chip: Chip, layout: Layout | Layouts
) -> Iterator[Rule]:
    """Every limit of a framework: of schedules, of context parallelism, and its own."""
    if framework not in SCHEDULES:
        return
    schedules = SCHEDULES[framework]
    if layout.is_pipelined:
        yield (
            FrameworkLimit(
                asked='pipeline schedule "{layout.schedule}"',
                has=f"it has {', '.join(schedules) or 'no pipeline'}",
            ),
            layout.schedule in schedules,
        )
    if framework != "torchtitan":  # it has no option, and export says that it chooses its own
        yield (
            FrameworkLimit(
                asked="context {layout.mesh.context} by {layout.context_kind}",
                has=f"it has {', '.join(CONTEXT[framework]) or 'no context parallelism'}",
            ),
            (layout.sizes["context"] == 1) | (layout.context_kind in CONTEXT[framework]),
        )
    if framework in _OWN_RULES:
        yield from _OWN_RULES[framework](model, chip, layout)


def _deepspeed(model: ModelConfig, chip: Chip, layout: Layout | Layouts) -> Iterator[Rule]:
    sizes = layout.sizes
    yield (
        FrameworkLimit(
            asked="ZeRO-{layout.zero} with pipe {layout.mesh.pipe}",
            has="its pipeline runs with ZeRO-1 at most",
        ),
        (sizes["pipe"] == 1) | (layout.zero <= 1),
    )
    yield (
        FrameworkLimit(
            asked="expert {layout.mesh.expert} with tensor {layout.mesh.tensor}",
            has="its automatic expert parallelism shares experts among data ranks only",
        ),
        (sizes["expert"] == 1) | (sizes["tensor"] == 1),
    )
    yield (
        FrameworkLimit(
            asked="context {layout.mesh.context} with tensor {layout.mesh.tensor}",
            has="its tensor parallelism has no sequence parallelism by Ulysses beside it",
        ),
        (sizes["context"] == 1) | (sizes["tensor"] == 1),
    )
    yield (
        FrameworkLimit(
            asked="data {layout.mesh.data} with tensor {layout.mesh.tensor} under ZeRO-3",
            has="its groups with a copy of the weights (ZeRO++) are of neighbouring ranks, which "
            "hold other shards of tensor",
        ),
        (layout.zero < 3) | (sizes["data"] == 1) | (sizes["tensor"] == 1),
    )
    for role in ("data", "context"):
        yield (
            FrameworkLimit(
                asked=f"expert {{layout.mesh.expert}} with {role} {{layout.mesh.{role}}} under "
                "ZeRO-3",
                has="its ZeRO-3 shards experts over all ranks of fsdp and expert",
            ),
            (layout.zero < 3) | (sizes["expert"] == 1) | (sizes[role] == 1),
        )


def _maxtext(model: ModelConfig, chip: Chip, layout: Layout | Layouts) -> Iterator[Rule]:
    sizes = layout.sizes
    yield from _windows(model, layout, "its ring has a causal mask alone, and gather has windows")
    if chip.kind == "gpu":
        yield (
            FrameworkLimit(asked='context "ulysses" on GPUs', has="it has Ulysses on TPUs only"),
            (sizes["context"] == 1) | (layout.context_kind != "ulysses"),
        )
    n_layers = model.n_layers
    if model.is_moe:  # dense layers before those with experts are outside of the pipeline
        n_layers = sum(g.count for g in model.groups if isinstance(g.layer.ffn, Moe))
    if len(stack(model)[-1].kinds) > 1:
        yield (
            FrameworkLimit(
                asked="pipe {layout.mesh.pipe} of layers that alternate",
                has="its stages repeat one layer, or one whole period in the place of each layer",
            ),
            sizes["pipe"] == 1,
        )
    yield (
        FrameworkLimit(
            asked=f"pipe {{layout.mesh.pipe}} x {{layout.virtual}} chunks for {n_layers} layers",
            has="the stages of its pipeline have equal numbers of layers",
        ),
        (sizes["pipe"] == 1) | (n_layers % (sizes["pipe"] * layout.virtual) == 0),
    )
    yield (
        FrameworkLimit(
            asked="expert_tensor 1 with tensor {layout.mesh.tensor}",
            has="its experts are sharded over tensor as dense layers are",
        ),
        (sizes["tensor"] == 1) | (layout.expert_tensor != 1),
    )


def _torchtitan(model: ModelConfig, chip: Chip, layout: Layout | Layouts) -> Iterator[Rule]:
    sizes = layout.sizes
    yield (
        FrameworkLimit(
            asked="pipe {layout.mesh.pipe} with {layout.virtual} chunks of {model.n_layers} layers",
            has="its chunks have equal numbers of layers, but for one less beside the embedding "
            "and beside the head",
        ),
        (layout.virtual == 1) | (stages(model.n_layers, layout).spare <= MOST_LESS),
    )
    yield (
        FrameworkLimit(
            asked="expert {layout.mesh.expert} with experts sharded over tensor "
            "{layout.mesh.tensor}",
            has="under expert parallelism a rank has whole experts",
        ),
        (sizes["expert"] == 1) | (sizes["tensor"] == 1) | (layout.expert_tensor == 1),
    )


def _megatron(model: ModelConfig, chip: Chip, layout: Layout | Layouts) -> Iterator[Rule]:
    has = "Transformer Engine has no windows in a ring, but in gather and ulysses"
    yield from _windows(model, layout, has)


def _windows(model: ModelConfig, layout: Layout | Layouts, has: str) -> Iterator[Rule]:
    """The rule of a framework whose ring has no windows."""
    if layout.context_kind == "ring" and any(a.window for a, _ in model.attentions):
        asked = "context {layout.mesh.context} by ring with windows of attention"
        yield FrameworkLimit(asked=asked, has=has), layout.sizes["context"] == 1


_OWN_RULES: dict[str, Rules] = {
    "megatron": _megatron,
    "nemo": _megatron,
    "deepspeed": _deepspeed,
    "maxtext": _maxtext,
    "torchtitan": _torchtitan,
}
