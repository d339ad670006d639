"""The parallelism that a record states -> Layout, in chips and by our roles of mesh axes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from shardwise.errors import BadFile
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from shardwise.validate.records.fields import Fields
from shardwise.validate.training.jobs import Origin
from shardwise.validate.training.remat import Remat

# Communication that records say is hidden -> our names.
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


# NeMo, its recipes and what grew out of them overlap by default: data-parallel sums and gathers of
# the distributed optimizer, tensor parallelism with sequence parallelism, and what interleaved
# stages send. Source: NVIDIA/NeMo, MegatronCommOverlapCallback; Megatron-Bridge, CommOverlapConfig;
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
    """Data ranks that hold whole weights, those that shard them, and the stage of ZeRO."""

    data: int
    fsdp: int
    zero: int


def layout_of(
    record: Fields, origin: Origin, remat: Remat, batch: int, n_chips: int
) -> tuple[Layout, dict[str, str]]:
    """The layout of a record, and what was assumed about it.

    Degrees that count the devices of a chip (two on TPU7x) are halved to chips, fsdp first.

    Args:
        record: The record.
        origin: Its source and framework.
        remat: What `remat_of` read.
        batch: Sequences of the global batch.
        n_chips: Chips of the machine.

    Raises:
        BadInput: degrees that are missing, contradict the chips, or do not divide the batch.
    """
    par, assumed = record.inner("parallelism"), dict[str, str]()
    per_chip = record.inner("hardware").maybe_whole("devices_per_chip") or 1
    tensor, context, pipe = (par.maybe_whole(name) or 1 for name in ("tp", "cp", "pp"))
    shards = _shards(par, tensor * context * pipe, n_chips * per_chip, assumed)
    shards = _in_chips(shards, per_chip)
    routed = record.inner("model").states("experts")
    ranks, degree = shards.data * shards.fsdp, par.maybe_whole("ep") or 1
    if routed and not par.states("ep") and origin.framework != "jax":
        if dispatcher_of(record):  # it has no use but to send tokens to experts on other ranks
            degree = math.gcd(record.inner("model").whole("experts"), ranks)
        assumed["expert"] = f"{degree}, not stated"
    expert, expert_tensor = _experts(par, degree, origin, tensor, ranks, assumed)
    micro, n_micro = _batches(record, origin, batch, shards.data * shards.fsdp, assumed)
    virtual = par.maybe_whole("vpp") or 1
    schedule = _schedule(record, pipe, virtual)
    data, fsdp = _without(expert, shards)
    layout = Layout(
        mesh=Mesh(data=data, fsdp=fsdp, tensor=tensor, context=context, expert=expert, pipe=pipe),
        zero=shards.zero,
        micro_batch=micro,
        n_microbatches=n_micro,
        schedule=schedule,
        virtual=virtual if schedule == "interleaved" else 1,
        remat_layers=remat.remat_layers,
        recomputed=remat.recomputed,
        sequence_parallel=_sequence_parallel(par, origin, tensor, assumed),
        expert_tensor=expert_tensor,
        offload=remat.offload,
        offload_layers=remat.offload_layers,
    )
    return replace(layout, overlap=_overlap(record, origin, layout)), assumed


def dispatcher_of(record: Fields) -> str:
    """What sends tokens to experts: "deepep", "hybridep", or "" where nothing is known.

    DeepSeek's own framework sends through DeepEP (arXiv 2412.19437, section 3.2.2), as do NVIDIA's
    recipes on H100 (Megatron-Bridge, scripts/performance: `enable_deepep = gpu in ["h100"]`).
    """
    stated, source = record.inner("overlap"), record.inner("source")
    named = stated.text("moe_dispatcher", "").lower()
    if named or "DeepEP" in stated.text("kernels", ""):
        return named or "deepep"
    bridge = source.text("repo", "").startswith("NVIDIA-NeMo/Megatron-Bridge")
    on_hopper = bridge and record.inner("hardware").text("family", "") == "H100"
    return "deepep" if on_hopper or source.text("paper", "").startswith("DeepSeek") else ""


def _shards(par: Fields, inner: int, devices: int, assumed: dict[str, str]) -> _Shards:
    """Split the data ranks into those with whole weights and those that shard them.

    GPU sources count all data ranks as dp, with fsdp among them; TPU sources multiply the two,
    and name the axis between slices beside them.
    """
    stage = par.maybe_whole("zero_stage", 0)
    dp, fsdp = par.maybe_whole("dp"), par.maybe_whole("fsdp")
    across = par.maybe_whole("dcn_dp") or 1
    fsdp_all = (fsdp or 1) * (par.maybe_whole("fsdp_transpose") or 1)
    if dp is None and fsdp is None:
        raise BadFile("layout not published: neither dp nor fsdp is stated.")
    total, rest = divmod(devices, inner)
    if stage is None:
        assumed["zero_stage"] = "3, weights are sharded" if fsdp_all > 1 else "0, not stated"
    zero = (3 if fsdp_all > 1 else 0) if stage is None else stage
    if rest == 0:
        if (dp or 1) == total and zero != 3:
            return _Shards(data=total, fsdp=1, zero=zero)
        if dp == total and fsdp_all == 1:
            return _Shards(data=1, fsdp=total, zero=zero)
        if dp == total and total % fsdp_all == 0:
            return _Shards(data=total // fsdp_all, fsdp=fsdp_all, zero=zero)
        for data in ((dp or 1), (dp or 1) * across):
            if data * fsdp_all == total:
                return _Shards(data=data, fsdp=fsdp_all, zero=zero)
    raise BadFile(_mismatch(par, inner, devices))


def _mismatch(par: Fields, inner: int, devices: int) -> str:
    degrees = {n: par.maybe_whole(n) for n in ("dp", "fsdp", "fsdp_transpose", "dcn_dp")}
    degrees |= {n: par.maybe_whole(n) for n in ("tp", "cp", "pp")}
    given = ", ".join(f"{name} {n}" for name, n in degrees.items() if n)
    missing = [name for name in ("tp", "cp", "pp") if degrees[name] is None]
    if missing:
        return (
            f"layout not published: {', '.join(missing)} are not stated, and {given} does not "
            f"make {devices:,} chips."
        )
    return f"layout contradicts the chips: {given} (x{inner} inside) is not {devices:,}."


def _in_chips(shards: _Shards, per_chip: int) -> _Shards:
    if shards.fsdp % per_chip == 0:
        return _Shards(data=shards.data, fsdp=shards.fsdp // per_chip, zero=shards.zero)
    if shards.data % per_chip == 0:
        return _Shards(data=shards.data // per_chip, fsdp=shards.fsdp, zero=shards.zero)
    raise BadFile(
        f"layout contradicts the chips: {per_chip} devices of a chip do not divide data "
        f"{shards.data} or fsdp {shards.fsdp}."
    )


def _without(expert: int, shards: _Shards) -> tuple[int, int]:
    """Data ranks left when experts have taken theirs, from those that shard weights first."""
    taken = math.gcd(expert, shards.fsdp)
    return shards.data // (expert // taken), shards.fsdp // taken


def _experts(
    par: Fields, degree: int, origin: Origin, tensor: int, ranks: int, assumed: dict[str, str]
) -> tuple[int, int | None]:
    """The share of the data ranks that experts take, and the ways one expert is split."""
    split = par.maybe_whole("etp")
    if degree == 1:
        return 1, None
    if split is None and tensor > 1:
        whole = origin.source.startswith(_WHOLE_EXPERTS) or ranks % degree != 0
        split = 1 if whole else tensor
        assumed["expert_tensor"] = f"{split}, not stated"
    split = split or tensor
    share, rest = divmod(degree * split, tensor)
    if rest or share < 1 or ranks % share:
        raise BadFile(
            f"layout contradicts the chips: ep {degree} with experts split {split} ways does not "
            f"fit tp {tensor} x {ranks} data ranks."
        )
    return share, None if split == tensor else split


def _batches(
    record: Fields, origin: Origin, batch: int, ranks: int, assumed: dict[str, str]
) -> tuple[int, int]:
    """Sequences of one microbatch and microbatches of one step, on one data rank."""
    each, rest = divmod(batch, ranks)
    if rest:
        raise BadFile(f"batch does not divide: {batch:,} sequences over {ranks:,} data ranks.")
    count = record.maybe_whole("grad_accumulation") or record.maybe_whole("n_microbatches")
    micro = record.maybe_number("micro_batch")
    if origin.framework == "jax":  # micro_batch is per device; only some runs accumulate
        count = count or 1
    elif micro is not None:
        count, rest = divmod(each, record.whole("micro_batch"))
        if rest or not count:
            raise BadFile(
                f"batch does not divide: {each} sequences of a data rank in microbatches of "
                f"{micro:g}."
            )
    elif count is None:
        assumed["micro_batch"] = "1, not stated"
        count = each
    if each % count:
        raise BadFile(f"batch does not divide: {each} sequences of a data rank, {count} times.")
    return each // count, count


def _schedule(record: Fields, pipe: int, virtual: int) -> str:
    if pipe == 1:
        return "none"
    named = record.inner("overlap").text("schedule", "").lower()
    if named:
        return named
    return "interleaved" if virtual > 1 else "1f1b"


def _sequence_parallel(par: Fields, origin: Origin, tensor: int, assumed: dict[str, str]) -> bool:
    if tensor == 1 or par.states("sp"):
        return par.flag("sp") and tensor > 1
    if origin.framework == "jax":
        assumed["sequence_parallel"] = "on: MaxText's rules shard activation_embed over tensor"
        return True
    assumed["sequence_parallel"] = "off, not stated"
    return False


def _overlap(record: Fields, origin: Origin, layout: Layout) -> tuple[str, ...]:
    """Communication that is hidden: as stated, else as the framework does it by default."""
    stated = record.inner("overlap")
    told = {ours for theirs, ours in _OVERLAPS.items() if stated.states(theirs)}
    names = [ours for theirs, ours in _OVERLAPS.items() if stated.flag(theirs)]
    if origin.source.startswith(_NEMO):
        by_default = {
            "grad_reduce": layout.zero == 1,
            "param_gather": layout.zero == 1,
            "tp_comm": layout.sequence_parallel,
            "pipe_p2p": layout.virtual > 1,
        }
        names += [name for name, on in by_default.items() if on and name not in told]
    if origin.framework == "fsdp" and layout.zero == 3:
        names.append("grad_reduce")  # of each layer when its gradients are there, by a hook
    return tuple(dict.fromkeys(names))
