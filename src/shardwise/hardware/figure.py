"""A figure of a chip: one of its numbers with unit, public source and date.

`FIELDS` lists all figures of a chip by their names in a TOML file, with the attribute of `Chip`
that holds the plain number, and the unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, cast

from shardwise import units
from shardwise.errors import BadUnit
from shardwise.hardware.shape import Shape, parse_shape, show_shape

Value = float | int | bool | str | Shape | tuple[Shape, ...]


class Field(NamedTuple):
    """The attribute of `Chip` that holds a figure's value, and the unit of the value in a file."""

    attribute: str
    unit: str


# Weights and rows of the products that `hw measure` times: figures `products.bf16_16`, and those of
# an unembedding, which is not quantized, `products.bf16_head_16`.
PRODUCT_DTYPES: Final = ("fp32", "bf16", "int8")
HEAD_DTYPES: Final = ("fp32", "bf16")
PRODUCT_ROWS: Final = (1, 4, 16, 64, 256, 512)
_PRODUCTS = [f"{dtype}_{rows}" for dtype in PRODUCT_DTYPES for rows in PRODUCT_ROWS]
_PRODUCTS += [f"{dtype}_head_{rows}" for dtype in HEAD_DTYPES for rows in PRODUCT_ROWS]
ATTENTION_LENGTHS: Final = (128, 256, 512, 2048)  # tokens of a measured sequence
GROUP_SIZES: Final = (2, 4, 8, 16, 32, 64)  # devices of a measured collective

# Rates of training steps that `hw measure` finds, by dtype. `_bytes` and `_start` are what a
# product takes beside its FLOPs; a figure that is missing takes no time.
TRAINING_DTYPES: Final = ("fp32", "bf16")
PRODUCTS: Final = ("forward", "input", "weight")  # a product, the gradients of its operands
PASSES: Final = ("forward", "backward")
BETWEEN: Final = ("D", "heads", "F")  # widths of element-wise work: `estimate.elementwise`
MEMORY_KIB: Final = (64, 512, 4096, 65536)  # arrays of a measured memory bandwidth
MEMORY_STREAMS: Final = (1, 2, 4)  # arrays that are read together
COLLECTIVES: Final = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute")


def _training_units() -> dict[str, str]:
    """Key of a figure of training -> its unit."""
    found = {"step": "s", "layer": "s", "update": "B/s", "loss": "B/s", "lookup": "B/s"}
    for dtype in TRAINING_DTYPES:
        for kind in PRODUCTS:
            found[f"{dtype}_{kind}"] = "FLOP/s"
            found[f"{dtype}_{kind}_bytes"] = "B/s"
            found[f"{dtype}_{kind}_start"] = "s"
            found[f"{dtype}_experts_{kind}"] = "FLOP/s"
        for name in PASSES:
            found |= {f"{dtype}_{width}_{name}": "B/s" for width in BETWEEN}
            found |= {f"{dtype}_attention_{name}_{n}": "FLOP/s" for n in ATTENTION_LENGTHS}
    return found


def _collective_units() -> dict[str, str]:
    """Key of a figure of collectives -> its unit: bytes are V of `ops.collective`."""
    found: dict[str, str] = {}
    for kind in COLLECTIVES:
        found |= {f"{kind}_{size}": "B/s" for size in GROUP_SIZES}
        found |= {f"{kind}_{size}_start": "s" for size in GROUP_SIZES}
    return found


def memory_key(kib: int, n_streams: int) -> str:
    """Key of the memory bandwidth of arrays of `kib` KiB together, read as `n_streams` arrays."""
    return f"{kib}KiB_{n_streams}"


_MEMORY = [memory_key(kib, n) for kib in MEMORY_KIB for n in MEMORY_STREAMS]
# What moves between host and devices, disk and loader; `dispatch` is a program that does nothing.
_TRANSFERS = {
    "put": "B/s", "put_start": "s", "get": "B/s", "get_start": "s", "dispatch": "s",
    "disk_read": "B/s", "disk_write": "B/s", "loader": "B/s", "loader_start": "s",
}  # fmt: skip


