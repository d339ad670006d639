"""Every limit of the book's training chapter for a model on a chip, with its formula and numbers.

The formulas are those of `thresholds`, `experts` and `inference`; this file puts the numbers in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardwise.errors import BadInput, raise_all
from shardwise.formulas import thresholds
from shardwise.formulas.inference import memory_bound_tensor_limit
from shardwise.formulas.thresholds import alpha
from shardwise.hardware import Chip
from shardwise.models import ModelConfig

TOKENS = "tokens/chip"
WAYS = "ways"
MAX_SIZE = 10**9  # of F and E, a thousand times those of any model, so that more is a typing error
DECODE_BATCH = 32  # sequences, for the limit of tensor parallelism in decoding


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """What a limit depends on of a model: F, and E and k of a mixture of experts.

    Args:
        d_ff: F, of a routed expert if there are experts.
        n_experts, experts_per_token: E and k; 1 of a dense model.

    Raises:
        BadInput: k is above E, or a size above `MAX_SIZE`.
    """

    d_ff: int
    n_experts: int = 1
    experts_per_token: int = 1

    def __post_init__(self) -> None:
        problems = []
        n_active, n_experts = self.experts_per_token, self.n_experts
        if n_active > n_experts:
            problems.append(
                f"k={n_active:.9g} experts a token, of E={n_experts:.9g}: k is at most E. "
                f"Give more experts, as E=256, or k={n_experts:.9g}."
            )
        sizes = {"F": self.d_ff, "E": n_experts}
        problems += [
            f"{name}={size:.9g} is above {MAX_SIZE:,}. F of llama3.1-405b is 53,248, "
            "E of deepseek-v3 256."
            for name, size in sizes.items()
            if size > MAX_SIZE
        ]
        raise_all(BadInput, problems)

    @classmethod
    def of(cls, model: ModelConfig) -> Widths:
        """The widths of a model: of its routed experts, else of its widest feed-forward layer.

        Raises:
            BadInput: it has neither.
        """
        if model.moes:
            moe = max((moe for moe, _ in model.moes), key=lambda moe: moe.n_experts)
            return cls(
                d_ff=moe.d_ff, n_experts=moe.n_experts, experts_per_token=moe.experts_per_token
            )
        if not model.ffns:
            raise BadInput(f"{model.name} has no feed-forward layers, which the limits are of.")
        return cls(d_ff=max(ffn.d_ff for ffn, _ in model.ffns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit between compute-bound and bound by something else.

    Args:
        name: what is limited.
        above: whether compute-bound is above the value, not below it.
        value: the limit.
        unit: of the value.
        formula: in the letters of the book.
        numbers: the formula with the numbers put in.
        section: of the book.
        largest: the largest value that the network has, if it has one: the GPUs of a node.
    """

    name: str
    above: bool
    value: float
    unit: str
    formula: str
    numbers: str
    section: str
    largest: int | None = None


def limits(widths: Widths, chip: Chip, dtype: str = "bf16") -> list[Limit]:
    """The limits of a model on a chip, at the peak of `dtype`.

    Raises:
        UnknownFigure: the chip has no peak at `dtype`, or no bandwidth of HBM.
    """
    rows = [*_memory(widths, chip, dtype)]
    if chip.ici:
        rows += _torus(widths, chip, dtype)
    if chip.node and chip.node.bytes_per_s_per_gpu_one_way:
        rows += _node(widths, chip, dtype)
    if chip.scale_out and chip.scale_out.bytes_per_s_per_gpu_one_way:
        rows += _nodes(widths, chip, dtype)
    if chip.dcn_bytes_per_s_per_chip:
        rows += _slices(widths, chip, dtype)
    return rows


def _memory(widths: Widths, chip: Chip, dtype: str) -> Iterator[Limit]:
    """A chip with all experts reads those of all tokens, of which each expert gets a share."""
    is_moe, experts = widths.n_experts > 1, (widths.n_experts, widths.experts_per_token)
    yield Limit(
        name="matmuls of experts, in HBM" if is_moe else "a matmul, in HBM",
        above=True,
        value=alpha(chip, "hbm", dtype) * experts[0] / experts[1],
        unit="tokens/chip",
        formula="C / W_hbm" + " · E / k" * is_moe,
        numbers=f"{chip.peak(dtype):.3g} / {chip.need('hbm.bandwidth'):.3g}"
        + f" · {experts[0]} / {experts[1]}" * is_moe,
        section="4" if is_moe else "1",
    )


