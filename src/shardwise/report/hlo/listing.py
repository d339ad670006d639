"""The largest operations of a compiled program."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shardwise import units
from shardwise.check.explained.search import OperationList, OperationRow
from shardwise.report.hlo.operation import collective_name
from shardwise.report.style import Block, printable, quiet, strong, table
from shardwise.report.words import counted, percent

MAX_NAMES = 12  # of the operations that begin with a prefix
SCOPE_WIDTH = 24  # characters of the last scope of a path


def blocks(operations: OperationList) -> Iterator[Block]:
    """The largest operations by FLOPs, by bytes and by bytes of collectives."""
    yield strong(printable(_headline(operations)))
    yield from _largest(
        "FLOPs", operations.by_flops, operations.flops, lambda row: row.flops, _flops
    )
    yield from _largest(
        "bytes",
        operations.by_hbm_bytes,
        operations.hbm_bytes,
        lambda row: row.hbm_bytes,
        units.show_bytes,
    )
    yield from _largest(
        "collective bytes",
        operations.by_collective_bytes,
        operations.collective_bytes,
        lambda row: row.collective_bytes,
        units.show_bytes,
    )
    if operations.names:
        names = [f"%{name}" for name in operations.names[:MAX_NAMES]]
        if len(operations.names) > MAX_NAMES:
            names.append(f"{len(operations.names) - MAX_NAMES:,} more")
        yield printable(", ".join(names))
    if operations.partitioned:
        yield quiet(
            "of one device in one run of the program; collectives: bytes of the whole arrays"
        )
    else:
        yield quiet(
            f"of all {operations.n_devices:,} devices in one run: the compiler has not divided "
            "this program among them yet (no is_scheduled=true in its first line)"
        )
    yield quiet("type  the name of an operation, or its beginning, to have it explained")


def _headline(operations: OperationList) -> str:
    if operations.prefix:
        n_names = counted(len(operations.names), "operation")
        return f"{operations.program}: {n_names} whose names begin with {operations.prefix}."
    n_operations = counted(operations.n_operations, "operation")
    return f"{operations.program}: {n_operations} on {counted(operations.n_devices, 'device')}."


def _largest(
    title: str,
    rows: tuple[OperationRow, ...],
    total: int,
    size: Callable[[OperationRow], int],
    show: Callable[[float], str],
) -> Iterator[Block]:
    """A table of the largest rows by one size, with their shares of the total."""
    if not rows:
        return
    cells = []
    for row in rows:
        share = percent(size(row) / total)
        cells.append(
            [f"%{printable(row.name)}", f"{row.n_runs:,}", show(size(row)), share, _what(row)]
        )
    yield table([f"!{title}", ">runs", f">{show(total)}", ">", "what"], cells)


def _flops(value: float) -> str:
    return units.show_rate(value, "FLOP")


def _what(row: OperationRow) -> str:
    """The planned operation of a row, else its last scope and its line, with its collectives."""
    words = [collective_name(kind) for kind in row.kinds]
    if row.operation:
        words.append(f"{row.operation} {row.phase}")
    elif row.op_name and not row.kinds:
        words.append(printable(row.op_name.rpartition("/")[2][:SCOPE_WIDTH]))
        words.append(printable(row.source[-SCOPE_WIDTH:]))
    return " ".join(filter(None, words)) or row.opcode
