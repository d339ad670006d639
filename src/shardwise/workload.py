"""The work: one training step, or the requests a server answers. Batches are SEQUENCESxLENGTH."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise import units
from shardwise.errors import BadInput, BadShape, UnknownName, raise_all

# Bytes of optimizer state per parameter, beside the weights, as multiples of the moment dtype.
OPTIMIZER_MOMENTS = {"adamw": 2.0, "sgd": 0.0, "momentum": 1.0}
REMAT = ("none", "full", "auto")
LARGEST_BATCH = 2**31  # sequences or tokens; beyond it the input is a slip, not a plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """One training step.

    Args:
        batch: sequences in the global batch.
        seq: tokens of one sequence.
        tokens: tokens of the whole run, or None for a single step.
        weights, compute, gradients, moments: dtypes held and computed in.
        master: dtype of a second, exact copy of the weights, or None.
        optimizer: `adamw`, `momentum` or `sgd`.
        remat: `none` keeps every array that the backward pass reads, `full` keeps the layers'
            inputs and computes each layer again, `auto` takes `none` where it fits.

    Raises:
        BadInput: for sizes that cannot be; UnknownName for a dtype or optimizer.
    """

    batch: int
    seq: int
    tokens: float | None = None
    weights: str = "bf16"
    compute: str = "bf16"
    gradients: str = "bf16"
    moments: str = "fp32"
    master: str | None = None
    optimizer: str = "adamw"
    remat: str = "auto"

    def __post_init__(self) -> None:
        problems = [*_bad_size("batch", self.batch), *_bad_size("sequence length", self.seq)]
        if self.tokens is not None and not 1 <= self.tokens <= 1e18:
            problems.append(f"tokens {self.tokens:g} is not between 1 and 1e18.")
        raise_all(BadInput, problems)
        for dtype in (self.weights, self.compute, self.gradients, self.moments, self.master):
            if dtype is not None:
                units.bytes_per_element(dtype)
        if self.optimizer not in OPTIMIZER_MOMENTS:
            raise UnknownName("optimizer", self.optimizer, OPTIMIZER_MOMENTS)
        if self.remat not in REMAT:
            raise UnknownName("remat policy", self.remat, REMAT)

    @property
    def tokens_per_step(self) -> int:
        return self.batch * self.seq

    @property
    def weight_bytes(self) -> float:
        """Bytes per parameter of the weights that the step computes with."""
        return units.bytes_per_element(self.weights)

    @property
    def optimizer_bytes(self) -> float:
        """Bytes per parameter of moments and master copy. Book §5: 8 for Adam in fp32."""
        master = units.bytes_per_element(self.master) if self.master else 0.0
        return OPTIMIZER_MOMENTS[self.optimizer] * units.bytes_per_element(self.moments) + master

    @property
    def activation_bytes(self) -> float:
        """Bytes per element of activations: 4 when computing in fp32, else 2 (also under fp8)."""
        return max(2.0, units.bytes_per_element(self.compute))

    @property
    def state_bytes(self) -> float:
        """Bytes per parameter of weights, gradients and optimizer state."""
        gradients = units.bytes_per_element(self.gradients)
        return self.weight_bytes + gradients + self.optimizer_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Serve:
    """Sequences that decode together.

    Args:
        context: tokens of each sequence whose keys and values are held.
        batch: sequences that decode at once, or None for as many as fit.
        weights, kv, compute: dtypes.
    """

    context: int
    batch: int | None = None
    weights: str = "bf16"
    kv: str = "bf16"
    compute: str = "bf16"

    def __post_init__(self) -> None:
        batch = [] if self.batch is None else _bad_size("batch", self.batch)
        raise_all(BadInput, [*_bad_size("context", self.context), *batch])
        for dtype in (self.weights, self.kv, self.compute):
            units.bytes_per_element(dtype)


def _bad_size(name: str, value: int) -> list[str]:
    if not isinstance(value, int) or isinstance(value, bool):
        return [f"{name} {value!r} is not a whole number."]
    if not 1 <= value <= LARGEST_BATCH:
        return [f"{name} {value:,} is not between 1 and {LARGEST_BATCH:,}."]
    return []


def parse_batch(text: str) -> tuple[int, int]:
    """`1024x4096` -> (1024 sequences, 4096 tokens each).

    >>> parse_batch("1024x4k")
    (1024, 4000)
    """
    parts = text.replace("X", "x").replace("×", "x").split("x")
    if len(parts) != 2 or not all(parts):
        raise BadShape(
            f'batch "{text}" is not SEQUENCESxLENGTH. Write 1024x4096 (1,024 of 4,096 tokens).'
        )
    sequences = units.parse_whole(parts[0], "batch sequences")
    return sequences, units.parse_whole(parts[1], "sequence length")