def _torus(widths: Widths, chip: Chip, dtype: str) -> Iterator[Limit]:
    ratio = alpha(chip, "ici", dtype)
    n_axes = chip.ici.n_axes if chip.ici else 1
    for used in range(1, n_axes + 1):
        yield _data(f"FSDP or data over {_axes(used)}", ratio, widths, used)
    for used in range(1, n_axes + 1):
        yield _tensor(f"tensor over {_axes(used)}", ratio, widths, used)
    product = 2 if n_axes == 3 else 1
    is_moe, experts = widths.n_experts > 1, (widths.n_experts, widths.experts_per_token)
    for overlap, rule, factor in ((False, "in turn", "4 "), (True, "at once", "")):
        yield Limit(
            name=f"FSDP + tensor, {rule}",
            above=True,
            value=thresholds.mixed_tokens(
                ratio,
                widths.d_ff,
                axes=product,
                overlap=overlap,
                n_experts=experts[0],
                experts_per_token=experts[1],
            ),
            unit=TOKENS,
            formula=f"{factor}α² / (Mx My F)" + " · E / k" * is_moe,
            numbers=f"{factor}{ratio:,.0f}² / ({product} · {widths.d_ff:,})"
            + f" · {experts[0]} / {experts[1]}" * is_moe,
            section="5",
        )
    beta = chip.need("hbm.bandwidth") / (2 * chip.need("ici.link"))
    yield _decode(widths, beta, n_axes)


def _node(widths: Widths, chip: Chip, dtype: str) -> Iterator[Limit]:
    ratio = alpha(chip, "node", dtype)
    yield _data("FSDP or data inside a node", ratio, widths, 1)
    yield replace(
        _tensor("tensor inside a node", ratio, widths, 1), largest=int(chip.need("node.gpus"))
    )
    yield _decode(widths, chip.need("hbm.bandwidth") / chip.need("node.egress"), 1)


def _nodes(widths: Widths, chip: Chip, dtype: str) -> Iterator[Limit]:
    ratio = alpha(chip, "scale_out", dtype)
    node_gpus = int(chip.need("node.gpus"))
    yield _data("FSDP or data across nodes", ratio, widths, 1)
    if thresholds.tensor_limit(widths.d_ff, alpha(chip, "node", dtype)) < node_gpus:
        return  # a node is over its limit already
    yield Limit(
        name="tensor over two nodes",
        above=False,
        value=thresholds.tensor_limit(widths.d_ff, ratio, inner=node_gpus),
        unit=WAYS,
        formula="F / α + node",
        numbers=f"{widths.d_ff:,} / {ratio:,.0f} + {node_gpus}",
        section="12",
        largest=2 * node_gpus,
    )


def _slices(widths: Widths, chip: Chip, dtype: str) -> Iterator[Limit]:
    ratio = alpha(chip, "dcn", dtype)
    yield _data("data across slices", ratio, widths, 1)


def _data(name: str, ratio: float, widths: Widths, n_axes: int) -> Limit:
    experts = (widths.n_experts, widths.experts_per_token)
    numbers = f"{ratio:,.0f} / {n_axes}"
    if widths.n_experts > 1:
        numbers += f" · {experts[0]} / {experts[1]}"
    return Limit(
        name=name,
        above=True,
        value=thresholds.data_parallel_tokens(
            ratio, n_axes=n_axes, n_experts=experts[0], experts_per_token=experts[1]
        ),
        unit=TOKENS,
        formula="α / M · E / k" if widths.n_experts > 1 else "α / M",
        numbers=numbers,
        section="5",
    )


def _tensor(name: str, ratio: float, widths: Widths, n_axes: int) -> Limit:
    return Limit(
        name=name,
        above=False,
        value=thresholds.tensor_limit(widths.d_ff, ratio, n_axes=n_axes),
        unit=WAYS,
        formula="M F / α",
        numbers=f"{n_axes} · {widths.d_ff:,} / {ratio:,.0f}",
        section="5",
    )


def _decode(widths: Widths, beta: float, n_axes: int) -> Limit:
    return Limit(
        name=f"tensor, decoding {DECODE_BATCH}",
        above=False,
        value=memory_bound_tensor_limit(widths.d_ff, DECODE_BATCH, beta, n_axes=n_axes),
        unit=WAYS,
        formula="M F / (B β)",
        numbers=f"{n_axes} · {widths.d_ff:,} / ({DECODE_BATCH} · {beta:.1f})",
        section="7",
    )


def _axes(used: int) -> str:
    return "1 axis" if used == 1 else f"{used} axes"


def best_split(
    widths: Widths, chip: Chip, n_chips: int, tokens: float
) -> tuple[float, float] | None:
    """The degrees of FSDP and tensor parallelism that communicate least on a torus. Book §5.

    Args:
        tokens: B, tokens of the global batch.

    Returns:
        X_opt, between 1 and `n_chips`, and `n_chips` / X_opt; None without a torus.
    """
    if not chip.ici:
        return None
    mx = 2 if chip.ici.n_axes == 3 else 1
    # FSDP gathers the weights of E experts, of which a token uses k.
    gathered_width = widths.d_ff * widths.n_experts / widths.experts_per_token
    fsdp = float(thresholds.best_fsdp(n_chips, tokens, gathered_width, mx=mx))
    fsdp = min(max(fsdp, 1.0), float(n_chips))
    return fsdp, n_chips / fsdp
