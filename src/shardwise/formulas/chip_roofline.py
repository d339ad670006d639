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

_TYPED_ARRAY = re.compile(r"\s*([a-z]+[0-9]+)\s*\[([A-Za-z0-9_', ]*)\]\s*")
_EXAMPLE = "Write it as bf16[B,D] x int8[D,F] -> bf16[B,F]."


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """One bandwidth of the chip, and the FLOPs per byte above which it is not the bottleneck."""

    name: str
    bytes_per_s: float
    critical_intensity: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflinePoint:
    """The operation at one size of the dim that varies.

    `flops_per_s` is the rate at the lower bound of the time, max(`math_s`, `hbm_s`); `bound` names
    the larger of the two, "compute" or "hbm".
    """

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
        chip: name of the chip.
        compute: dtype of the arithmetic.
        peak_flops_per_s: dense peak of the chip at that dtype.
        sizes: sizes of the dims that do not vary.
        dim: the dim that varies.
        critical_size: size of `dim` above which the operation is bound by compute and not by HBM,
            counting the bytes of all arrays; None if HBM always bounds it.
        points: the operation at each size of `dim`.
        roofs: every bandwidth of the chip that is known.
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
    """Compute the roofline of a matmul written with dtypes.

    Args:
        operation: `bf16[B,D] x int8[D,F] -> bf16[B,F]`.
        on: a chip or its name.
        sizes: dim -> size; one dim may have a sequence of sizes.
        compute: dtype of the arithmetic; by default the wider of the two inputs.

    Raises:
        BadSharding: the operation is not a matmul.
        BadInput: a size is missing, or several dims have a sequence of sizes.
        UnknownFigure: the chip has no peak at that dtype.
    """
    einsum, dtypes = parse_typed(operation)
    widest = max(dtypes[:2], key=units.bytes_per_element)
    return _roofline_result(
        operation.strip(),
        einsum,
        [units.bytes_per_element(dtype) for dtype in dtypes],
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
    """Compute the roofline of one matmul of a model over batch sizes.

    Args:
        model: the architecture.
        chip: the chip.
        operation: `mlp.up`, `attn.q`, `unembed`, ...
        batch: numbers of sequences, one point of the roofline each.
        seq: tokens of each sequence; 1 for decoding, where `batch` is the number of tokens.
        weights, activations: dtypes of the arrays.
        compute: dtype of the arithmetic; by default that of the activations.

    Raises:
        UnknownName: the model has no such operation.
        BadInput: an operation of the attention core with `seq` 1.
    """
    terms = model_terms(model, seq)
    if operation not in terms:
        raise UnknownName(f"operation of {model.name}", operation, terms)
    term = terms[operation]
    activation_bytes = units.bytes_per_element(activations)
    right_bytes = units.bytes_per_element(weights)
    if term.block == "core":
        right_bytes = activation_bytes
        if seq == 1:
            raise BadInput(
                f"{operation} runs over the tokens of a sequence. Give seq (--seq 4096)."
            )
    lengths = {"T": seq, "S": seq, "D": model.d_model, "V": model.vocab, **term.sizes}
    sizes: dict[str, int | Sequence[int]] = {}
    for dim in _dims(term.einsum):
        if dim != "B":
            sizes[dim] = int(lengths[dim])
    sizes["B"] = batch
    return _roofline_result(
        f"{operation}: {term.einsum}",
        term.einsum,
        [activation_bytes, right_bytes, activation_bytes],
        sizes,
        chip,
        compute or activations,
        float(term.share),
    )


def model_terms(model: ModelConfig, seq: int) -> dict[str, Term]:
    """The matmuls of a model's most common layer and of its unembedding, by name."""
    terms = layer_terms(model, model.main_layer, seq) + outer_terms(model)
    return {term.name: term for term in terms if term.share > 0}


def parse_typed(text: str) -> tuple[Einsum, tuple[str, str, str]]:
    """Parse `bf16[B,D] x int8[D,F] -> bf16[B,F]` into an einsum and its three dtypes.

    Raises:
        BadSharding: the text has another form.
        UnknownName: a dtype is unknown.
    """
    pattern = (
        _TYPED_ARRAY.pattern + "[x×.*·]" + _TYPED_ARRAY.pattern + "(?:->|→)" + _TYPED_ARRAY.pattern
    )
    match = re.fullmatch(pattern, text)
    if not match:
        raise BadSharding(f'"{text.strip()}" is not a matmul with dtypes. {_EXAMPLE}')
    dtypes = match.group(1, 3, 5)
    left, right, output = map(_parse_array, "AWO", match.group(2, 4, 6))
    for dtype in dtypes:
        units.bytes_per_element(dtype)
    return Einsum(left, right, output).check(), (dtypes[0], dtypes[1], dtypes[2])


def _parse_array(name: str, dims: str) -> Array:
    if not dims.strip():
        return Array(name, ())
    parts = [dim.strip() for dim in dims.split(",")]
    if not all(re.fullmatch(r"[A-Za-z][A-Za-z0-9']*", dim) for dim in parts):
        raise BadSharding(f'"[{dims}]" is not a list of dims. {_EXAMPLE}')
    return Array(name, tuple(map(Dim, parts)))


def _dims(einsum: Einsum) -> tuple[str, ...]:
    """Every dim that needs a size: those of the matmul, and those of its arrays in memory."""
    names = list(einsum.dims)
    for array in (*einsum.inputs, einsum.output):
        names += [dim.name_in_memory for dim in array.dims]
    return tuple(dict.fromkeys(names))


def _roofline_result(
    expression: str,
    einsum: Einsum,
    elements_bytes: Sequence[float],
    sizes: Mapping[str, int | Sequence[int]],
    chip: Chip,
    compute: str,
    share: float = 1.0,
) -> RooflineResult:
    """Compute a roofline; `share` is the part of the matmul that is computed (causal masks)."""
    dim, values, fixed = _varying(einsum, sizes)
    peak = chip.peak(compute)
    bandwidth = chip.need("hbm_bytes_per_s")

    def flops_and_bytes(size: float) -> tuple[float, float]:
        lengths: dict[str, float] = {**fixed, dim: size}
        for experts in einsum.chosen:  # a small batch reads only the experts that it chooses
            tokens = size * lengths.get("T", 1)
            lengths[experts] = min(lengths[experts], tokens * lengths["R"])
        n_bytes = 0.0
        arrays = (*einsum.inputs, einsum.output)
        for array, element_bytes in zip(arrays, elements_bytes, strict=True):
            if array.name not in ON_CHIP:
                n_bytes += float(array.local_elements(lengths, {})) * element_bytes
        return share * float(einsum.flops(lengths)), n_bytes

    points = tuple(
        _roofline_point(size, *flops_and_bytes(size), peak, bandwidth) for size in values
    )
    return RooflineResult(
        expression=expression,
        chip=chip.name,
        compute=compute,
        peak_flops_per_s=peak,
        sizes=fixed,
        dim=dim,
        critical_size=_critical_size(flops_and_bytes, peak, bandwidth),
        points=points,
        roofs=roofs(chip, peak),
    )


def _varying(
    einsum: Einsum, sizes: Mapping[str, int | Sequence[int]]
) -> tuple[str, list[int], dict[str, int]]:
    """The dim that varies, its sizes, and the sizes of the other dims."""
    dims = _dims(einsum)
    problems = [f"dim {dim} has no size. Give {dim}=1024." for dim in dims if dim not in sizes]
    problems += [str(UnknownName("dim", dim, einsum.dims)) for dim in sizes if dim not in dims]
    ranges: dict[str, list[int]] = {}
    fixed: dict[str, int] = {}
    for dim, values in sizes.items():
        if isinstance(values, int):
            fixed[dim] = values
        else:
            ranges[dim] = list(values)
        for size in ranges.get(dim) or [fixed.get(dim, 1)]:
            if not 1 <= size <= LARGEST_DIM:
                problems.append(f"dim {dim}={size} is not between 1 and {LARGEST_DIM:,}.")
    problems += [f"dim {dim} has an empty range." for dim, values in ranges.items() if not values]
    if len(ranges) > 1:
        problems.append(f"dims {', '.join(ranges)} all have ranges. Give a range to one.")
    raise_all(BadInput, problems)
    for dim, values in ranges.items():
        return dim, values, fixed
    dim = (*einsum.output.names, *einsum.dims)[0]
    return dim, [fixed.pop(dim)], fixed


def _roofline_point(
    size: int, flops: float, n_bytes: float, peak: float, bandwidth: float
) -> RooflinePoint:
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


def _critical_size(
    flops_and_bytes: Callable[[float], tuple[float, float]], peak: float, bandwidth: float
) -> float | None:
    """The size n above which compute takes longer than HBM; None if there is none.

    n = a / (c W / C - b) solves c n / C = (a + b n) / W, for c n FLOPs and a + b n bytes.
    """
    flops_per_size, bytes_at_one = flops_and_bytes(1)
    fixed_bytes = flops_and_bytes(0)[1]
    slope = flops_per_size * bandwidth / peak - (bytes_at_one - fixed_bytes)
    return fixed_bytes / slope if slope > 0 else None


def roofs(chip: Chip, peak: float) -> tuple[Roof, ...]:
    """One roof per known bandwidth of a chip; that of ICI is both directions of one axis."""
    link = chip.ici and chip.ici.link_bytes_per_s_one_way
    bandwidths = {
        "on-chip": chip.on_chip_bytes_per_s or chip.l2_bytes_per_s,
        "hbm": chip.hbm_bytes_per_s,
        "ici": link and 2 * link,
        "nvlink": chip.node and chip.node.bytes_per_s_per_gpu_one_way,
        "scale-out": chip.scale_out and chip.scale_out.bytes_per_s_per_gpu_one_way,
        "pcie": chip.pcie_bytes_per_s_per_chip,
        "dcn": chip.dcn_bytes_per_s_per_chip,
    }
    return tuple(
        Roof(name=name, bytes_per_s=rate, critical_intensity=critical_intensity(peak, rate))
        for name, rate in bandwidths.items()
        if rate
    )
