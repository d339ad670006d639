"""What moves outside programs: arrays between host and devices, files, batches of tokens."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from shardwise.measure.all_devices import SPEC, AllDevices
from shardwise.measure.fit import Fit, fitted
from shardwise.measure.timing import median_s
from shardwise.train.data_order import data_order
from shardwise.train.random_tokens import write_random_tokens
from shardwise.train.tokens import open_tokens

NUMBERS = (1 << 10, 1 << 16, 1 << 20, 1 << 22)  # fp32 numbers of an array on one device
FILE_BYTES = 64 << 20
CHUNK_BYTES = 1 << 20
N_FILE_TRIALS = 3
BATCHES = ((4, 256), (16, 512), (64, 1024))  # sequences and tokens of a batch
VOCAB = 32_000
TOKEN_BYTES = 4

Transfer = Iterator[tuple[str, tuple[float, str]]]  # figure -> (its value, how it was measured)


def measure_transfers(devices: AllDevices) -> Transfer:
    """All figures of the table `transfers`."""
    yield "dispatch", (devices.dispatch_s, "a program that does almost nothing, and its result")
    yield from _fit_figures("put", _copies(devices, to_host=False))
    yield from _fit_figures("get", _copies(devices, to_host=True))
    yield from _fit_figures("loader", _batches())
    write_s, read_s = file_seconds()
    size = f"median of {N_FILE_TRIALS} files of {FILE_BYTES >> 20} MiB in {tempfile.gettempdir()}"
    yield "disk_write", (FILE_BYTES / write_s, f"{size}, until they are on the disk")
    if read_s is not None:
        yield "disk_read", (FILE_BYTES / read_s, f"{size}, dropped from the page cache before")


def _fit_figures(name: str, fit: Fit) -> Transfer:
    start_s, byte_s = fit.seconds_per
    if byte_s:
        yield name, (1 / byte_s, fit.source)
    if start_s:
        yield f"{name}_start", (start_s, fit.source)


def _copies(devices: AllDevices, *, to_host: bool) -> Fit:
    """Fit the seconds of copies of an array of each device to their number and bytes."""
    sharding = NamedSharding(devices.grid(1), SPEC)
    rows = []
    for n_numbers in NUMBERS:
        # Offset by a number: an aligned array would be shared with a CPU instead of copied.
        host = np.ones(devices.n * n_numbers + 1, np.float32)[1:]
        array = jax.device_put(host, sharding)

        def get(array: Any = array) -> Any:
            return np.array(array + 0)  # a new array: its copy on the host is kept

        def add(array: Any = array) -> Any:
            return jax.block_until_ready(array + 0)

        def put(host: Any = host) -> Any:
            return jax.device_put(host, sharding)

        seconds = max(median_s(get) - median_s(add), 0.0) if to_host else median_s(put)
        if seconds:
            rows.append(((1.0, 4.0 * devices.n * n_numbers), seconds))
    return fitted(rows, required=1)


def _batches() -> Fit:
    """Fit the seconds that the trainer's loader takes for a batch to its sequences and bytes."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_random_tokens(folder, 2 * max(n * seq for n, seq in BATCHES) + 1, VOCAB)
        tokens = open_tokens(folder)
        for n_sequences, seq in BATCHES:
            order = data_order([tokens], [1.0], seq=seq, batch=n_sequences, seed=0)
            steps = iter(range(1 << 30))

            def load(order: Any = order, n: int = n_sequences, steps: Any = steps) -> Any:
                return order.rows(next(steps), range(n))

            rows.append(
                ((float(n_sequences), 1.0 * TOKEN_BYTES * n_sequences * seq), median_s(load))
            )
        return fitted(rows, required=0)


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
