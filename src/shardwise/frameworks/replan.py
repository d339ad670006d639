"""A plan of a launch configuration: its layout, kept by the usual search."""

from __future__ import annotations

import math

from shardwise.errors import BadFile, BadInput, DoesNotFit
from shardwise.estimate.serving.overhead import UNKNOWN, engine_overhead
from shardwise.estimate.training.framework_profiles import ON_TPU
from shardwise.frameworks import registry
from shardwise.frameworks.chip_devices import engine_on_chips, on_chips
from shardwise.frameworks.launch import ServingLaunch, TrainingLaunch
from shardwise.frameworks.slices import over_slices
from shardwise.hardware import Chip, System, chip_of
from shardwise.models import ModelConfig
from shardwise.plan.machine import system_of
from shardwise.plan.schema.architecture import model_of
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.schema.training import Plan
from shardwise.plan.serving import build as serving_build
from shardwise.plan.serving.time_parts import usual_cache, usual_compute
from shardwise.plan.training import build as training_build
from shardwise.search.serving.engine_limits import ranks_of_a_head
from shardwise.search.serving.runtime_limits import min_kv_heads
from shardwise.vocabulary import FRAMEWORK_ALIASES, FRAMEWORKS, NO_KERNELS
from shardwise.workload import Serve, Train, state_dtypes

# Framework of a file -> the engine at whose overhead it is planned.
_ENGINES = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm"}


def training_plan(
    launch: TrainingLaunch,
    model: ModelConfig,
    system: System,
    batch: tuple[int, int] | None = None,
) -> Plan:
    """Plan a training run with the layout of a file; what the file leaves open is searched.

    Args:
        batch: sequences and their length, in the place of the file's.

    Raises:
        BadInput: the batch is known neither from the file nor from `batch`, or the machine has
            another number of chips than the file.
        NotDivisible, NoStrategy, DoesNotFit: the layout is not legal, or does not fit.
    """
    n_layers = sum(group.count for group in model.groups)
    _check_model(launch, model, n_layers)
    launch.check_chips()
    launch = on_chips(over_slices(launch.on(model, system.chip), system), system)
    n_sequences, length = batch or (_batch(launch, system), launch.seq)
    if not n_sequences or not length:
        missing = "batch and sequence length" if not n_sequences else "sequence length"
        raise BadInput(
            f"the file does not say the {missing} of a step. Add --batch SEQUENCESxLENGTH, as "
            f"--batch {n_sequences or 1024}x4096."
        )
    if launch.n_chips and launch.n_chips != system.n_chips:
        raise BadInput(
            f"the file is for {launch.n_chips:,} chips, {system.name} has {system.n_chips:,}. "
            f"Name a machine of {launch.n_chips:,} chips."
        )
    mesh = launch.mesh(system.n_chips)
    choices = launch.choices(mesh, n_layers, has_experts=model.is_moe)
    own = _batch(launch, system)
    if batch and own and batch[0] != own:  # another has other microbatches
        choices.pop("n_microbatches", None)
    compute = launch.compute or "bf16"
    job = Train(
        batch=n_sequences,
        seq=length,
        compute=compute,
        optimizer=launch.optimizer or "adamw",
        offload=launch.offload,
        overlap=launch.overlap,
        kernels=(launch.kernels or (NO_KERNELS,)) if system.chip.kind == "gpu" else (),
        mtp_layers=launch.mtp_layers,
        framework=_framework(launch, system.chip),
        **{**state_dtypes(launch.precision or "", compute), **launch.dtypes},  # type: ignore[arg-type]
    )
    return training_build.plan(model, system, job, choices, any_layout=True)


def _framework(launch: TrainingLaunch, chip: Chip) -> str:
    """The framework at whose rates a file is planned; empty for that of the chip by default."""
    name = FRAMEWORK_ALIASES.get(launch.framework, launch.framework)
    runs = name in FRAMEWORKS and (chip.kind == "gpu" or name in ON_TPU)
    return name if runs else ""


def _check_model(launch: TrainingLaunch, model: ModelConfig, n_layers: int) -> None:
    """Compare the numbers of layers and experts of a file with the model's.

    Raises:
        BadInput: they differ; the model with the file's numbers is named.
    """
    n_experts = model.moe.n_experts if model.moe else 0
    pairs = {
        "n_layers": ("layers", launch.n_layers, n_layers),
        "n_experts": ("experts", launch.n_experts, n_experts),
    }
    differing = {name: pair for name, pair in pairs.items() if pair[1] and pair[1] != pair[2]}
    if not differing:
        return
    of_file = " and ".join(f"{count} {noun}" for noun, count, _ in differing.values())
    of_model = " and ".join(str(count) for *_, count in differing.values())
    changes = "".join(f",{name}={pair[1]}" for name, pair in differing.items())
    option = f", or {model.name}{changes}" if n_experts or not launch.n_experts else ""
    raise BadInput(
        f"the file is for a model of {of_file}, {model.name} has {of_model}. Name the model of the "
        f"file{option}."
    )


