"""Classification of the errors that XLA's compilers and JAX raise."""

from __future__ import annotations

import re

from shardwise.check.compiling.result import (
    Allocation,
    BadOption,
    Failure,
    OtherFailure,
    OutOfMemory,
    ShardingError,
    VmemOverflow,
)
from shardwise.check.source_line import line_of_error

_SIZE = r"([0-9.]+)([KMGT]?)i?B?"
_PREFIX_BITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}

# "total memory required ... (24.62G) exceeds available HBM (15.75G)"; "Used 20.5G of 15.75G hbm".
_HBM = (
    re.compile(rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
    re.compile(rf"Used {_SIZE} of {_SIZE} hbm"),
)
_VMEM = re.compile(rf"Scoped allocation with size {_SIZE} and limit {_SIZE}")
_OPTION = re.compile(r"(?:No such compile option: '|into flag |While setting option )(?P<name>\w+)")
_ALLOCATION = re.compile(r"^\s*\d+\. Size: (?P<entry>.*?)(?=^\s*\d+\. Size: |\Z)", re.M | re.S)
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_SHAPE = re.compile(r"^\s*Shape: (\S+)", re.M)
_SHARDING = re.compile(r"shard|PartitionSpec|mesh ax", re.I)


def classify(error: BaseException, stage: str) -> Failure:
    """The failure that an exception in a stage (`building`, `lowering`, `compiling`) stands for."""
    text = str(error)
    if isinstance(error, SystemExit):
        text = f"it calls sys.exit({error.code!r})"
        return OtherFailure(stage=stage, text=text, source=line_of_error(error))
    if "vmem" in text and (sizes := _VMEM.search(text)):
        op_name = _OP_NAME.search(text)
        return VmemOverflow(
            required=_parse_bytes(sizes[1], sizes[2]),
            limit=_parse_bytes(sizes[3], sizes[4]),
            op_name=op_name[1] if op_name else "",
            is_kernel="tpu_custom_call" in text,
            text=text,
        )
    if text.startswith("RESOURCE_EXHAUSTED"):
        return _out_of_memory(text)
    if text.startswith("INVALID_ARGUMENT") and (option := _OPTION.search(text)):
        return BadOption(option=option["name"], text=text)
    if stage != "compiling" and _SHARDING.search(f"{type(error).__name__} {text}"):
        return ShardingError(text=text, source=line_of_error(error))
    text = f"{type(error).__name__}: {text}"
    return OtherFailure(stage=stage, text=text, source=line_of_error(error))


def _out_of_memory(text: str) -> OutOfMemory:
    sizes = _HBM[0].search(text) or _HBM[1].search(text)
    return OutOfMemory(
        required=_parse_bytes(sizes[1], sizes[2]) if sizes else None,
        available=_parse_bytes(sizes[3], sizes[4]) if sizes else None,
        buffers=tuple(_parse_allocation(match["entry"]) for match in _ALLOCATION.finditer(text)),
        text=text,
    )


def _parse_allocation(entry: str) -> Allocation:
    """Parse an entry of "Largest program allocations": `8.00G`, then lines that describe it."""
    size = re.match(_SIZE, entry)
    shape = _SHAPE.search(entry)
    op_name = _OP_NAME.search(entry)
    return Allocation(
        bytes=_parse_bytes(size[1], size[2]) if size else 0,
        shape=shape[1] if shape else "",
        op_name=op_name[1] if op_name else "",
    )


def _parse_bytes(number: str, prefix: str) -> int:
    return round(float(number) * (1 << _PREFIX_BITS[prefix]))
