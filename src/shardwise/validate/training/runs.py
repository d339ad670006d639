"""Published training measurements, read as `Run`: model, machine, layout, seconds of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from shardwise import units
from shardwise.errors import BadFile
from shardwise.estimate.training.framework_profiles import captured_share
from shardwise.frameworks import megatron_graphs
from shardwise.strategy.layout import Layout
from shardwise.validate.records.fields import JsonReader
from shardwise.validate.records.files import DATA, SkippedRecord, bundled, read_record, read_records
from shardwise.validate.records.models import config_of, model_assumptions
from shardwise.validate.records.runs import PublishedRun
from shardwise.validate.records.systems import system_of
from shardwise.validate.training.jobs import origin_of, train_of
from shardwise.validate.training.layouts import dispatcher_of, layout_of
from shardwise.validate.training.rates import step_seconds
from shardwise.validate.training.remat import remat_of
from shardwise.validate.training.vtrain import as_record, is_vtrain
from shardwise.workload import Train

BUNDLED = ("published.json", "vtrain.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(PublishedRun):
    """A published measurement of training.

    Args:
        task: "pretrain", "sft" (fine-tuning) or "lora" (frozen weights have no gradients).
        framework: "megatron", "deepspeed", "fsdp" or "jax".
        precision: Name of the precision in the record, such as "fp8-delayed" or "mxfp8".
        config: The model, without the layers of multi-token prediction that the job has.
        capacity_factor: Capacity factor of the experts; None if they drop no tokens.
        packed: Whether sequences are packed documents, with attention within each document.
        narrow_attention: Whether attention matmuls are in fp8 (fp8_dot_product_attention).
        captured: Share of a layer's kernels in CUDA graphs, which the host does not launch.
        compiled: Whether torch.compile fuses element-wise operations.
        dispatcher: Library that sends tokens to experts ("deepep", "hybridep"), "" if unknown.
        job: Batch, sequence length, dtypes and layers of multi-token prediction.
        measured_step_s: Seconds of one step.
        measured_from: Name of the published value that the seconds follow from.
        memory_bytes: Published peak memory per chip, or None.
        peers: Other predictor -> the seconds of a step that it predicts.
    """

    task: str
    precision: str
    capacity_factor: float | None = None
    packed: bool = False
    narrow_attention: bool = False
    captured: float = 0.0
    compiled: bool = False
    dispatcher: str = ""
    job: Train
    layout: Layout
    measured_step_s: float
    measured_from: str
    memory_bytes: float | None = None
    peers: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def tokens_per_s_per_chip(self) -> float:
        """Measured throughput: trained tokens per second and chip."""
        return self.job.tokens_per_step / self.measured_step_s / self.system.n_chips


def load(path: str | Path | None = None) -> list[Run | SkippedRecord]:
    """Read published training measurements, in the order of the files.

    >>> runs = load()
    >>> sum(isinstance(run, Run) for run in runs) > 2000
    True

    Args:
        path: A JSON list of records in the schema of the bundled files; None for these files.

    Raises:
        BadFile: the file is missing or not a JSON list.
    """
    files = [DATA / name for name in BUNDLED] if path is None else [Path(path)]
    runs = []
    for file in files:
        runs += [read(record, position) for position, record in enumerate(read_records(file))]
    return runs


def read(record: object, position: int = 0) -> Run | SkippedRecord:
    """Convert a record to a run, or to a `SkippedRecord` with the reason.

    Args:
        record: A JSON object.
        position: Index in the file, which serves as the id of a record without one.
    """
    return read_record(record, position, _to_run)


def _to_run(data: dict[str, Any]) -> Run:
    if is_vtrain(data):
        data = as_record(data)
    record = JsonReader(_with_settings(data))
    name = record.text("id")
    model = record.section("model")
    overlap = record.section("overlap")
    system, system_assumed = system_of(record.section("hardware"))
    origin, origin_assumed = origin_of(record, tpu=system.chip.kind == "tpu")
    config = config_of(model, record.integer("seq_len"))
    remat, remat_assumed = remat_of(record, config.n_layers, routed=config.is_moe)
    job = train_of(record, origin, remat.recomputed)
    layout, layout_assumed = layout_of(record, origin, remat, job.batch, system.n_chips)
    seconds, figure = step_seconds(record, config, job, system.chip, system.n_chips)
    memory_gib = record.section("measured").optional_number("memory_gib")
    task = record.text("task", "pretrain")
    return Run(
        id=name,
        source=origin.source,
        group=record.text("group", origin.source),
        quality=record.text("quality", "B"),
        tier=record.text("tier", "core"),
        date=record.text("date", ""),
        task=task,
        framework=origin.framework,
        precision=record.text("precision"),
        config=config,
        capacity_factor=model.optional_number("capacity_factor"),
        packed=task != "pretrain" and record.text("flops_convention", "") == "no_attention",
        narrow_attention=overlap.flag("fp8_attention"),
        captured=captured_share(graphs_of(overlap)),
        compiled=overlap.flag("torch_compile"),
        dispatcher=dispatcher_of(record),
        system=system,
        job=job,
        layout=layout,
        measured_step_s=seconds,
        measured_from=figure,
        memory_bytes=memory_gib and memory_gib * units.GiB,
        assumed=system_assumed
        | origin_assumed
        | model_assumptions(model)
        | remat_assumed
        | layout_assumed
        | _texts(record.section("assumed")),
        peers={peer: _peer_seconds(record, peer) for peer in record.section("peers").data},
        flags=record.texts("flags"),
        notes=record.text("notes", ""),
    )


def graphs_of(overlap: JsonReader) -> tuple[str, ...]:
    """Parts of a layer whose kernels CUDA graphs hold, from the record's `overlap`."""
    return megatron_graphs.read(
        {
            "cuda_graph_impl": overlap.text("cuda_graph", "none"),
            "cuda_graph_scope": overlap.data.get("cuda_graph_scope"),
        }
    )


def _texts(section: JsonReader) -> dict[str, str]:
    return {name: section.text(name) for name in section.data}


def _peer_seconds(record: JsonReader, peer: str) -> float:
    value = record.section("peers").optional_number(peer)
    if value is None:
        raise BadFile(f"peers.{peer} is not a number.")
    return value


def _with_settings(record: dict[str, Any]) -> dict[str, Any]:
    """Add settings that other documents of the source state (`data/stated.json`) to a record.

    Fields of the record take precedence, except in `overlap` and `recompute`. There the settings
    are the final values of a recipe, while the record only has values in the recipe's own lines,
    without those set by the functions that it calls.
    """
    name = record.get("id")
    if not isinstance(name, str):
        return record
    for entry in bundled("stated.json"):
        if not fnmatchcase(name, entry["match"]):
            continue
        record = {key: value for key, value in record.items() if value is not None}
        for key in ("micro_batch", "n_microbatches"):
            if key in entry:
                record.setdefault(key, entry[key])
        parallelism = record.get("parallelism")
        if isinstance(parallelism, dict):
            degrees = {key: entry[key] for key in ("vpp", "fsdp") if key in entry}
            record["parallelism"] = degrees | parallelism
        for section in ("overlap", "recompute"):
            if section in entry:
                record[section] = (record.get(section) or {}) | entry[section]
    return record
