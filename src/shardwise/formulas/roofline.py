"""The roofline: seconds of arithmetic against seconds of data movement. Book §1.

T_math = FLOPs / C        T_comms = bytes / W
max(T_math, T_comms) <= T <= T_math + T_comms

C is the peak in FLOP/s, W a bandwidth in bytes/s, I = FLOPs / bytes the arithmetic intensity.
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
    """T_math of `flops` and T_comms of `n_bytes`, with the bounds of their total time.

    >>> bounds(3.0, 1.0, 1.0, 1.0).lower, bounds(3.0, 1.0, 1.0, 1.0).upper
    (3.0, 4.0)
    """
    return Bounds(math_s(flops, flops_per_s), transfer_s(n_bytes, bytes_per_s))


def critical_intensity(flops_per_s: Num, bytes_per_s: Num) -> Num:
    """C / W, FLOPs per byte: an operation of higher intensity is compute-bound. Book §1."""
    return flops_per_s / bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Matmul:
    """A matmul `[B,D] x [D,F] -> [B,F]` with the bytes per element of its three arrays. Book §1.

    Args:
        B, D, F: sizes of the dims; B counts tokens, D is summed over.
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
        """FLOPs: 2BDF."""
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

        With I = C / W and a, w, o bytes per element of activations, weights and output,
        2BDF = I (a B D + w D F + o B F)  =>  B = I w D F / (2 D F - I (a D + o F))
        """
        critical = critical_intensity(flops_per_s, bytes_per_s)
        per_row = self.a_bytes * self.D + self.out_bytes * self.F
        surplus = 2 * self.D * self.F - critical * per_row
        batch = critical * self.w_bytes * self.D * self.F / where(surplus > 0, surplus, 1.0)
        return where(surplus > 0, batch, float("inf"))


def critical_batch(flops_per_s: Num, bytes_per_s: Num, weights: str = "bf16") -> Num:
    """Tokens above which a matmul is compute-bound: B_crit = (C / W) w / 2. Book §1.

    Only weights are counted, w bytes per element: an approximation for B << D, F.

    >>> round(critical_batch(1.97e14, 8.2e11))
    240
    """
    return critical_intensity(flops_per_s, bytes_per_s) * bytes_per_element(weights) / 2


def dot_intensity(n: Num, element_bytes: float = 2.0) -> Num:
    """FLOPs per byte of a dot product of length n: (2n-1) / (e (2n+1)). Book §1.

    It reads two vectors of e bytes per element and writes one scalar.
    """
    return (2 * n - 1) / (element_bytes * (2 * n + 1))


def attention_intensity(query: Num, key: Num, group: Num = 1, element_bytes: float = 2.0) -> Num:
    """FLOPs per byte of attention: T S G / (T G + S) in bf16. Book §7.

    T queries attend to S keys, with G = N / K query heads per key head: 4 T S N H FLOPs over the
    2 T N H elements of queries and outputs and the 2 S K H elements of keys and values.
    """
    return 2 / element_bytes * query * key * group / (query * group + key)
