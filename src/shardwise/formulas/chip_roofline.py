"""The roofline of a matmul on a chip: intensity, bound, critical size, every roof. Book §1."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shardwise import units
from shardwise.errors import BadInput, BadSharding, UnknownName, raise_all
from shardwise.formulas.matmul import LARGEST_DIM
from shardwise.formulas.roofline import bounds, critical_intensity
from shardwise.hardware import Chip, parse_chip
from shardwise.models import ModelConfig
from shardwise.ops.einsum import Array, Dim, Einsum
from shardwise.ops.layers import ON_CHIP, Term, layer_terms, outer_terms

_TYPED = re.compile(r"\s*([a-z]+[0-9]+)\s*\[([A-Za-z0-9_', ]*)\]\s*")
_EXAMPLE = "Write it as bf16[B,D] x int8[D,F] -> bf16[B,F]."


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """One bandwidth of the chip, and the intensity above which it no longer binds."""

    name: str
    bytes_per_s: float
    critical_intensity: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflinePoint:
    """The operation at one size."""

    size: int
    flops: float
    n_bytes: float
    intensity: float
    math_s: float
    hbm_s: float
    flops_per_s: float
    bound: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineResult:
    """The roofline of an operation on a chip.

    Args:
        expression: the operation with its dtypes.
        chip: its name.
        compute: dtype of the arithmetic, and `peak_flops_per_s` at it.
        dim: the dim that varies.
        critical_size: its size from which the operation is compute-bound under the HBM roof,
            counting all bytes; None when it never is.
        points: one for each size.
        roofs: every bandwidth that the chip's file has.
    """

    expression: str
    chip: str
    compute: str
    peak_flops_per_s: float
    sizes: dict[str, int]
    dim: str
    critical_size: float | None
    points: tuple[RooflinePoint, ...]
    roofs: tuple[Roof, ...]


def roofline(
    operation: str,
    *,
    on: str | Chip,
    sizes: Mapping[str, int | Sequence[int]],
    compute: str | None = None,
) -> RooflineResult:
    """The roofline of a matmul written with dtypes.

    Args:
        operation: `bf16[B,D] x int8[D,F] -> bf16[B,F]`.
        on: a chip, by name or value.
        sizes: dim -> size; one dim may have several.
        compute: dtype of the arithmetic; the wider of the two inputs when not given.

    Raises:
        BadSharding: not a matmul. BadInput: sizes missing or several dims with ranges.
        UnknownFigure: the chip has no peak at that dtype.
    """
    einsum, dtypes = parse_typed(operation)
    widest = max(dtypes[:2], key=units.bytes_per_element)
    return _result(
        operation.strip(),
        einsum,
        [units.bytes_per_element(d) for d in dtypes],
        sizes,
        parse_chip(on) if isinstance(on, str) else on,
        compute or widest,
    )


def operation_roofline(
    model: ModelConfig,
    chip: Chip,
    operation: str,
    *,
    batch: Sequence[int],
    seq: int = 1,
    weights: str = "bf16",
    activations: str = "bf16",
    compute: str | None = None,
) -> RooflineResult:
    """The roofline of one matmul of a model over the batch.

    Args:
        model: the architecture.
        chip: the chip.
        operation: `mlp.up`, `attn.q`, `unembed` ...
        batch: sequences.
        seq: tokens of each; 1 counts tokens, as in decoding.
        weights, activations: dtypes.
        compute: dtype of the arithmetic; that of the activations when not given.

    Raises:
        UnknownName: the model has no such operation.
        BadInput: attention without the length of its sequences.
    """
    terms = model_terms(model, seq)
    if operation not in terms:
        raise UnknownName(f"operation of {model.name}", operation, terms)
    term = terms[operation]
    core = term.block == "core"
    if core and seq == 1:
        raise BadInput(f"{operation} is over the tokens of a sequence. Give seq (--seq 4096).")
    activation_bytes = units.bytes_per_element(activations)
    right_bytes = activation_bytes if core else units.bytes_per_element(weights)
    lengths = {"T": seq, "S": seq, "D": model.d_model, "V": model.vocab, **term.sizes}
    sizes: dict[str, int | Sequence[int]] = {
        d: int(lengths[d]) for d in _dims(term.einsum) if d != "B"
    }
    sizes["B"] = batch
    elements = [activation_bytes, right_bytes, activation_bytes]
    return _result(
        f"{operation}: {term.einsum}",
        term.einsum,
        elements,
        sizes,
        chip,
        compute or activations,
        float(term.share),
    )


def model_terms(model: ModelConfig, seq: int) -> dict[str, Term]:
    """Every matmul of a model by name; of layers that differ, the most common kind."""
    terms = layer_terms(model, model.main_layer, seq) + outer_terms(model)
    return {t.name: t for t in terms if t.share > 0}


def parse_typed(text: str) -> tuple[Einsum, tuple[str, str, str]]:
    """`bf16[B,D] x int8[D,F] -> bf16[B,F]` as an einsum and its three dtypes.

    Raises:
        BadSharding: it does not read like that. UnknownName: an unknown dtype.
    """
    pattern = _TYPED.pattern + "[x×.*·]" + _TYPED.pattern + "(?:->|→)" + _TYPED.pattern
    match = re.fullmatch(pattern, text)
    if not match:
        raise BadSharding(f'"{text.strip()}" is not a matmul with dtypes. {_EXAMPLE}')
    left, right, output = (match.group(i, i + 1) for i in (1, 3, 5))
    arrays = [
        _array(name, dims) for name, (_, dims) in zip("AWO", (left, right, output), strict=True)
    ]
    for dtype, _ in (left, right, output):
        units.bytes_per_element(dtype)
    return Einsum(arrays[0], arrays[1], arrays[2]).check(), (left[0], right[0], output[0])


def _array(name: str, dims: str) -> Array:
    names = [d.strip() for d in dims.split(",")] if dims.strip() else []
    if not all(re.fullmatch(r"[A-Za-z][A-Za-z0-9']*", d) for d in names):
        raise BadSharding(f'"[{dims}]" is not a list of dims. {_EXAMPLE}')
    return Array(name, tuple(map(Dim, names)))


def _dims(einsum: Einsum) -> tuple[str, ...]:
    """Every letter that needs a size: of the product, and of what its arrays hold."""
    letters = list(einsum.dims)
    for array in (*einsum.inputs, einsum.output):
        letters += [dim.held for dim in array.dims]
    return tuple(dict.fromkeys(letters))


def _result(
    expression: str,
    einsum: Einsum,
    elements: Sequence[float],
    sizes: Mapping[str, int | Sequence[int]],
    chip: Chip,
    compute: str,
    share: float = 1.0,
) -> RooflineResult:
    dim, values, fixed = _varying(einsum, sizes)
    peak, bandwidth = chip.peak(compute), chip.need("hbm_bytes_per_s")
    arrays = zip((*einsum.inputs, einsum.output), elements, strict=True)
    in_hbm = [(array, width) for array, width in arrays if array.name not in ON_CHIP]

    def work(size: float) -> tuple[float, float]:
        lengths: dict[str, float] = {**fixed, dim: size}
        for experts in einsum.chosen:  # those that the tokens meet, each a different one at best
            tokens = size * lengths.get("T", 1)
            lengths[experts] = min(lengths[experts], tokens * lengths["R"])
        n_bytes = sum(float(array.local_elements(lengths, {})) * width for array, width in in_hbm)
        return share * float(einsum.flops(lengths)), n_bytes

    points = tuple(_point(n, *work(n), peak, bandwidth) for n in values)
    return RooflineResult(
        expression=expression,
        chip=chip.name,
        compute=compute,
        peak_flops_per_s=peak,
        sizes=fixed,
        dim=dim,
        critical_size=_critical(work, peak, bandwidth),
        points=points,
        roofs=roofs(chip, peak),
    )


def _varying(
    einsum: Einsum, sizes: Mapping[str, int | Sequence[int]]
) -> tuple[str, list[int], dict[str, int]]:
    """(the dim that varies, its sizes, the sizes of the others)."""
    used = _dims(einsum)
    problems = [f"dim {d} has no size. Give {d}=1024." for d in used if d not in sizes]
    problems += [str(UnknownName("dim", d, einsum.dims)) for d in sizes if d not in used]
    problems += [
        f"dim {d}={n} is not between 1 and {LARGEST_DIM:,}."
        for d, values in sizes.items()
        for n in _as_list(values)
        if not 1 <= n <= LARGEST_DIM
    ]
    ranges = [d for d, n in sizes.items() if not isinstance(n, int)]
    problems += [f"dim {d} has an empty range." for d in ranges if not sizes[d]]
    if len(ranges) > 1:
        problems.append(f"dims {', '.join(ranges)} all have ranges. Give a range to one.")
    raise_all(BadInput, problems)
    dim = ranges[0] if ranges else einsum.output.names[0] if einsum.output.names else einsum.dims[0]
    fixed = {d: n for d, n in sizes.items() if d != dim and isinstance(n, int)}
    return dim, _as_list(sizes[dim]), fixed


def _as_list(sizes: int | Sequence[int]) -> list[int]:
    return [sizes] if isinstance(sizes, int) else list(sizes)


def _point(size: int, flops: float, n_bytes: float, peak: float, bandwidth: float) -> RooflinePoint:
    time = bounds(flops, peak, n_bytes, bandwidth)
    return RooflinePoint(
        size=size,
        flops=flops,
        n_bytes=n_bytes,
        intensity=flops / n_bytes,
        math_s=time.math_s,
        hbm_s=time.comms_s,
        flops_per_s=flops / time.lower,
        bound="compute" if time.math_s >= time.comms_s else "hbm",
    )


def _critical(
    work: Callable[[float], tuple[float, float]], peak: float, bandwidth: float
) -> float | None:
    """n = a / (c W / C - b), from which c n FLOPs take longer than a + b n bytes; None if never."""
    flops_per_size, bytes_at_one = work(1)
    fixed_bytes = work(0)[1]
    slope = flops_per_size * bandwidth / peak - (bytes_at_one - fixed_bytes)
    return fixed_bytes / slope if slope > 0 else None


def roofs(chip: Chip, peak: float) -> tuple[Roof, ...]:
    """Every bandwidth of a chip as a roof; ICI counts both directions of one axis."""
    link = chip.ici.link_bytes_per_s_one_way if chip.ici else None
    bandwidths = {
        "on-chip": chip.on_chip_bytes_per_s or chip.l2_bytes_per_s,
        "hbm": chip.hbm_bytes_per_s,
        "ici": 2 * link if link else None,
        "nvlink": chip.node.bytes_per_s_per_gpu_one_way if chip.node else None,
        "scale-out": chip.scale_out.bytes_per_s_per_gpu_one_way if chip.scale_out else None,
        "pcie": chip.pcie_bytes_per_s_per_chip,
        "dcn": chip.dcn_bytes_per_s_per_chip,
    }
    return tuple(
        Roof(name=name, bytes_per_s=rate, critical_intensity=critical_intensity(peak, rate))
        for name, rate in bandwidths.items()
        if rate
    )