def _batch(launch: TrainingLaunch, system: System) -> int | None:
    """Sequences of a step: those that the file gives, or those of a chip times the chips."""
    if launch.batch is None and launch.batch_per_chip is not None:
        return round(launch.batch_per_chip * system.n_chips)
    return launch.batch


def memory_problem(plan: Plan, exported: str, framework: str) -> str:
    """Why a plan's layout does not fit as a framework runs it; empty if it fits.

    A framework may keep the training state in other dtypes, or recompute less.

    Args:
        exported: the launch configuration that was written of the plan.
    """
    try:
        launch = registry.read(exported, "the configuration", framework).launch
    except BadFile:  # one that starts `shardwise train`, with the plan itself
        return ""
    if not isinstance(launch, TrainingLaunch):
        return ""
    model = model_of(plan.model.architecture)
    try:
        training_plan(launch, model, system_of(plan.hardware), (plan.job.batch, plan.job.seq))
    except DoesNotFit as error:
        return error.problems[0]
    return ""


def serving_plan(
    launch: ServingLaunch,
    model: ModelConfig,
    machine: System | Chip,
    context: int | None = None,
    batch: int | None = None,
    dtype: str | None = None,
) -> ServingPlan:
    """Plan a deployment of the engine in a file.

    The file's number of sequences, or the engine's default, is the most that it runs at a time. If
    fewer fit at their full length, the plan has as many as fit: an engine starts, and lets the
    others wait.

    Args:
        context, batch, dtype: in the place of the file's; `dtype` is that of the weights.

    Raises:
        BadInput: the context is not known.
        NoStrategy, DoesNotFit: the engine is not legal, or does not fit.
    """
    launch = engine_on_chips(launch.on(model, context), chip_of(machine))
    tokens = launch.context
    if not tokens:
        raise BadInput(
            f"neither the file nor {model.name} says the longest sequence. Add --context N."
        )
    _check_cache_ranks(launch, model)
    if isinstance(machine, System):
        _check_replicas(launch, machine)
        mesh = launch.mesh(machine.n_chips)
    else:
        mesh = launch.mesh(math.prod(launch.sizes.values()))  # one engine
    weights = dtype or launch.weights or model.checkpoint_dtype
    chip = chip_of(machine)

    def planned(sequences: int | None) -> ServingPlan:
        job = Serve(
            context=tokens,
            batch=sequences * mesh.data if sequences else None,  # those of all engines
            weights=weights,
            kv=launch.kv or usual_cache(weights, chip),
            compute=usual_compute(weights, chip),
            drafted=launch.drafted,
            engine=_engine(launch, chip),
        )
        return serving_build.plan(
            model, machine, job, launch.choices(mesh, has_experts=model.is_moe)
        )

    try:
        plan = planned(batch or launch.batch)
    except DoesNotFit:
        if batch or not launch.batch:
            raise
        return planned(planned(None).estimate.decode.max_batch)
    default = None if batch or launch.batch else default_batch(launch, machine)
    if default and plan.estimate.decode.batch > default:
        return planned(default)
    return plan


def _engine(launch: ServingLaunch, chip: Chip) -> str:
    """The engine at whose overhead a file is planned."""
    name = _ENGINES.get(launch.framework, UNKNOWN.name)
    return name if engine_overhead(name).runs_on(chip) else UNKNOWN.name


def default_batch(launch: ServingLaunch, machine: System | Chip) -> int | None:
    """Sequences that an engine runs at a time if its file does not say."""
    return launch.default_batch(chip_of(machine)) if launch.default_batch else None


def _check_replicas(launch: ServingLaunch, system: System) -> None:
    """Refuse a machine that is too small for the engines that a file starts."""
    per_engine = math.prod(launch.sizes.values())
    n_engines = launch.n_engines
    n_chips = n_engines * per_engine
    if n_engines > 1 and n_chips > system.n_chips:
        way = " by data parallelism" if launch.copies == 1 else ""
        raise BadInput(
            f"the file starts {n_engines} engines of {per_engine} chips{way}, {n_chips:,} chips; "
            f"{system.name} has {system.n_chips:,}. Name a machine of {n_chips:,} chips, or write "
            f"{system.n_chips // per_engine or 1} engines."
        )


def _check_cache_ranks(launch: ServingLaunch, model: ModelConfig) -> None:
    """Refuse a cache shared by other ranks than those that have the same KV head."""
    tensor = launch.sizes["tensor"]
    ranks = ranks_of_a_head(model, tensor)
    if launch.cache_ranks not in (1, ranks):
        heads = min_kv_heads(model)
        raise BadInput(
            f"the file splits the cache over {launch.cache_ranks} ranks of decode context "
            f"parallelism. Plans split it over all ranks with the same KV head: of tensor {tensor} "
            f"those are {ranks} with the {heads} KV heads of {model.name}. "
            f"Write {ranks}{', or 1 for copies' if ranks > 1 else ''}."
        )
