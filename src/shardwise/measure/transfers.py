"""What moves outside programs: arrays between host and devices, files, batches of tokens."""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from itertools import count
from pathlib import Path

import jax
import numpy as np
from jax.sharding import NamedSharding

from shardwise.measure.all_devices import NOTHING, SPEC, AllDevices
from shardwise.measure.fit import Figures, fitted, fitted_transfer, rate_and_start
from shardwise.measure.timing import Call, Part
from shardwise.train.data_order import data_order
from shardwise.train.random_tokens import write_random_tokens
from shardwise.train.tokens import TokenSet, open_tokens

NUMBERS = (1 << 10, 1 << 16, 1 << 20, 1 << 22)  # fp32 numbers of an array on one device
FILE_BYTES = 64 << 20
CHUNK_BYTES = 1 << 20
N_FILE_TRIALS = 3
BATCHES = ((4, 256), (16, 512), (64, 1024))  # sequences and tokens of a batch
VOCAB = 32_000
TOKEN_BYTES = 4


def measure_dispatch(devices: AllDevices) -> Part[Figures]:
    """Seconds of a program that does nothing."""
    (seconds,) = yield [devices.prepared(NOTHING, {})]
    source = "a program that does almost nothing, and its result"
    return iter([("transfers.dispatch", (seconds, source))])


def measure_copies(devices: AllDevices, *, to_host: bool) -> Part[Figures]:
    """Fit the seconds of copies of an array of each device to their number and bytes."""
    calls = []
    for n_numbers in NUMBERS:
        put, get, add = copies(devices, n_numbers)
        calls += [get, add] if to_host else [put]
    seconds = yield [partial(_prepared, call) for call in calls]
    if to_host:
        seconds = [
            max(get_s - add_s, 0.0)
            for get_s, add_s in zip(seconds[::2], seconds[1::2], strict=True)
        ]
    sizes = [(1.0, 4.0 * devices.n * n_numbers) for n_numbers in NUMBERS]
    rows = [(size, s) for size, s in zip(sizes, seconds, strict=True) if s]
    name = "get" if to_host else "put"
    return rate_and_start(f"transfers.{name}", fitted_transfer(rows))


def _prepared(call: Call) -> Call:
    """The call itself: there is nothing to compile."""
    return call


def copies(devices: AllDevices, n_numbers: int) -> tuple[Call, Call, Call]:
    """A copy to the devices, one of a new array to the host, and what makes the new array."""
    sharding = NamedSharding(devices.grid(1), SPEC)
    # Offset by a number: an aligned array would be shared with a CPU instead of copied.
    host = np.ones(devices.n * n_numbers + 1, np.float32)[1:]
    array = jax.device_put(host, sharding)
    return (
        lambda: jax.device_put(host, sharding),
        lambda: np.array(array + 0),  # an old array has its copy on the host already
        lambda: array + 0,
    )


def measure_loader() -> Part[Figures]:
    """Fit the seconds that the trainer's loader takes for a batch to its sequences and bytes."""
    with tempfile.TemporaryDirectory() as folder:
        write_random_tokens(folder, 2 * max(n * seq for n, seq in BATCHES) + 1, VOCAB)
        tokens = open_tokens(folder)
        seconds = yield [partial(_loads, tokens, *batch) for batch in BATCHES]
    sizes = [(float(n), 1.0 * TOKEN_BYTES * n * seq) for n, seq in BATCHES]
    fit = fitted(list(zip(sizes, seconds, strict=True)), required=0)
    return rate_and_start("transfers.loader", fit)


def _loads(tokens: TokenSet, n_sequences: int, seq: int) -> Call:
    """A call that loads the next batch."""
    order = data_order([tokens], [1.0], seq=seq, batch=n_sequences, seed=0)
    steps = count()
    return lambda: order.rows(next(steps), range(n_sequences))


def measure_disk() -> Figures:
    """Rates at which a file is written and read."""
    write_s, read_s = file_seconds()
    size = f"median of {N_FILE_TRIALS} files of {FILE_BYTES >> 20} MiB in {tempfile.gettempdir()}"
    yield "transfers.disk_write", (FILE_BYTES / write_s, f"{size}, until they are on the disk")
    if read_s is not None:
        source = f"{size}, dropped from the page cache before"
        yield "transfers.disk_read", (FILE_BYTES / read_s, source)


def file_seconds() -> tuple[float, float | None]:
    """Median seconds to write a file to the disk and to read it; no reading where caches stay."""
    content = np.random.default_rng(0).bytes(CHUNK_BYTES)
    writes = []
    reads = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        for _ in range(N_FILE_TRIALS):
            writes.append(_write_s(path, content))
            if hasattr(os, "posix_fadvise"):
                reads.append(_read_s(path))
    return float(np.median(writes)), float(np.median(reads)) if reads else None


def _write_s(path: Path, content: bytes) -> float:
    start_s = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(FILE_BYTES // len(content)):
            file.write(content)
        os.fsync(file.fileno())
    return time.perf_counter() - start_s


def _read_s(path: Path) -> float:
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        start_s = time.perf_counter()
        while file.read(CHUNK_BYTES):
            pass
        return time.perf_counter() - start_s