FIELDS: Final[dict[str, Field]] = {
    "vector.fp32": Field("vector_flops_per_s", "FLOP/s"),
    "hbm.capacity": Field("hbm_bytes", "B"),
    "hbm.usable": Field("hbm_usable_bytes", "B"),
    "hbm.bandwidth": Field("hbm_bytes_per_s", "B/s"),
    "on_chip.capacity": Field("on_chip_bytes", "B"),
    "on_chip.bandwidth": Field("on_chip_bytes_per_s", "B/s"),
    "sm.count": Field("n_sms", "count"),
    "sm.shared_memory": Field("smem_bytes_per_sm", "B"),
    "sm.tensor_memory": Field("tmem_bytes_per_sm", "B"),
    "sm.registers": Field("register_bytes_per_sm", "B"),
    "sm.exponentials": Field("exponentials_per_clock_per_sm", "count"),
    "l2.capacity": Field("l2_bytes", "B"),
    "l2.bandwidth": Field("l2_bytes_per_s", "B/s"),
    "l3.capacity": Field("l3_bytes", "B"),
    "matrix_unit.shape": Field("matrix_unit", "shape"),
    "matrix_unit.count": Field("n_matrix_units", "count"),
    "core.count": Field("n_cores", "count"),
    "core.devices": Field("n_devices", "count"),
    "core.sparse": Field("n_sparse_cores", "count"),
    "core.clock": Field("clock_hz", "Hz"),
    "ici.axes": Field("ici.n_axes", "count"),
    "ici.link": Field("ici.link_bytes_per_s_one_way", "B/s"),
    "ici.hop": Field("ici.hop_s", "s"),
    "ici.pod": Field("ici.pod_shape", "shape"),
    "ici.host": Field("ici.host_shape", "shape"),
    "ici.wrap": Field("ici.wrap", "word"),
    "ici.slices": Field("ici.slices", "shapes"),
    "node.gpus": Field("node.n_gpus", "count"),
    "node.egress": Field("node.bytes_per_s_per_gpu_one_way", "B/s"),
    "node.switches": Field("node.n_switches", "count"),
    "node.in_network_reduction": Field("node.in_network_reduction", "yes/no"),
    "node.latency": Field("node.latency_s", "s"),
    "scale_out.egress": Field("scale_out.bytes_per_s_per_gpu_one_way", "B/s"),
    "scale_out.unit_nodes": Field("scale_out.nodes_per_unit", "count"),
    "scale_out.unit_leaves": Field("scale_out.leaves_per_unit", "count"),
    "scale_out.switch_ports": Field("scale_out.switch_ports", "count"),
    "scale_out.in_network_reduction": Field("scale_out.in_network_reduction", "yes/no"),
    "scale_out.latency": Field("scale_out.latency_s", "s"),
    "dcn.bandwidth": Field("dcn_bytes_per_s_per_chip", "B/s"),
    "pcie.bandwidth": Field("pcie_bytes_per_s_per_chip", "B/s"),
    "host.chips": Field("chips_per_host", "count"),
    "host.dram": Field("host_dram_bytes", "B"),
    "power.chip": Field("power_w", "W"),
    "price.chip_hour": Field("usd_per_chip_hour", "USD/h"),
    "own.step": Field("own_step_ratio", "x"),
    "own.runs": Field("n_own_runs", "count"),
    "serving.pass": Field("serving.pass_s", "s"),
    "serving.sequence": Field("serving.sequence_s", "s"),
    "serving.request": Field("serving.request_s", "s"),
    "serving.layer": Field("serving.layer_s", "s"),
    "serving.keys": Field("serving.key_bytes_per_s", "B/s"),
    "serving.keys_bf16": Field("serving.bf16_key_bytes_per_s", "B/s"),
    "serving.attention": Field("serving.attention_flops_per_s", "FLOP/s"),
    "serving.activations": Field("serving.activation_bytes_per_s", "B/s"),
    "serving.logits": Field("serving.logit_bytes_per_s", "B/s"),
    **{f"products.{key}": Field(f"product_flops_per_s.{key}", "FLOP/s") for key in _PRODUCTS},
    **{f"training.{k}": Field(f"training.{k}", unit) for k, unit in _training_units().items()},
    **{
        f"collectives.{k}": Field(f"collectives.{k}", unit)
        for k, unit in _collective_units().items()
    },
    **{f"memory.{key}": Field(f"memory_bytes_per_s.{key}", "B/s") for key in _MEMORY},
    **{f"transfers.{k}": Field(f"transfers.{k}", unit) for k, unit in _TRANSFERS.items()},
}

# Dtypes at which a chip may have a peak; `_SPELLINGS` maps other spellings to these. The peak of
# MXFP4 is that of fp4.
DTYPES: Final[tuple[str, ...]] = tuple(
    dtype
    for dtype in units.BYTES_PER_ELEMENT
    if dtype not in ("f32", "f16", "s8", "int32", "mxfp4")
)
_SPELLINGS: Final = {"f32": "fp32", "f16": "fp16", "s8": "int8", "bfloat16": "bf16"}

