"""Rates and capacities of a chip from its parts, and of a machine from its chips. Book §2, §12.

The peak of a data sheet is a product of units, lanes and clock. These formulas check published
values and estimate those that are not published.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.arrays import Num
from shardwise.hardware import Chip, System

FLOPS_PER_MAC = 2  # a multiply and an add


def matrix_flops_per_cycle(rows: Num, k: Num, columns: Num, cycles: Num = 1) -> Num:
    """2 m k n / cycles: FLOPs per cycle of a unit that multiplies [m,k] x [k,n]. Book §2.

    Args:
        rows, k, columns: m, k, n.
        cycles: Cycles of one such product.

    >>> matrix_flops_per_cycle(8, 128, 128, 8)
    32768.0
    """
    return FLOPS_PER_MAC * rows * k * columns / cycles


def peak_from_units(flops_per_cycle: Num, clock_hz: Num, n_units: Num = 1) -> Num:
    """FLOP/s of `n_units` units at this clock."""
    return n_units * flops_per_cycle * clock_hz


def flops_per_cycle(flops_per_s: Num, clock_hz: Num, n_units: Num = 1) -> Num:
    """C / (units x clock): FLOPs per cycle of each unit of a chip with this peak. Book §12."""
    return flops_per_s / (n_units * clock_hz)


def clock_from_peak(flops_per_s: Num, n_alus: Num, *, fused: bool = True) -> Num:
    """The clock in Hz at which `n_alus` ALUs reach a peak. Book §12.

    With `fused`, an ALU does a multiply-add per cycle, which is two FLOPs.
    """
    return flops_per_s / (n_alus * (FLOPS_PER_MAC if fused else 1))


def alus(*counts: int) -> int:
    """Number of ALUs: the product of the counts, for instance SMs, partitions per SM and lanes.

    >>> alus(132, 4, 32)
    16896
    """
    return math.prod(counts)


def vector_peak(n_alus: Num, clock_hz: Num, *, fused: bool = False) -> Num:
    """FLOP/s of `n_alus` ALUs: one FLOP per cycle each, two with fused multiply-adds."""
    return n_alus * clock_hz * (FLOPS_PER_MAC if fused else 1)


def macs_per_s(flops_per_s: Num) -> Num:
    """Multiply-adds per second: half the FLOP/s."""
    return flops_per_s / FLOPS_PER_MAC


def core_peak(chip: Chip, dtype: str = "bf16") -> float:
    """Dense peak of one core of a chip, FLOP/s. Book §2.

    Raises:
        UnknownFigure: No public source gives the chip's peak or number of cores.
    """
    return chip.peak(dtype) / chip.need("core.count")


def dtype_speedup(chip: Chip, dtype: str, base: str = "bf16") -> float:
    """Dense peak of a chip at `dtype`, divided by its peak at `base`.

    Raises:
        UnknownFigure: The chip has no peak at one of them.
    """
    return chip.peak(dtype) / chip.peak(base)


def ici_links(chip: Chip) -> int:
    """ICI links of a chip: two per torus axis. Book §2.

    Raises:
        UnknownFigure: The chip is not on a torus.
    """
    return 2 * int(chip.need("ici.axes"))


def resident_warps(registers: int, registers_per_thread: int, threads: int = 32) -> int:
    """Warps whose registers fit in a register file. Book §12.

    Args:
        registers: Registers of the file, of one partition or of one SM.
        registers_per_thread: Registers that the kernel uses per thread.
        threads: Threads per warp.
    """
    return registers // (registers_per_thread * threads)


def sm_bytes(chip: Chip) -> tuple[float, float]:
    """Bytes of shared memory and of registers in all SMs of a GPU. Book §12.

    Raises:
        UnknownFigure: No public source gives one of the two.
    """
    sms = chip.need("sm.count")
    return sms * chip.need("sm.shared_memory"), sms * chip.need("sm.registers")


def elementwise_intensity(
    flops: Num = 1, reads: Num = 2, writes: Num = 1, element_bytes: Num = 4.0
) -> Num:
    """FLOPs per byte of an elementwise operation; 1/12 for the sum of two fp32 vectors. Book §12.

    Args:
        flops: FLOPs per element of the result.
        reads, writes: Elements read and written per element of the result.
        element_bytes: Bytes per element.
    """
    return flops / (element_bytes * (reads + writes))


def elementwise_bytes(n: Num, reads: Num = 2, writes: Num = 1, element_bytes: Num = 4.0) -> Num:
    """Bytes that an elementwise operation with n results reads and writes."""
    return n * element_bytes * (reads + writes)


def node_bytes_per_s(
    n_gpus: Num, egress: Num, n_switches: int, switch_ports: int, link_bytes_per_s: float
) -> tuple[float, float, float]:
    """Bandwidth of a node in bytes/s one way: of its switches, of its GPUs, the smaller. Book §12.

    Args:
        n_gpus: GPUs of the node.
        egress: Bytes/s one way out of one GPU.
        n_switches, switch_ports: Switches of the node, and ports of one switch.
        link_bytes_per_s: Bytes/s one way of the link at a port.
    """
    switch_rate = n_switches * switch_ports * link_bytes_per_s
    gpu_rate = n_gpus * egress
    return switch_rate, gpu_rate, min(switch_rate, gpu_rate)


def bisection_bytes_per_s(n_gpus: Num, egress: Num) -> Num:
    """Bytes/s between the two halves of a switched node, both directions together. Book §12.

    Each of the n/2 GPUs of a half sends `egress` bytes/s to the other half.
    """
    return 2 * (n_gpus / 2) * egress


def egress(counts: Sequence[int], link_bytes_per_s: Num) -> Num:
    """Bytes/s one way out of a GPU, tray or node: number of its links x bytes/s of one link.

    The number of links is the product of `counts`, for instance trays and NICs per tray.

    >>> egress((18,), 25e9)
    450000000000.0
    """
    return math.prod(counts) * link_bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Totals over all chips of a machine; None where no public source gives a chip's value."""

    n_chips: int
    n_hosts: int | None
    n_cores: int | None
    flops_per_s: float
    hbm_bytes: float | None
    hbm_bytes_per_s: float | None
    host_dram_bytes: float | None


def totals(system: System, dtype: str = "bf16") -> Totals:
    """Hosts, cores, FLOP/s, HBM and host memory of all chips of a machine. Book §2, question 2.

    Raises:
        UnknownFigure: The chip's peak at this dtype is unknown.

    >>> from shardwise.hardware import parse_system
    >>> totals(parse_system("v5p:16x20x28")).n_cores
    17920
    """
    chip = system.chip
    n_chips = system.n_chips
    return Totals(
        n_chips=n_chips,
        n_hosts=system.n_hosts,
        n_cores=chip.n_cores and n_chips * chip.n_cores,
        flops_per_s=n_chips * chip.peak(dtype),
        hbm_bytes=chip.hbm_bytes and n_chips * chip.hbm_bytes,
        hbm_bytes_per_s=chip.hbm_bytes_per_s and n_chips * chip.hbm_bytes_per_s,
        host_dram_bytes=system.n_hosts
        and chip.host_dram_bytes
        and system.n_hosts * chip.host_dram_bytes,
    )
