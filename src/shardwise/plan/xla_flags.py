"""XLA compiler options that are part of a plan, each with its reason and its source.

The list is short on purpose. It leaves out:
- defaults of the compiler: with libtpu 0.0.42 the latency-hiding scheduler, asynchronous gathers
  and their fusion with compute are on, and setting these options changes no program;
- thresholds that depend on the size of the model, such as those for combining collectives;
- options that make compilation many times slower: the experimental scheduler for host offload
  takes a quarter of an hour for one training step;
- the compiler's collective matmul (`xla_tpu_reduce_scatter_collective_matmul_mode`): it replaces
  only ReduceScatters that take a product as it is, without a cast or a reshape. With gradients
  computed so, a step over fsdp 16 on v5e:4x4 takes 79 ms by rooflines, and 70 ms without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shardwise.hardware import System
from shardwise.plan.schema.common import XlaFlag

_MAXTEXT = "AI-Hypercomputer/maxtext, benchmarks/xla_flags_library.py"
_MAXDIFFUSION = "AI-Hypercomputer/maxdiffusion, end_to_end/tpu/run_wan_fast_inference.sh"
_GUIDANCE = "openxla/xla, docs/flags_guidance.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One compiler option.

    Args:
        value: the value as text; `true` switches an option on.
        chips: names of the chips that it is set for; empty for all chips of the kind.
        several_slices: whether it is set only if the machine has several slices.
        reason: what the option does, and the effect that was seen in compiled programs, if any.
        source: the file that recommends the option.
    """

    name: str
    value: str
    reason: str
    source: str
    chips: tuple[str, ...] = ()
    several_slices: bool = False


_RECIPE = "AI-Hypercomputer/tpu-recipes, training/ironwood/deepseek3-671b"
_SPARSE = "Collectives run on the SparseCores while the TensorCore computes; its own overlap is off"
_SPARSE_CHIPS = ("v5p", "v6e", "7x")
_OFFLOAD = "xla_tpu_enable_sparse_core_collective_offload_"
_FUSION = "xla_tpu_enable_async_collective_fusion_fuse_"