# The tables of a TOML file: the first parts of the names of figures.
GROUPS: Final[tuple[str, ...]] = tuple(dict.fromkeys(["peak", *(p.split(".")[0] for p in FIELDS)]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A value of a chip with its public source.

    Args:
        value: a number in SI base units (prices in dollars per hour), a count, a shape, a tuple of
            shapes, a word or a bool.
        unit: `B`, `B/s`, `FLOP/s`, `s`, `Hz`, `W`, `USD/h`, `x`, `count`, `shape`, `shapes`, `word`
            or `yes/no`.
        source: the public document that states the value.
        as_of: month in which the document was published or read, `YYYY-MM`; "" for a user's value.
        confirmed: False if its sources are secondary or contradict each other.
        note: caveats.
        also: other published values, each with its source.
    """

    value: Value
    unit: str
    source: str
    as_of: str
    confirmed: bool = True
    note: str = ""
    also: tuple[tuple[Value, str], ...] = ()

    def __str__(self) -> str:
        return show_value(self.value, self.unit)


def dtype_name(dtype: str) -> str:
    """The spelling of a dtype in the catalog: f16 -> fp16, s8 -> int8."""
    return _SPELLINGS.get(dtype, dtype)


def unit_of(path: str) -> str | None:
    """Unit of a figure by its name; None if there is no such figure."""
    if path.startswith("peak.") and path.removeprefix("peak.") in DTYPES:
        return "FLOP/s"
    if path in FIELDS:
        return FIELDS[path].unit
    return None


def parse_value(raw: object, unit: str, what: str) -> Value:
    """Convert a value of a TOML file to SI base units, and check it against the figure's unit.

    Args:
        raw: the value in the file: a string such as "2.77 TB/s", a whole number, a bool or a list.
        unit: unit of the figure.
        what: name of the figure, for messages.

    Raises:
        BadUnit: the unit is missing or wrong, or the value is not positive.
        BadShape: the shape is invalid.
    """
    if unit == "yes/no":
        if isinstance(raw, bool):
            return raw
        raise BadUnit(f"{what} is {raw!r}. Write true or false.")
    if unit == "count":
        if isinstance(raw, int) and not isinstance(raw, bool) and raw > 0:
            return raw
        raise BadUnit(f"{what} is {raw!r}. Write a whole number from 1.")
    if unit == "shapes":
        if isinstance(raw, list) and raw and all(isinstance(part, str) for part in raw):
            return tuple(parse_shape(part, what) for part in raw)
        raise BadUnit(f'{what} is not a list of shapes. Write ["2x2", "2x4"].')
    if not isinstance(raw, str):
        example = "a number and its unit in quotes"
        if unit == "shape":
            example = "a shape in quotes"
        raise BadUnit(f"{what} is {raw!r}: no unit. Write {example}.")
    if unit == "word":
        return raw
    if unit == "shape":
        return parse_shape(raw, what)
    return _positive(_quantity(raw, unit, what), raw, what)


def _quantity(raw: str, unit: str, what: str) -> float:
    if unit == "B":
        return units.parse_bytes(raw, what)
    if unit == "B/s":
        return units.parse_rate(raw, what)
    if unit == "FLOP/s":
        return units.parse_rate(raw, what, per="FLOP")
    if unit == "s":
        return units.parse_seconds(raw, what)
    return units.parse_measure(raw, unit, what)


def _positive(value: float, raw: str, what: str) -> float:
    # Formulas divide by these values, and no real one comes near the upper limit.
    if value == 0:
        raise BadUnit(f'{what} "{raw}" is zero. Write a real figure.')
    if not 0 < value < 1e27:
        raise BadUnit(f'{what} "{raw}" is too large. Write a real figure.')
    return value


def show_value(value: Value, unit: str) -> str:
    """Format a value with its unit: `2.77 TB/s`, `16x20x28`, `yes`.

    >>> show_value(2.765e12, "B/s"), show_value((16, 20, 28), "shape")
    ('2.765 TB/s', '16x20x28')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        if unit == "shapes":
            return " ".join(show_shape(shape) for shape in cast("tuple[Shape, ...]", value))
        return show_shape(cast("Shape", value))
    if unit == "count":
        return f"{value:,}"
    if unit == "B":
        # A size that is round in binary units was stated in them.
        if value >= units.MiB and value * 100 / units.MiB % 1 == 0:
            return _trim(units.show_gib(value, 4))
        return _trim(units.show_bytes(value, 4))
    if unit == "s":
        return _trim(units.show_seconds(value))
    if unit == "USD/h":
        return f"{units.show_dollars(value)}/h"
    if unit == "x":
        return f"{value:.4g} x"
    return _trim(units.show_rate(value, unit, 4))


def _trim(text: str) -> str:
    """Remove trailing zeros: `459.0 TFLOP/s` -> `459 TFLOP/s`."""
    number, _, unit = text.partition(" ")
    if "." in number:
        number = number.rstrip("0").rstrip(".")
    return f"{number} {unit}"
