"""Published serving runs as values: what was served, on what, how it was split, what was measured.

Named choices of a source that its rows do not repeat are in `data/serving_stated.json`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from shardwise import units
from shardwise.errors import BadFile, ShardwiseError, nearest
from shardwise.hardware import System
from shardwise.models.model import ModelConfig
from shardwise.strategy.mesh import Mesh
from shardwise.validate.records.fields import Fields
from shardwise.validate.records.files import DATA, Underivable, names_of, records_in
from shardwise.validate.records.models import assumed_of, config_of
from shardwise.validate.records.systems import system_of
from shardwise.validate.serving.figures import PHASES, Load, dtypes_of, measured_of
from shardwise.validate.serving.meshes import split_of

# Requests of InferenceX have between 0.8 and 1 times the nominal length, all alike as likely
# (RANDOM_RANGE_RATIO of its workflows).
DRAWN = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRun:
    """One published measurement of serving.

    Without batch and concurrency all requests wait at once, and as many run as fit.

    Args:
        id: Name of the row.
        source: Repository or document that published it.
        group: Rows of one source, model and chip; a group is never split between fit and test.
        quality: "A" all explicit, "B" one item inferred or rounded, "C" a known anomaly.
        tier: "core", or "extra" for repeats, tiny models and under-specified rows.
        date: Of publication, as the row gives it.
        framework: Engine and version as published.
        config: The model.
        system: The machine.
        mesh: How one engine is split over it; `data` counts copies of the whole model, `expert`
            ranks that split the batch, copy attention and share the experts.
        expert_tensor: Ways to split the matrices of one expert; None for as many as `tensor`.
        weights, kv, compute: dtypes.
        weight_bytes: Bytes of all weights where published (formats between dtypes), or None.
        phase: "decode" (steps alone), "prefill" (prompts alone) or "end-to-end".
        batch: Sequences that run together, or None.
        concurrency: Requests in flight, or None.
        prompt: Tokens of a prompt, the mean where lengths vary.
        output: Tokens of an answer, the mean where lengths vary; 0 under "prefill".
        measured: Metric -> value in SI units. Times: `ttft_s`, `tpot_s` (between two tokens of a
            request), `latency_s` (a whole request), `prefill_s` (the prompts of a batch). Rates:
            `tokens_per_s` (output tokens of the whole machine), `total_tokens_per_s` (with those
            of prompts), `tokens_per_s_per_user`. `memory_bytes` of one chip.
        assumed: What the source leaves open -> what was taken.
        flags: Checks that the row is known to fail.
        notes: The row's own remarks.
    """

    id: str
    source: str
    group: str
    quality: str
    tier: str
    date: str
    framework: str
    config: ModelConfig
    system: System
    mesh: Mesh
    expert_tensor: int | None = None
    weights: str
    kv: str
    compute: str
    weight_bytes: float | None = None
    phase: str
    batch: int | None = None
    concurrency: int | None = None
    prompt: int
    output: int
    measured: Mapping[str, float] = field(hash=False)
    assumed: Mapping[str, str] = field(default_factory=dict, hash=False)
    flags: tuple[str, ...] = ()
    notes: str = ""

    @property
    def saturated(self) -> bool:
        """All requests wait at once."""
        return self.batch is None and self.concurrency is None


def load(path: str | Path | None = None) -> list[ServeRun | Underivable]:
    """Published serving runs in the order of the file: the carried ones, or a file's.

    >>> runs = load()
    >>> len(runs)
    1009

    Args:
        path: A JSON list of records in the schema of the carried ones; None for these.

    Raises:
        BadFile: no such file, or one that is not a JSON list.
    """
    place = DATA / "serving.json" if path is None else Path(path)
    return [read(record, i) for i, record in enumerate(records_in(place))]


def read(record: object, place: int = 0) -> ServeRun | Underivable:
    """One record as a run, or the reason why it is none.

    Args:
        record: An object of the file; its `model` may be the name of a carried one.
        place: Its position in the file, the name of a record without one.
    """
    try:
        if not isinstance(record, dict):
            raise BadFile("broken record: it is not an object.")
        return _run(Fields(_completed(record)))
    except ShardwiseError as error:
        name, source = names_of(record, place)
        return Underivable(id=name, source=source, reason=" ".join(error.problems))


def _run(record: Fields) -> ServeRun:
    name, source = record.text("id"), record.inner("source")
    system, assumed = system_of(record.inner("hardware"))
    load, more = _load(record)
    config, told = _config(record.inner("model"), load.prompt + load.output)
    assumed |= more | told
    split = split_of(record, config.is_moe, system)
    framework = record.text("framework", "")
    dtypes, more = dtypes_of(record, framework, system.chip)
    assumed |= split.assumed | more
    measured, more = measured_of(record, load, config, system.chip, system.n_chips)
    gib = record.maybe_number("weights_gib")
    repo = source.text("repo", source.text("paper", source.text("url", "unnamed")))
    return ServeRun(
        id=name,
        source=repo,
        group=record.text("group", repo),
        quality=record.text("quality", "B"),
        tier=record.text("tier", "core"),
        date=record.text("date", ""),
        framework=framework,
        config=config,
        system=system,
        mesh=split.mesh,
        expert_tensor=split.expert_tensor,
        weights=dtypes.weights,
        kv=dtypes.kv,
        compute=dtypes.compute,
        weight_bytes=gib and gib * units.GiB,
        phase=load.phase,
        batch=load.batch,
        concurrency=load.concurrency,
        prompt=load.prompt,
        output=load.output,
        measured=measured,
        assumed=assumed | more,
        flags=record.texts("flags"),
        notes=record.text("notes", ""),
    )


def _config(model: Fields, seq: int) -> tuple[ModelConfig, dict[str, str]]:
    """The architecture; sparse attention as a window of as many keys as it chooses.

    A window reads what sparse attention reads, but keeps no more than that and has no index.
    """
    assumed = assumed_of(model)
    if model.states("sparse"):
        keys = model.inner("sparse").whole("index_topk")
        rest = {k: v for k, v in model.data.items() if k not in ("sparse", "full_attention_every")}
        model = Fields({**rest, "sliding_window": keys}, model.where)
        assumed["sparse"] = f"a window of {keys:,} keys: the index and older keys are not counted"
    return config_of(model, max(1, seq)), assumed


def _load(record: Fields) -> tuple[Load, dict[str, str]]:
    """What was asked of the engine, and what was assumed about it.

    Raises:
        BadFile: an unknown phase, lengths or a load that are not stated.
    """
    phase = record.text("phase")
    if phase not in PHASES:
        raise BadFile(f'unknown phase: "{phase}". {nearest(phase, PHASES)}')
    low = 0 if phase == "decode" else 1
    prompt, output = record.maybe_whole("input_len", low), record.maybe_whole("output_len", low)
    assumed: dict[str, str] = {}
    if phase == "decode":
        if prompt is None:
            assumed["prompt"] = "0 tokens, not stated"
        prompt, output = prompt or 0, output or 1
    elif phase == "prefill":
        output = 0
    if prompt is None or output is None:
        raise BadFile("lengths not stated: input_len and output_len of the requests.")
    batch, concurrency = record.maybe_whole("batch"), record.maybe_whole("concurrency")
    if not batch and not concurrency and record.text("load", "") != "saturated":
        raise BadFile("load not stated: neither batch nor concurrency.")
    if record.inner("source").text("table", "").startswith("InferenceX"):
        assumed["lengths"] = f"{DRAWN:g} of the nominal {prompt:,} and {output:,} tokens"
        prompt, output = round(DRAWN * prompt), round(DRAWN * output)
    found = Load(phase=phase, batch=batch, concurrency=concurrency, prompt=prompt, output=output)
    return found, assumed


def _completed(record: dict[str, Any]) -> dict[str, Any]:
    """The record with its model and what else its source states; its own words win."""
    model, name, date = record.get("model"), record.get("id"), record.get("date")
    if isinstance(model, str):
        known = _carried("serving_models.json")
        if model not in known:
            raise BadFile(f'unknown model: "{model}" is not carried. {nearest(model, known)}')
        record = {**record, "model": known[model]}
    for entry in _carried("serving_stated.json"):
        if not (isinstance(name, str) and fnmatchcase(name, entry["match"])):
            continue
        if not isinstance(date, str) or date < entry.get("since", ""):
            continue
        record = {**record, "load": record.get("load") or entry.get("load")}
        stated = {"precision": {"kv": entry.get("kv")}, "parallelism": entry.get("parallelism", {})}
        for part, words in stated.items():
            if isinstance(own := record.get(part), dict):
                record[part] = {**words, **{k: v for k, v in own.items() if v is not None}}
    return record


@functools.cache
def _carried(name: str) -> Any:
    return json.loads((DATA / name).read_text("utf-8"))
