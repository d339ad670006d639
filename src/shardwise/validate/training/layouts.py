"""Conversion of the parallelism of a training record to a Layout."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from shardwise.errors import BadFile
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from shardwise.validate.records.fields import JsonReader
from shardwise.validate.training.jobs import Origin
from shardwise.validate.training.remat import Remat

# Flag in the `overlap` object of a record -> name in `Layout.overlap`.
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

# Frameworks whose context parallelism is a ring: `cp_comm_type` is "p2p" in Megatron Core. FSDP2's
# and MaxText's gather keys and values.
RING_CONTEXT = ("megatron",)

# Sources whose recipes do not shard single experts: they set expert_tensor_parallel_size to 1.
_UNSHARDED_EXPERTS = ("NVIDIA-NeMo/Megatron-Bridge",)


# Sources that use NeMo or its successors. These overlap by default the ReduceScatters and
# AllGathers of the distributed optimizer, the collectives of tensor parallelism with sequence
# parallelism, and the transfers between interleaved stages (NVIDIA/NeMo,
# MegatronCommOverlapCallback; Megatron-Bridge, CommOverlapConfig). NVIDIA's MLPerf configurations
# set the same (TP_COMM_OVERLAP, OVERLAP_GRAD_REDUCE).
_NEMO_SOURCES = (
    "NVIDIA-NeMo/Megatron-Bridge",
    "NVIDIA-NeMo/NeMo",
    "NVIDIA/NeMo",
    "NVIDIA NeMo",
    "NVIDIA/dgxc-benchmarking",
    "mlcommons/",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _DataRanks:
    """Data parallelism of a record.

    Args:
        data: Number of copies of the weights.
        fsdp: Number of ranks that shard a copy; `data * fsdp` is the number of data ranks.
        zero: ZeRO stage.
    """

    data: int
    fsdp: int
    zero: int


def layout_of(
    record: JsonReader, origin: Origin, remat: Remat, batch: int, n_chips: int
) -> tuple[Layout, dict[str, str]]:
    """Return the layout of a record, and the assumptions about it (item -> assumption).

    The layout counts chips. Where a record counts devices (two per chip on TPU7x), its fsdp degree
    is divided by the devices per chip, or else its data degree.

    Args:
        origin: Source and framework of the record.
        remat: Recomputation and offload of the record.
        batch: Sequences in the global batch.
        n_chips: Number of chips of the machine.

    Raises:
        BadInput: degrees are missing, do not multiply to the number of chips, or do not divide the
            batch.
    """
    parallelism = record.section("parallelism")
    model = record.section("model")
    assumed: dict[str, str] = {}
    per_chip = record.section("hardware").optional_integer("devices_per_chip") or 1
    tensor = parallelism.optional_integer("tp") or 1
    context = parallelism.optional_integer("cp") or 1
    pipe = parallelism.optional_integer("pp") or 1
    ranks = _data_ranks(parallelism, tensor * context * pipe, n_chips * per_chip, assumed)
    ranks = _in_chips(ranks, per_chip)
    n_ranks = ranks.data * ranks.fsdp
    ep = parallelism.optional_integer("ep") or 1
    if model.has("experts") and not parallelism.has("ep") and origin.framework != "jax":
        if dispatcher_of(record):  # tokens are sent to experts on other ranks
            ep = math.gcd(model.integer("experts"), n_ranks)
        assumed["expert"] = f"{ep}, not stated"
    expert, expert_tensor = _experts(parallelism, ep, origin, tensor, n_ranks, assumed)
    micro_batch, n_microbatches = _microbatches(record, origin, batch, n_ranks, assumed)
    virtual = parallelism.optional_integer("vpp") or 1
    schedule = _schedule(record, pipe, virtual)
    data, fsdp = _data_and_fsdp(expert, ranks)
    layout = Layout(
        mesh=Mesh(data=data, fsdp=fsdp, tensor=tensor, context=context, expert=expert, pipe=pipe),
        zero=ranks.zero,
        micro_batch=micro_batch,
        n_microbatches=n_microbatches,
        schedule=schedule,
        virtual=virtual if schedule == "interleaved" else 1,
        context_kind="ring" if origin.framework in RING_CONTEXT else "gather",
        remat_layers=remat.remat_layers,
        recomputed=remat.recomputed,
        sequence_parallel=_sequence_parallel(parallelism, origin, tensor, assumed),
        expert_tensor=expert_tensor,
        offload=remat.offload,
        offload_layers=remat.offload_layers,
    )
    return replace(layout, overlap=_overlap(record, origin, layout)), assumed


def dispatcher_of(record: JsonReader) -> str:
    """Return the library that sends tokens to experts: "deepep", "hybridep", or "" if unknown.

    If the record does not name one, DeepEP is assumed for DeepSeek's framework (arXiv 2412.19437,
    section 3.2.2) and for Megatron-Bridge on H100 (scripts/performance:
    `enable_deepep = gpu in ["h100"]`).
    """
    overlap = record.section("overlap")
    source = record.section("source")
    dispatcher = overlap.text("moe_dispatcher", "").lower()
    if dispatcher:
        return dispatcher
    is_bridge = source.text("repo", "").startswith("NVIDIA-NeMo/Megatron-Bridge")
    uses_deepep = (
        "DeepEP" in overlap.text("kernels", "")
        or (is_bridge and record.section("hardware").text("family", "") == "H100")
        or source.text("paper", "").startswith("DeepSeek")
    )
    return "deepep" if uses_deepep else ""


def _data_ranks(
    parallelism: JsonReader, inner: int, devices: int, assumed: dict[str, str]
) -> _DataRanks:
    """Return the data parallelism of a record.

    In records of GPUs, dp is the number of all data ranks, including those of fsdp. In records of
    TPUs, the number of data ranks is dp times fsdp, times the number of slices (dcn_dp) if dp does
    not include it.

    Args:
        parallelism: Degrees that the record states.
        inner: Devices of one data rank, tp x cp x pp.
        devices: Devices of the machine.
        assumed: Receives the assumptions.

    Raises:
        BadFile: dp and fsdp are missing, or the degrees do not multiply to `devices`.
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
            return _DataRanks(data=n_ranks, fsdp=1, zero=stage)
        if dp == n_ranks and fsdp == 1:
            return _DataRanks(data=1, fsdp=n_ranks, zero=stage)
        if dp == n_ranks and n_ranks % fsdp == 0:
            return _DataRanks(data=n_ranks // fsdp, fsdp=fsdp, zero=stage)
        for data in ((dp or 1), (dp or 1) * n_slices):
            if data * fsdp == n_ranks:
                return _DataRanks(data=data, fsdp=fsdp, zero=stage)
    raise BadFile(_mismatch_message(parallelism, inner, devices))


def _mismatch_message(parallelism: JsonReader, inner: int, devices: int) -> str:
    """Error message for degrees that do not multiply to the number of devices."""
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


def _in_chips(ranks: _DataRanks, per_chip: int) -> _DataRanks:
    """Convert degrees that count devices to degrees that count chips."""
    if ranks.fsdp % per_chip == 0:
        return _DataRanks(data=ranks.data, fsdp=ranks.fsdp // per_chip, zero=ranks.zero)
    if ranks.data % per_chip == 0:
        return _DataRanks(data=ranks.data // per_chip, fsdp=ranks.fsdp, zero=ranks.zero)
    raise BadFile(
        f"layout contradicts the chips: {per_chip} devices of a chip do not divide data "
        f"{ranks.data} or fsdp {ranks.fsdp}."
    )


def _data_and_fsdp(expert: int, ranks: _DataRanks) -> tuple[int, int]:
    """Return the `data` and `fsdp` sizes of the mesh when `expert` has an axis of its own.

    Expert parallelism takes its ranks from `fsdp` first, then from `data`.
    """
    from_fsdp = math.gcd(expert, ranks.fsdp)
    return ranks.data // (expert // from_fsdp), ranks.fsdp // from_fsdp


def _experts(
    parallelism: JsonReader,
    ep: int,
    origin: Origin,
    tensor: int,
    n_ranks: int,
    assumed: dict[str, str],
) -> tuple[int, int | None]:
    """Return the `expert` size of the mesh, and the tensor degree of experts if not `tensor`."""
    expert_tensor = parallelism.optional_integer("etp")
    if ep == 1:
        return 1, None
    if expert_tensor is None and tensor > 1:
        unsharded = origin.source.startswith(_UNSHARDED_EXPERTS) or n_ranks % ep != 0
        expert_tensor = 1 if unsharded else tensor
        assumed["expert_tensor"] = f"{expert_tensor}, not stated"
    expert_tensor = expert_tensor or tensor
    expert, remainder = divmod(ep * expert_tensor, tensor)
    if remainder or expert < 1 or n_ranks % expert:
        raise BadFile(
            f"layout contradicts the chips: ep {ep} with experts split {expert_tensor} ways does "
            f"not fit tp {tensor} x {n_ranks} data ranks."
        )
    return expert, None if expert_tensor == tensor else expert_tensor


def _microbatches(
    record: JsonReader, origin: Origin, batch: int, n_ranks: int, assumed: dict[str, str]
) -> tuple[int, int]:
    """Return the sequences per microbatch and the microbatches per step of one data rank."""
    per_rank, remainder = divmod(batch, n_ranks)
    if remainder:
        raise BadFile(f"batch does not divide: {batch:,} sequences over {n_ranks:,} data ranks.")
    count = record.optional_integer("grad_accumulation") or record.optional_integer(
        "n_microbatches"
    )
    micro_batch = record.optional_number("micro_batch")
    if origin.framework == "jax":  # micro_batch is the batch per device; few runs accumulate
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


def _schedule(record: JsonReader, pipe: int, virtual: int) -> str:
    if pipe == 1:
        return "none"
    schedule = record.section("overlap").text("schedule", "").lower()
    if schedule:
        return schedule
    return "interleaved" if virtual > 1 else "1f1b"


def _sequence_parallel(
    parallelism: JsonReader, origin: Origin, tensor: int, assumed: dict[str, str]
) -> bool:
    if tensor == 1 or parallelism.has("sp"):
        return parallelism.flag("sp") and tensor > 1
    if origin.framework == "jax":
        assumed["sequence_parallel"] = "on: MaxText's rules shard activation_embed over tensor"
        return True
    assumed["sequence_parallel"] = "off, not stated"
    return False


def _overlap(record: JsonReader, origin: Origin, layout: Layout) -> tuple[str, ...]:
    """Return the communication that overlaps with compute, as stated or by framework default."""
    section = record.section("overlap")
    stated = set()
    names = []
    for flag, name in _OVERLAPS.items():
        if section.has(flag):
            stated.add(name)
        if section.flag(flag):
            names.append(name)
    if origin.source.startswith(_NEMO_SOURCES):
        defaults = {
            "grad_reduce": layout.zero == 1,
            "param_gather": layout.zero == 1,
            "tp_comm": layout.sequence_parallel,
            "pipe_p2p": layout.virtual > 1,
        }
        names += [name for name, on in defaults.items() if on and name not in stated]
    if origin.framework == "fsdp" and layout.zero == 3:
        names.append("grad_reduce")  # FSDP starts it in the backward pass of each layer
    return tuple(dict.fromkeys(names))
