"""Published runs as values: what was trained, on what, how it was split, how long a step took."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from shardwise import units
from shardwise.errors import BadFile, ShardwiseError
from shardwise.hardware import System
from shardwise.models.model import ModelConfig
from shardwise.strategy.layout import Layout
from shardwise.validate.records.fields import Fields
from shardwise.validate.records.files import DATA, Underivable, names_of, records_in
from shardwise.validate.records.models import assumed_of, config_of
from shardwise.validate.records.systems import system_of
from shardwise.validate.training.jobs import origin_of, train_of
from shardwise.validate.training.layouts import dispatcher_of, layout_of
from shardwise.validate.training.rates import step_seconds
from shardwise.validate.training.remat import remat_of
from shardwise.validate.training.vtrain import as_record, is_vtrain
from shardwise.workload import Train

CARRIED = ("published.json", "vtrain.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One published measurement of training.

    Args:
        id: Name of the row.
        source: Repository or document that published it.
        group: Rows of one source, model and chip; a group is never split between fit and test.
        quality: "A" all explicit, "B" one item inferred or rounded, "C" a known anomaly.
        tier: "core", or "extra" for repeats, tiny models and under-specified rows.
        date: Of publication, as the row gives it.
        task: "pretrain", "sft" or "lora" (frozen weights need no weight gradients).
        framework: "megatron", "deepspeed", "fsdp" or "jax".
        precision: As the row names it ("fp8-delayed", "mxfp8"); the dtype is `job.compute`.
        config: The model, without layers of multi-token prediction.
        mtp_layers: Layers of multi-token prediction trained beside it; each has its own pass
            through the unembedding.
        capacity_factor: Of experts that drop tokens; None for dropless.
        packed: Sequences are packed short documents: attention stays inside each.
        narrow_attention: Attention in 8 bits (fp8_dot_product_attention).
        graphs: One CUDA graph holds the whole step: the host starts nothing.
        compiled: torch.compile fuses element-wise operations.
        dispatcher: What sends tokens to experts ("deepep", "hybridep"), "" where not stated.
        system: The machine.
        job: Batch, sequence length, dtypes.
        layout: How it was split.
        measured_step_s: Seconds of one step.
        measured_from: The published figure that they follow from.
        memory_bytes: Peak memory of a chip as published, or None.
        assumed: What the source leaves open -> what was taken.
        peers: Other predictors' seconds for this row.
        flags: Checks that the row is known to fail.
        notes: The row's own remarks.
    """

    id: str
    source: str
    group: str
    quality: str
    tier: str
    date: str
    task: str
    framework: str
    precision: str
    config: ModelConfig
    mtp_layers: int = 0
    capacity_factor: float | None = None
    packed: bool = False
    narrow_attention: bool = False
    graphs: bool = False
    compiled: bool = False
    dispatcher: str = ""
    system: System
    job: Train
    layout: Layout
    measured_step_s: float
    measured_from: str
    memory_bytes: float | None = None
    assumed: Mapping[str, str] = field(default_factory=dict, hash=False)
    peers: Mapping[str, float] = field(default_factory=dict, hash=False)
    flags: tuple[str, ...] = ()
    notes: str = ""

    @property
    def tokens_per_s_per_chip(self) -> float:
        """Measured rate, comparable over batches and chips."""
        return self.job.tokens_per_step / self.measured_step_s / self.system.n_chips


def load(path: str | Path | None = None) -> list[Run | Underivable]:
    """Published runs in the order of the file: those that come with the package, or a file's.

    >>> runs = load()
    >>> sum(isinstance(run, Run) for run in runs) > 2000
    True

    Args:
        path: A JSON list of records in the schema of the carried ones; None for these.

    Raises:
        BadFile: no such file, or one that is not a JSON list.
    """
    paths = [DATA / name for name in CARRIED] if path is None else [Path(path)]
    return [read(record, i) for p in paths for i, record in enumerate(records_in(p))]


def read(record: object, place: int = 0) -> Run | Underivable:
    """One record as a run, or the reason why it is none.

    Args:
        record: An object of the file.
        place: Its position in the file, the name of a record without one.
    """
    try:
        if not isinstance(record, dict):
            raise BadFile("broken record: it is not an object.")
        fields = Fields(_completed(as_record(record) if is_vtrain(record) else record))
        return _run(fields)
    except ShardwiseError as error:
        name, source = names_of(record, place)
        return Underivable(id=name, source=source, reason=" ".join(error.problems))


def _run(record: Fields) -> Run:
    name, hardware = record.text("id"), record.inner("hardware")
    system, assumed = system_of(hardware)
    origin, more = origin_of(record, tpu=system.chip.kind == "tpu")
    assumed = assumed | more | assumed_of(record.inner("model"))
    config = config_of(record.inner("model"), record.whole("seq_len"))
    remat, more = remat_of(record, config.n_layers, routed=config.is_moe)
    assumed = assumed | more
    job = train_of(record, origin, remat.recomputed)
    layout, more = layout_of(record, origin, remat, job.batch, system.n_chips)
    seconds, figure = step_seconds(record, config, job, system.chip, system.n_chips)
    memory = record.inner("measured").maybe_number("memory_gib")
    task, model = record.text("task", "pretrain"), record.inner("model")
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
        mtp_layers=model.maybe_whole("mtp_layers", 0) or 0,
        capacity_factor=model.maybe_number("capacity_factor"),
        packed=task != "pretrain" and record.text("flops_convention", "") == "no_attention",
        narrow_attention=record.inner("overlap").flag("fp8_attention"),
        graphs=record.inner("overlap").text("cuda_graph", "") == "full_iteration",
        compiled=record.inner("overlap").flag("torch_compile"),
        dispatcher=dispatcher_of(record),
        system=system,
        job=job,
        layout=layout,
        measured_step_s=seconds,
        measured_from=figure,
        memory_bytes=memory and memory * units.GiB,
        assumed=assumed | more | _texts(record.inner("assumed")),
        peers={peer: _seconds(record, peer) for peer in record.inner("peers").data},
        flags=record.texts("flags"),
        notes=record.text("notes", ""),
    )


def _texts(stated: Fields) -> dict[str, str]:
    return {name: stated.text(name) for name in stated.data}


def _seconds(record: Fields, peer: str) -> float:
    value = record.inner("peers").maybe_number(peer)
    if value is None:
        raise BadFile(f"peers.{peer} is not a number.")
    return value


def _completed(record: dict[str, Any]) -> dict[str, Any]:
    """The record with what other documents of its source state; its own words win."""
    name = record.get("id")
    for entry in _stated():
        if isinstance(name, str) and fnmatchcase(name, entry["match"]):
            par = record.get("parallelism")
            if isinstance(par, dict):
                degrees = {k: v for k, v in entry.items() if k in ("vpp", "fsdp")}
                record = {**record, "parallelism": {**degrees, **par}}
            more = {k: v for k, v in entry.items() if k in ("micro_batch", "n_microbatches")}
            record = {**more, **{k: v for k, v in record.items() if v is not None}}
            # A recipe's last word: records read the lines of a recipe, not the helpers it calls.
            for part in ("overlap", "recompute"):
                if part in entry:
                    record[part] = {**(record.get(part) or {}), **entry[part]}
    return record


@functools.cache
def _stated() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads((DATA / "stated.json").read_text("utf-8"))
    return entries
