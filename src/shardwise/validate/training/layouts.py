"""The parallelism of a training record as a Layout, in chips."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from shardwise.errors import BadFile
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from shardwise.validate.records.fields import Fields
from shardwise.validate.training.jobs import Origin
from shardwise.validate.training.remat import Remat

# Overlap flag of a record -> name in `Layout.overlap`.
_OVERLAPS = {
    "overlap_grad_reduce": "grad_reduce",
    "overlap_grad_sync": "grad_reduce",
    "overlap_param_gather": "param_gather",
    "overlap_param_sync": "param_gather",
    "fsdp_prefetch": "param_gather",
    "tp_comm_overlap": "tp_comm",
    "tp_overlap_default": "tp_comm",
    "async_tp": "tp_comm",
    "p2p_overlap": "pipe_p2p",
    "moe_a2a_overlap": "expert_all_to_all",
}

# Sources whose mixture-of-experts recipes set expert_tensor_parallel_size to 1.
_WHOLE_EXPERTS = ("NVIDIA-NeMo/Megatron-Bridge",)


# NeMo and its successors overlap by default: reduce-scatters and all-gathers of the distributed
# optimizer, tensor parallelism with sequence parallelism, and transfers between interleaved stages.
# Source: NVIDIA/NeMo, MegatronCommOverlapCallback; Megatron-Bridge, CommOverlapConfig;
# NVIDIA's MLPerf configurations set the same (TP_COMM_OVERLAP, OVERLAP_GRAD_REDUCE).
_NEMO = (
    "NVIDIA-NeMo/Megatron-Bridge",
    "NVIDIA-NeMo/NeMo",
    "NVIDIA/NeMo",
    "NVIDIA NeMo",
    "NVIDIA/dgxc-benchmarking",
    "mlcommons/",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shards:
    """Data ranks that replicate weights (`data`) or shard them (`fsdp`), and the ZeRO stage."""

    data: int
    fsdp: int
    zero: int


def layout_of(
    record: Fields, origin: Origin, remat: Remat, batch: int, n_chips: int
) -> tuple[Layout, dict[str, str]]:
    """The layout of a record, and the assumptions about it.

    Degrees that count devices (two per chip on TPU7x) are converted to chips, fsdp first.

    Args:
        record: The record.
        origin: Its source and framework.
        remat: Recomputation and offload of the record.
        batch: Sequences in the global batch.
        n_chips: Number of chips of the machine.

    Raises:
        BadInput: degrees are missing, contradict the chips, or do not divide the batch.
    """
    parallelism = record.inner("parallelism")
    model = record.inner("model")
    assumed: dict[str, str] = {}
    per_chip = record.inner("hardware").optional_integer("devices_per_chip") or 1
    tensor = parallelism.optional_integer("tp") or 1
    context = parallelism.optional_integer("cp") or 1
    pipe = parallelism.optional_integer("pp") or 1
    shards = _shards(parallelism, tensor * context * pipe, n_chips * per_chip, assumed)
    shards = _in_chips(shards, per_chip)
    n_ranks = shards.data * shards.fsdp
    ep = parallelism.optional_integer("ep") or 1
    if model.has("experts") and not parallelism.has("ep") and origin.framework != "jax":
        if dispatcher_of(record):  # a dispatcher implies experts on other ranks
            ep = math.gcd(model.integer("experts"), n_ranks)
        assumed["expert"] = f"{ep}, not stated"
    expert, expert_tensor = _experts(parallelism, ep, origin, tensor, n_ranks, assumed)
    micro_batch, n_microbatches = _batches(record, origin, batch, n_ranks, assumed)
    virtual = parallelism.optional_integer("vpp") or 1
    schedule = _schedule(record, pipe, virtual)
    data, fsdp = _without_experts(expert, shards)
    layout = Layout(
        mesh=Mesh(data=data, fsdp=fsdp, tensor=tensor, context=context, expert=expert, pipe=pipe),
        zero=shards.zero,
        micro_batch=micro_batch,
        n_microbatches=n_microbatches,
        schedule=schedule,
        virtual=virtual if schedule == "interleaved" else 1,
        remat_layers=remat.remat_layers,
        recomputed=remat.recomputed,
        sequence_parallel=_sequence_parallel(parallelism, origin, tensor, assumed),
        expert_tensor=expert_tensor,
        offload=remat.offload,
        offload_layers=remat.offload_layers,
    )
    return replace(layout, overlap=_overlap(record, origin, layout)), assumed


def dispatcher_of(record: Fields) -> str:
    """The library that sends tokens to experts: "deepep", "hybridep", or "" if not known.

    DeepSeek's framework uses DeepEP (arXiv 2412.19437, section 3.2.2), as do NVIDIA's
    recipes on H100 (Megatron-Bridge, scripts/performance: `enable_deepep = gpu in ["h100"]`).
    """
    overlap = record.inner("overlap")
    source = record.inner("source")
    dispatcher = overlap.text("moe_dispatcher", "").lower()
    if dispatcher:
        return dispatcher
    is_bridge = source.text("repo", "").startswith("NVIDIA-NeMo/Megatron-Bridge")
    uses_deepep = (
        "DeepEP" in overlap.text("kernels", "")
        or (is_bridge and record.inner("hardware").text("family", "") == "H100")
        or source.text("paper", "").startswith("DeepSeek")
    )
    return "deepep" if uses_deepep else ""


def _shards(parallelism: Fields, inner: int, devices: int, assumed: dict[str, str]) -> _Shards:
    """Divide the data ranks into those that replicate weights and those that shard them.

    GPU sources count all data ranks as dp, including fsdp; TPU sources multiply the two, and state
    the axis between slices (dcn_dp) separately. `inner` is tp x cp x pp.
    """
    stage = parallelism.optional_integer("zero_stage", 0)
    dp = parallelism.optional_integer("dp")
    fsdp = parallelism.optional_integer("fsdp")
    if dp is None and fsdp is None:
        raise BadFile("layout not published: neither dp nor fsdp is stated.")
    fsdp = (fsdp or 1) * (parallelism.optional_integer("fsdp_transpose") or 1)
    n_slices = parallelism.optional_integer("dcn_dp") or 1
    if stage is None:
        stage = 3 if fsdp > 1 else 0
        assumed["zero_stage"] = "3, weights are sharded" if fsdp > 1 else "0, not stated"
    n_ranks, remainder = divmod(devices, inner)
    if remainder == 0:
        if (dp or 1) == n_ranks and stage != 3:
            return _Shards(data=n_ranks, fsdp=1, zero=stage)
        if dp == n_ranks and fsdp == 1:
            return _Shards(data=1, fsdp=n_ranks, zero=stage)
        if dp == n_ranks and n_ranks % fsdp == 0:
            return _Shards(data=n_ranks // fsdp, fsdp=fsdp, zero=stage)
        for data in ((dp or 1), (dp or 1) * n_slices):
            if data * fsdp == n_ranks:
                return _Shards(data=data, fsdp=fsdp, zero=stage)
    raise BadFile(_mismatch(parallelism, inner, devices))


def _mismatch(parallelism: Fields, inner: int, devices: int) -> str:
    stated = []
    for name in ("dp", "fsdp", "fsdp_transpose", "dcn_dp", "tp", "cp", "pp"):
        degree = parallelism.optional_integer(name)
        if degree:
            stated.append(f"{name} {degree}")
    degrees = ", ".join(stated)
    missing = [name for name in ("tp", "cp", "pp") if not parallelism.has(name)]
    if missing:
        return (
            f"layout not published: {', '.join(missing)} are not stated, and {degrees} does not "
            f"make {devices:,} chips."
        )
    return f"layout contradicts the chips: {degrees} (x{inner} inside) is not {devices:,}."


def _in_chips(shards: _Shards, per_chip: int) -> _Shards:
    if shards.fsdp % per_chip == 0:
        return _Shards(data=shards.data, fsdp=shards.fsdp // per_chip, zero=shards.zero)
    if shards.data % per_chip == 0:
        return _Shards(data=shards.data // per_chip, fsdp=shards.fsdp, zero=shards.zero)
    raise BadFile(
        f"layout contradicts the chips: {per_chip} devices of a chip do not divide data "
        f"{shards.data} or fsdp {shards.fsdp}."
    )


def _without_experts(expert: int, shards: _Shards) -> tuple[int, int]:
    """The data and fsdp ranks besides expert parallelism, which takes fsdp ranks first."""
    from_fsdp = math.gcd(expert, shards.fsdp)
    return shards.data // (expert // from_fsdp), shards.fsdp // from_fsdp


def _experts(
    parallelism: Fields, ep: int, origin: Origin, tensor: int, n_ranks: int, assumed: dict[str, str]
) -> tuple[int, int | None]:
    """The `expert` size of the mesh, and the tensor degree of one expert if it is not `tensor`."""
    expert_tensor = parallelism.optional_integer("etp")
    if ep == 1:
        return 1, None
    if expert_tensor is None and tensor > 1:
        whole = origin.source.startswith(_WHOLE_EXPERTS) or n_ranks % ep != 0
        expert_tensor = 1 if whole else tensor
        assumed["expert_tensor"] = f"{expert_tensor}, not stated"
    expert_tensor = expert_tensor or tensor
    expert, remainder = divmod(ep * expert_tensor, tensor)
    if remainder or expert < 1 or n_ranks % expert:
        raise BadFile(
            f"layout contradicts the chips: ep {ep} with experts split {expert_tensor} ways does "
            f"not fit tp {tensor} x {n_ranks} data ranks."
        )
    return expert, None if expert_tensor == tensor else expert_tensor


def _batches(
    record: Fields, origin: Origin, batch: int, n_ranks: int, assumed: dict[str, str]
) -> tuple[int, int]:
    """Sequences per microbatch and microbatches per step, on one data rank."""
    per_rank, remainder = divmod(batch, n_ranks)
    if remainder:
        raise BadFile(f"batch does not divide: {batch:,} sequences over {n_ranks:,} data ranks.")
    count = record.optional_integer("grad_accumulation") or record.optional_integer(
        "n_microbatches"
    )
    micro_batch = record.optional_number("micro_batch")
    if origin.framework == "jax":  # micro_batch is per device; only some runs accumulate
        count = count or 1
    elif micro_batch is not None:
        count, remainder = divmod(per_rank, record.integer("micro_batch"))
        if remainder or not count:
            raise BadFile(
                f"batch does not divide: {per_rank} sequences of a data rank in microbatches of "
                f"{micro_batch:g}."
            )
    elif count is None:
        assumed["micro_batch"] = "1, not stated"
        count = per_rank
    if per_rank % count:
        raise BadFile(f"batch does not divide: {per_rank} sequences of a data rank, {count} times.")
    return per_rank // count, count


def _schedule(record: Fields, pipe: int, virtual: int) -> str:
    if pipe == 1:
        return "none"
    schedule = record.inner("overlap").text("schedule", "").lower()
    if schedule:
        return schedule
    return "interleaved" if virtual > 1 else "1f1b"


def _sequence_parallel(
    parallelism: Fields, origin: Origin, tensor: int, assumed: dict[str, str]
) -> bool:
    if tensor == 1 or parallelism.has("sp"):
        return parallelism.flag("sp") and tensor > 1
    if origin.framework == "jax":
        assumed["sequence_parallel"] = "on: MaxText's rules shard activation_embed over tensor"
        return True
    assumed["sequence_parallel"] = "off, not stated"
    return False


def _overlap(record: Fields, origin: Origin, layout: Layout) -> tuple[str, ...]:
    """The communication that overlaps with compute: as stated, or by default of the framework."""
    section = record.inner("overlap")
    stated = set()
    names = []
    for flag, name in _OVERLAPS.items():
        if section.has(flag):
            stated.add(name)
        if section.flag(flag):
            names.append(name)
    if origin.source.startswith(_NEMO):
        defaults = {
            "grad_reduce": layout.zero == 1,
            "param_gather": layout.zero == 1,
            "tp_comm": layout.sequence_parallel,
            "pipe_p2p": layout.virtual > 1,
        }
        names += [name for name, on in defaults.items() if on and name not in stated]
    if origin.framework == "fsdp" and layout.zero == 3:
        names.append("grad_reduce")  # a hook of each layer starts it
    return tuple(dict.fromkeys(names))