_TPU: Final = (
    Flag(
        name="xla_tpu_scoped_vmem_limit_kib",
        value="98304",
        chips=("v6e",),
        reason="Larger tiles for one operation (96 of 128 MiB of VMEM, by default 16), less room "
        "to fetch ahead: for dense models bound by compute.",
        source=_MAXTEXT,
    ),
    Flag(
        name=f"{_OFFLOAD}all_gather",
        value="true",
        chips=_SPARSE_CHIPS,
        reason=f"{_SPARSE}. Gathers of weights became asynchronous calls on the SparseCore.",
        source=_MAXTEXT,
    ),
    Flag(
        name=f"{_OFFLOAD}2d_all_gather",
        value="true",
        chips=_SPARSE_CHIPS,
        reason="The same for gathers over two axes of the torus, which would block otherwise: with "
        "those of sums, a step over fsdp 16 on v6e:4x4 takes 29 ms by rooflines in place of 39.",
        source=_RECIPE,
    ),
    Flag(
        name=f"{_OFFLOAD}3d_all_gather",
        value="true",
        chips=("v5p", "7x"),
        reason="The same for gathers over three axes of the torus.",
        source=_RECIPE,
    ),
    Flag(
        name=f"{_FUSION}all_gather",
        value="false",
        chips=_SPARSE_CHIPS,
        reason="One of the two ways to overlap a gather can be on: here the SparseCore.",
        source=_MAXTEXT,
    ),
    Flag(
        name=f"{_OFFLOAD}reduce_scatter",
        value="true",
        chips=_SPARSE_CHIPS,
        reason=f"{_SPARSE}. Sums of sharded gradients became asynchronous reduce-scatters where "
        "they were all-reduces that send twice as much.",
        source=_MAXTEXT,
    ),
    Flag(
        name=f"{_OFFLOAD}nd_reduce_scatter",
        value="true",
        chips=_SPARSE_CHIPS,
        reason="The same for sums over several axes of the torus, on the links of all of them: one "
        "axis after the other, they take up to twice as long.",
        source=_RECIPE,
    ),
    Flag(
        name=f"{_FUSION}reduce_scatter",
        value="false",
        chips=_SPARSE_CHIPS,
        reason="One of the two ways to overlap a reduce-scatter can be on: here the SparseCore.",
        source=_MAXTEXT,
    ),
    Flag(
        name="xla_tpu_enable_concurrent_sparse_core_offloading",
        value="true",
        chips=_SPARSE_CHIPS,
        reason="Several collectives run at once, each on one of the chip's SparseCores.",
        source=_RECIPE,
    ),
    Flag(
        name="xla_tpu_use_tc_device_shape_on_sc",
        value="true",
        chips=_SPARSE_CHIPS,
        reason="SparseCore programs see the devices in the shape of the TensorCores: the base "
        "setting wherever collectives are moved to them.",
        source=_MAXTEXT,
    ),
    Flag(
        name=f"{_OFFLOAD}all_reduce",
        value="true",
        chips=_SPARSE_CHIPS,
        reason=f"{_SPARSE}. With the gradients of 4 copies on v6e, 89 % of the summed bytes became "
        "asynchronous, and the step took 12 % less by rooflines.",
        source=_MAXTEXT,
    ),
    Flag(
        name="xla_tpu_enable_async_all_to_all",
        value="true",
        reason="Tokens travel to their experts and back, and heads to their chips, while a layer "
        "computes what does not wait for them: a step of fine experts over 16 chips of v5e takes "
        "68 ms by rooflines in place of 74.",
        source=_MAXDIFFUSION,
    ),
    Flag(
        name="xla_tpu_enable_async_collective_fusion_fuse_all_reduce",
        value="true",
        chips=("v5e",),
        reason="All-reduces may overlap with compute; by default only gathers do. The small "
        "training step it was tried on came out the same.",
        source=_GUIDANCE,
    ),
    Flag(
        name="xla_tpu_enable_data_parallel_all_reduce_opt",
        value="true",
        several_slices=True,
        reason="Sums of gradients over DCN overlap with the backward pass.",
        source=_GUIDANCE,
    ),
    Flag(
        name="xla_tpu_data_parallel_opt_different_sized_ops",
        value="true",
        several_slices=True,
        reason="The same across iterations of a scan, where sizes differ; may take memory.",
        source=_GUIDANCE,
    ),
)

# Pipelined collectives are left out: with them a loop over layers needs two to three times the
# memory on GPUs (LLaMA-3-8B over tensor 8 on h100:8: 119 GiB at the peak instead of 53).
_GPU: Final = (
    Flag(
        name="xla_gpu_enable_latency_hiding_scheduler",
        value="true",
        reason="Asynchronous collectives are moved apart from their results, over compute.",
        source=_GUIDANCE,
    ),
)

# Kind of chip -> its options.
FLAGS: Final[dict[str, tuple[Flag, ...]]] = {"tpu": _TPU, "gpu": _GPU}


def flags_for(system: System) -> tuple[XlaFlag, ...]:
    """The compiler options for a machine; none if the list has none for its kind of chip.

    >>> from shardwise.hardware import parse_system
    >>> [flag.name for flag in flags_for(parse_system("v5e:4x4"))]  # doctest: +NORMALIZE_WHITESPACE
    ['xla_tpu_enable_async_all_to_all',
     'xla_tpu_enable_async_collective_fusion_fuse_all_reduce']
    """
    chip = system.chip
    return tuple(
        XlaFlag(name=flag.name, value=flag.value, reason=f"{flag.reason} ({flag.source})")
        for flag in FLAGS.get(chip.kind, ())
        if (not flag.chips or chip.name in flag.chips)
        and (system.n_slices > 1 or not flag.several_slices)
    )
