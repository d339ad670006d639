"""Layouts in the terms of Megatron Core, which Megatron-LM, Megatron Bridge and NeMo share.

The keys are the field names of Megatron Core 0.16 (`ModelParallelConfig`, `TransformerConfig`,
`DistributedDataParallelConfig`); each framework has its own names for them. World size counts all
GPUs: data parallelism is what the other sizes leave over. Experts are shared by
`expert_model_parallel_size` ranks of data, context and tensor parallelism.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from shardwise import units
from shardwise.errors import BadFile
from shardwise.frameworks import (
    megatron_graphs,
    megatron_overlap,
    megatron_recompute,
    megatron_stages,
)
from shardwise.frameworks.exported import TrainingRun, check_runs, no_number, number
from shardwise.frameworks.launch import TrainingLaunch

CP_COMM = {"ring": "p2p", "gather": "all_gather", "ulysses": "a2a"}
# ZeRO stage -> sharding strategy of Megatron FSDP, which stages 2 and 3 need.
SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
# Dtypes of Megatron FSDP -> field of `Train`.
_FSDP_DTYPES = {
    "megatron_fsdp_main_grads_dtype": "gradients",
    "megatron_fsdp_grad_comm_dtype": "reduce",
}


def write(
    run: TrainingRun, framework: str, *, over_recipe: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """The values of Megatron Core's fields for a plan, without those at their default, and notes.

    Args:
        over_recipe: whether they override a recipe, which may switch on what the plan has not.

    Raises:
        BadInput: Megatron Core lacks something of the plan.
    """
    layout = run.layout
    mesh = layout.mesh
    check_runs(run, framework)
    values: dict[str, Any] = {
        "tensor_model_parallel_size": mesh.tensor,
        "pipeline_model_parallel_size": mesh.pipe,
        "context_parallel_size": mesh.context,
        "sequence_parallel": layout.sequence_parallel or (run.is_moe and mesh.tensor > 1),
        "micro_batch_size": layout.micro_batch,
        "global_batch_size": run.job.batch,
        "seq_length": run.job.seq,
    }
    values |= megatron_stages.write(run)
    if mesh.context > 1:
        values["cp_comm_type"] = CP_COMM[layout.context_kind]
    if run.is_moe:
        values["expert_model_parallel_size"] = layout.expert_degree
        values["expert_tensor_parallel_size"] = run.expert_tensor
        values["moe_token_dispatcher_type"] = "alltoall"
    overlaps, overlap_notes = megatron_overlap.write(run)
    values |= overlaps
    values |= megatron_graphs.write(run.job.kernels)
    if run.job.mtp_layers:
        values[megatron_stages.MTP] = run.job.mtp_layers
    values |= _sharding(run)
    recompute, notes = megatron_recompute.write(run)
    off = ("use_distributed_optimizer", *megatron_stages.ENDS) if over_recipe else ()
    if over_recipe and run.is_moe:
        off = (*off, "moe_enable_deepep")  # which needs another dispatcher
    values |= recompute
    values |= {name: False for name in off if name not in values}
    return values, [*notes, *overlap_notes, *unsaid(run, names_mtp=True)]


def unsaid(
    run: TrainingRun, offloads: Collection[str] = (), *, names_mtp: bool = False
) -> list[str]:
    """Notes about parts of a plan that no framework's layout options name.

    Args:
        offloads: arrays whose offload the framework's options do name.
        names_mtp: whether they name layers of multi-token prediction.
    """
    layout = run.layout
    notes = []
    if offload := [array for array in layout.offload if array not in offloads]:
        notes.append(f"offload to host memory of the plan: {', '.join(offload)}.")
    notes += megatron_stages.notes(run)
    if run.job.mtp_layers and not names_mtp:
        notes.append(f"multi-token prediction of the plan: --mtp {run.job.mtp_layers}.")
    if layout.loss_chunks > 1:
        notes.append(f"the plan computes logits in {layout.loss_chunks} chunks of tokens.")
    if run.job.optimizer != "adamw":
        notes.append(f"optimizer of the plan: {run.job.optimizer}.")
    if run.job.reduce and run.job.reduce != run.job.gradients:
        notes.append(f"the plan sums gradients in {run.job.reduce}.")
    return notes


def _sharding(run: TrainingRun) -> dict[str, Any]:
    layout = run.layout
    if layout.zero == 0 or layout.data_shards * layout.mesh.context == 1:
        return {}
    values: dict[str, Any] = {
        "use_distributed_optimizer": True,
        "overlap_grad_reduce": True,
        "overlap_param_gather": True,
    }
    if layout.zero in SHARDING:
        values["use_megatron_fsdp"] = True
        values["data_parallel_sharding_strategy"] = SHARDING[layout.zero]
    if layout.zero == 3 and layout.mesh.data > 1:
        values["num_distributed_optimizer_instances"] = layout.mesh.data
    return values


def read(
    values: Mapping[str, Any],
    framework: str,
    n_chips: int | None,
    extra_notes: Sequence[str] = (),
    **others: Any,
) -> TrainingLaunch:
    """Read a layout from the values of Megatron Core's fields.

    Args:
        n_chips: GPUs of the run; None if the file does not say.
        extra_notes: notes of the launch beside those on Megatron Core's fields.
        others: further fields of the launch.

    Raises:
        BadFile: a value is no size, or the sizes contradict one another.
    """
    sizes = {name: _size(values, name, framework) for name in _SIZES}
    tensor = sizes["tensor_model_parallel_size"]
    degree = sizes["expert_model_parallel_size"]
    expert_tensor = None
    if values.get("expert_tensor_parallel_size") is not None:
        expert_tensor = _size(values, "expert_tensor_parallel_size", framework)
    mesh = {
        "tensor": tensor,
        "pipe": sizes["pipeline_model_parallel_size"],
        "context": sizes["context_parallel_size"],
        "expert": expert_axis(degree, expert_tensor or tensor, tensor, framework),
    }
    zero = 1 if values.get("use_distributed_optimizer") else 0
    strategy = values.get("data_parallel_sharding_strategy")
    if values.get("use_megatron_fsdp") or values.get("use_custom_fsdp"):
        zero = {"optim": 1, "optim_grads": 2, "optim_grads_params": 3}.get(str(strategy), zero)
    if zero == 3:
        mesh["data"] = sizes["num_distributed_optimizer_instances"]
    micro_batch, batch, seq = (
        number(values, name, None, framework)
        for name in ("micro_batch_size", "global_batch_size", "seq_length")
    )
    virtual, layers = (
        _size(values, name, framework) if values.get(name) is not None else None
        for name in (
            "virtual_pipeline_model_parallel_size",
            "num_layers_per_virtual_pipeline_stage",
        )
    )
    ends = sum(values.get(name) is True for name in megatron_stages.ENDS)
    notes: list[str] = []
    if written_out := values.get(megatron_stages.LAYOUT):
        layers = None
        virtual, notes = megatron_stages.read(written_out, mesh["pipe"])
    has_sequences = values.get("sequence_parallel", framework != "megatron")
    if str(has_sequences).lower() == "false":
        notes += without_sequences(tensor)
    instances = sizes["num_distributed_optimizer_instances"]
    if zero in (1, 2) and instances > 1:
        notes.append(copies_of_state("num_distributed_optimizer_instances", instances))
    dispatcher = values.get("moe_token_dispatcher_type", "alltoall")
    if dispatcher != "alltoall" and degree > 1:
        notes.append(
            f"token dispatcher {dispatcher}: tokens are planned to reach their experts by an "
            "AllToAll of the network, and export writes alltoall."
        )
    expert_ranks = degree * (expert_tensor or tensor)
    if expert_ranks < tensor:
        notes.append(
            f"the experts are shared by {expert_ranks} ranks, and each group of {tensor} tensor "
            f"ranks has {tensor // expert_ranks} copies; the plan shares them among all {tensor}, "
            "which takes less memory than the run needs."
        )
    dtypes, dtype_notes = _dtypes(values)
    comm_type = str(values.get("cp_comm_type", "p2p"))
    if mesh["context"] > 1 and comm_type not in CP_COMM.values():
        notes.append(f"cp_comm_type {comm_type}: planned as ring attention.")
    comm = {word: kind for kind, word in CP_COMM.items()}.get(comm_type)
    return TrainingLaunch(
        sizes=mesh,
        fill="fsdp" if zero == 3 else "data",
        n_chips=n_chips,
        batch=batch,
        micro_batch=micro_batch,
        seq=seq,
        zero=zero,
        schedule="interleaved" if virtual or layers else "1f1b",
        virtual=virtual,
        chunks=functools.partial(_chunks, layers, ends) if layers else None,
        context_kind=comm or "ring",
        expert_tensor=expert_tensor if expert_tensor != tensor else None,
        overlap=megatron_overlap.read(values, tensor=tensor, degree=degree),
        kernels=megatron_graphs.read(values),
        mtp_layers=number(
            values, megatron_stages.MTP, megatron_stages.mtp_layers(written_out), framework
        ),
        dtypes=dtypes,
        notes=(*notes, *dtype_notes, *megatron_recompute.notes(values), *extra_notes),
        **megatron_recompute.read(values),
        **others,
    )


def _chunks(layers: int, ends: int, n_layers: int, n_stages: int) -> int:
    """Chunks of a stage, of so many layers each; 1, as with all of its layers, is plain 1F1B.

    `validate_args` of Megatron-LM then leaves the schedule without chunks.

    Args:
        ends: layers that the embedding and the head count as.
    """
    return max(1, (n_layers + ends) // (n_stages * layers))


def _dtypes(values: Mapping[str, Any]) -> tuple[dict[str, str | None], list[str]]:
    """Dtypes of gradients and optimizer state beside those of fp32-master, and notes."""
    dtypes: dict[str, str | None] = {}
    if values.get("grad_reduce_in_bf16") or values.get("grad_reduce_in_fp32") is False:
        dtypes["gradients"] = "bf16"
    if values.get("use_megatron_fsdp"):
        for key, name in _FSDP_DTYPES.items():
            if values.get(key, "auto") != "auto":
                dtypes[name] = str(values[key])
    if not values.get("use_precision_aware_optimizer"):
        return dtypes, []
    named = {"main_grads_dtype": "gradients", "main_params_dtype": "master"}
    dtypes |= {name: str(values[key]) for key, name in named.items() if key in values}
    moments = [str(values.get(f"exp_avg{part}_dtype", "fp32")) for part in ("", "_sq")]
    dtypes["moments"] = max(moments, key=units.bytes_per_element)
    if moments[0] == moments[1]:
        return dtypes, []
    return dtypes, [f"moments in {' and '.join(moments)}: both are planned in {dtypes['moments']}."]


_SIZES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "num_distributed_optimizer_instances",
)


def _size(values: Mapping[str, Any], name: str, framework: str) -> int:
    value = values.get(name, 1)
    if value is None:
        return 1
    if isinstance(value, str):
        raise BadFile(no_number(framework, name, value))
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadFile(f"{framework}: {name} is {value!r}; it must be a number from 1.")
    return value


def without_sequences(tensor: int) -> Iterator[str]:
    """That ranks of tensor parallelism have all tokens between blocks, and a plan's a shard."""
    if tensor > 1:
        yield (
            f"tensor {tensor} without sequence parallelism: each rank has the activations of all "
            f"tokens between blocks. The plan has 1/{tensor} of them, less memory than the run "
            "needs."
        )


def copies_of_state(option: str, copies: int) -> str:
    """That optimizer state is sharded within groups of data parallelism, and a plan's over all."""
    return (
        f"{option} {copies}: each of {copies} groups of data ranks has all of the optimizer state. "
        f"The plan shards it over all of them, 1/{copies} of the run's bytes a chip."
    )


def expert_axis(degree: int, expert_tensor: int, tensor: int, framework: str) -> int:
    """The size of the mesh axis `expert`: expert parallelism without the part within `tensor`.

    >>> expert_axis(16, 1, 8, "megatron")
    2

    Raises:
        BadFile: the experts are shared by a part of a tensor group, or by no whole ones.
    """
    ranks = degree * expert_tensor
    if degree == 1 or ranks < tensor:
        return 1
    if ranks % tensor:
        raise BadFile(
            f"{framework}: expert parallelism {degree} x expert tensor {expert_tensor} = {ranks} "
            f"does not hold whole tensor groups of {tensor}. Plans have multiples of {tensor}."
        )
    return ranks // tensor
