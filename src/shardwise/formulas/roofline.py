"""The roofline: seconds of arithmetic against seconds of data movement. Book §1.

T_math = FLOPs / C        T_comms = bytes / W
max(T_math, T_comms) <= T <= T_math + T_comms

C FLOP/s, W bytes/s, I = FLOPs / bytes the arithmetic intensity.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.arrays import Num, maximum, where
from shardwise.units import bytes_per_element


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds of arithmetic (`math_s`) and of data movement (`comms_s`) of one operation."""

    math_s: Num
    comms_s: Num

    @property
    def lower(self) -> Num:
        """max(T_math, T_comms): everything overlapped."""
        return maximum(self.math_s, self.comms_s)

    @property
    def upper(self) -> Num:
        """T_math + T_comms: nothing overlapped."""
        return self.math_s + self.comms_s


def math_s(flops: Num, flops_per_s: Num) -> Num:
    """T_math = FLOPs / C, seconds."""
    return flops / flops_per_s


def transfer_s(n_bytes: Num, bytes_per_s: Num) -> Num:
    """T_comms = bytes / W, seconds."""
    return n_bytes / bytes_per_s


def bounds(flops: Num, flops_per_s: Num, n_bytes: Num, bytes_per_s: Num) -> Bounds:
    """Seconds of `flops` at C and of `n_bytes` over one roof W, and the bounds of both together.

    >>> bounds(3.0, 1.0, 1.0, 1.0).lower, bounds(3.0, 1.0, 1.0, 1.0).upper
    (3.0, 4.0)
    """
    return Bounds(math_s(flops, flops_per_s), transfer_s(n_bytes, bytes_per_s))


def critical_intensity(flops_per_s: Num, bytes_per_s: Num) -> Num:
    """C / W, FLOPs per byte: an operation of higher intensity is compute-bound. Book §1."""
    return flops_per_s / bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Matmul:
    """A matmul `[B,D] x [D,F] -> [B,F]` and the bytes of an element of each array. Book §1.

    Args:
        B, D, F: sizes; B is the tokens, D the summed dim.
        a_bytes, w_bytes, out_bytes: bytes per element of activations, weights and output.
    """

    B: Num
    D: Num
    F: Num
    a_bytes: float = 2.0
    w_bytes: float = 2.0
    out_bytes: float = 2.0

    @property
    def flops(self) -> Num:
        """2BDF."""
        return 2 * self.B * self.D * self.F

    @property
    def loaded_bytes(self) -> Num:
        return self.a_bytes * self.B * self.D + self.w_bytes * self.D * self.F

    @property
    def written_bytes(self) -> Num:
        return self.out_bytes * self.B * self.F

    @property
    def n_bytes(self) -> Num:
        return self.loaded_bytes + self.written_bytes

    @property
    def intensity(self) -> Num:
        """FLOPs per byte; about B when B << D, F and every element has two bytes."""
        return self.flops / self.n_bytes

    def critical_batch(self, flops_per_s: Num, bytes_per_s: Num) -> Num:
        """B above which the matmul is compute-bound, counting all bytes; inf if it never is.

        2BDF = I (a B D + w D F + o B F)  =>  B = I w D F / (2 D F - I (a D + o F))
        """
        critical = critical_intensity(flops_per_s, bytes_per_s)
        per_row = self.a_bytes * self.D + self.out_bytes * self.F
        surplus = 2 * self.D * self.F - critical * per_row
        batch = critical * self.w_bytes * self.D * self.F / where(surplus > 0, surplus, 1.0)
        return where(surplus > 0, batch, float("inf"))


def critical_batch(flops_per_s: Num, bytes_per_s: Num, weights: str = "bf16") -> Num:
    """B_crit = (C / W) w / 2 for B << D, F: tokens from which a matmul is compute-bound. Book §1.

    Only the bytes of the weights count, w each.

    >>> round(critical_batch(1.97e14, 8.2e11))
    240
    """
    return critical_intensity(flops_per_s, bytes_per_s) * bytes_per_element(weights) / 2


def dot_intensity(n: Num, element_bytes: float = 2.0) -> Num:
    """Intensity of a dot product of length n, the scalar written back: (2n-1) / (e (2n+1))."""
    return (2 * n - 1) / (element_bytes * (2 * n + 1))


def attention_intensity(query: Num, key: Num, group: Num = 1, element_bytes: float = 2.0) -> Num:
    """Attention with T queries, S keys and G query heads per key head: T S G / (T G + S). Book §7.

    FLOPs 4 T S N H over the bytes of Q and O (2 T N H) and K and V (2 S K H), N = G K.
    """
    return 2 / element_bytes * query * key * group / (query * group + key)
