"""Published serving measurements, read as `ServeRun`: model, machine, requests, measured values.

Settings that a source states once for many records are in `data/serving_stated.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from shardwise import units
from shardwise.errors import BadFile, nearest
from shardwise.models.model import ModelConfig
from shardwise.strategy.mesh import Mesh
from shardwise.validate.records.fields import JsonReader
from shardwise.validate.records.files import DATA, SkippedRecord, bundled, read_record, read_records
from shardwise.validate.records.models import config_of, model_assumptions
from shardwise.validate.records.runs import PublishedRun
from shardwise.validate.records.systems import system_of
from shardwise.validate.serving.figures import PHASES, Requests, dtypes_of, measured_of
from shardwise.validate.serving.meshes import sharding_of
from shardwise.validate.serving.server import USUAL_FLAGS, ServerFlags, server_flags

# Mean request length of InferenceX divided by the nominal length: lengths are uniform between 0.8
# and 1 times the nominal one (RANDOM_RANGE_RATIO of its workflows).
MEAN_LENGTH_RATIO = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRun(PublishedRun):
    """A published measurement of serving.

    Args:
        framework: Name and version of the serving engine, as published.
        mesh: Mesh of all chips, see `meshes.Sharding`.
        expert_tensor: Tensor-parallel degree of one expert; None if it is the `tensor` size.
        weights: Dtype of the weights.
        kv: Dtype of the KV cache.
        compute: Dtype of the matmuls.
        weight_bytes: Published bytes of all weights (formats with several dtypes), or None.
        phase: "decode" (decode steps only), "prefill" (prompts only) or "end-to-end".
        batch: Sequences that start and run together, or None.
        concurrency: Constant number of requests in flight, or None. If batch is None, too, all
            requests are in the queue at the start, and the engine runs as many as fit.
        prompt_tokens: Mean tokens per prompt.
        output_tokens: Mean tokens per answer; 0 under "prefill".
        measured: Metric -> value in SI units. Times are `ttft_s` (to the first token), `tpot_s`
            (between two tokens of a request), `latency_s` (of a whole request) and `prefill_s` (of
            the prompts of a batch). Rates are `tokens_per_s` (output tokens, whole machine),
            `total_tokens_per_s` (prompt and output tokens) and `tokens_per_s_per_user`.
            `memory_bytes` is the memory per chip.
        server: Flags with which the server was started.
    """

    mesh: Mesh
    expert_tensor: int | None = None
    weights: str
    kv: str
    compute: str
    weight_bytes: float | None = None
    phase: str
    batch: int | None = None
    concurrency: int | None = None
    prompt_tokens: int
    output_tokens: int
    measured: Mapping[str, float] = field(hash=False)
    server: ServerFlags = USUAL_FLAGS

    @property
    def saturated(self) -> bool:
        """Whether all requests are in the queue at the start."""
        return self.batch is None and self.concurrency is None


def load(path: str | Path | None = None) -> list[ServeRun | SkippedRecord]:
    """Read published serving measurements, in the order of the file.

    >>> runs = load()
    >>> len(runs)
    1009

    Args:
        path: A JSON list of records in the schema of the bundled file; None for that file.

    Raises:
        BadFile: the file is missing or not a JSON list.
    """
    file = DATA / "serving.json" if path is None else Path(path)
    return [read(record, position) for position, record in enumerate(read_records(file))]


def read(record: object, position: int = 0) -> ServeRun | SkippedRecord:
    """Convert a record to a run, or to a `SkippedRecord` with the reason.

    Args:
        record: A JSON object, with dimensions or the name of a bundled model in `model`.
        position: Index in the file, which serves as the id of a record without one.
    """
    return read_record(record, position, _to_run)


def _to_run(data: dict[str, Any]) -> ServeRun:
    record = JsonReader(_with_settings(data))
    name = record.text("id")
    system, system_assumed = system_of(record.section("hardware"))
    requests, requests_assumed = _requests(record)
    seq = requests.prompt_tokens + requests.output_tokens
    config, config_assumed = _config(record.section("model"), seq)
    sharding = sharding_of(record, config.is_moe, system)
    framework = record.text("framework", "")
    dtypes, dtypes_assumed = dtypes_of(record, framework, system.chip)
    measured, measured_assumed = measured_of(record, requests, config, system.chip, system.n_chips)
    weights_gib = record.optional_number("weights_gib")
    source = record.section("source")
    source_name = source.text("repo", source.text("paper", source.text("url", "unnamed")))
    return ServeRun(
        id=name,
        source=source_name,
        group=record.text("group", source_name),
        quality=record.text("quality", "B"),
        tier=record.text("tier", "core"),
        date=record.text("date", ""),
        framework=framework,
        config=config,
        system=system,
        mesh=sharding.mesh,
        expert_tensor=sharding.expert_tensor,
        weights=dtypes.weights,
        kv=dtypes.kv,
        compute=dtypes.compute,
        weight_bytes=weights_gib and weights_gib * units.GiB,
        phase=requests.phase,
        batch=requests.batch,
        concurrency=requests.concurrency,
        prompt_tokens=requests.prompt_tokens,
        output_tokens=requests.output_tokens,
        measured=measured,
        server=server_flags(record.section("server")),
        assumed=system_assumed
        | requests_assumed
        | config_assumed
        | sharding.assumed
        | dtypes_assumed
        | measured_assumed,
        flags=record.texts("flags"),
        notes=record.text("notes", ""),
    )


def _config(model: JsonReader, seq: int) -> tuple[ModelConfig, dict[str, str]]:
    """Return the architecture of a record, and the assumptions about it.

    Sparse attention is MLA with a window of as many keys as a query chooses (`index_topk`): see
    `estimate.serving.sparse`.
    """
    assumed = model_assumptions(model)
    if model.has("sparse"):
        n_keys = model.section("sparse").integer("index_topk")
        data = dict(model.data, sliding_window=n_keys)
        del data["sparse"]
        data.pop("full_attention_every", None)
        model = JsonReader(data, model.path)
        assumed["sparse"] = f"{n_keys:,} keys a query, chosen as in DeepSeek-V3.2"
    return config_of(model, max(1, seq)), assumed


def _requests(record: JsonReader) -> tuple[Requests, dict[str, str]]:
    """Return the requests of a record, and the assumptions about them.

    Raises:
        BadFile: the phase is unknown, or the request lengths or the load are missing.
    """
    phase = record.text("phase")
    if phase not in PHASES:
        raise BadFile(f'unknown phase: "{phase}". {nearest(phase, PHASES)}')
    min_tokens = 0 if phase == "decode" else 1
    prompt_tokens = record.optional_integer("input_len", min_tokens)
    output_tokens = record.optional_integer("output_len", min_tokens)
    assumed: dict[str, str] = {}
    if phase == "decode":
        if prompt_tokens is None:
            assumed["prompt"] = "0 tokens, not stated"
        prompt_tokens = prompt_tokens or 0
        output_tokens = output_tokens or 1
    elif phase == "prefill":
        output_tokens = 0
    if prompt_tokens is None or output_tokens is None:
        raise BadFile("lengths not stated: input_len and output_len of the requests.")
    batch = record.optional_integer("batch")
    concurrency = record.optional_integer("concurrency")
    if not batch and not concurrency and record.text("load", "") != "saturated":
        raise BadFile("load not stated: neither batch nor concurrency.")
    if record.section("source").text("table", "").startswith("InferenceX"):
        ratio = MEAN_LENGTH_RATIO
        assumed["lengths"] = (
            f"{ratio:g} of the nominal {prompt_tokens:,} and {output_tokens:,} tokens"
        )
        prompt_tokens = round(ratio * prompt_tokens)
        output_tokens = round(ratio * output_tokens)
    requests = Requests(
        phase=phase,
        batch=batch,
        concurrency=concurrency,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
    )
    return requests, assumed


def _with_settings(record: dict[str, Any]) -> dict[str, Any]:
    """Add the dimensions of a bundled model, and defaults of the source, to a record.

    Fields of the record take precedence over the defaults.
    """
    record = dict(record)
    model = record.get("model")
    if isinstance(model, str):
        models = bundled("serving_models.json")
        if model not in models:
            raise BadFile(f'unknown model: "{model}" is not bundled. {nearest(model, models)}')
        record["model"] = models[model]
    name = record.get("id")
    date = record.get("date")
    for entry in bundled("serving_stated.json"):
        if not (isinstance(name, str) and fnmatchcase(name, entry["match"])):
            continue
        if not isinstance(date, str) or date < entry.get("since", ""):
            continue
        if "refused" in entry:
            raise BadFile(entry["refused"])
        record["load"] = record.get("load") or entry.get("load")
        record["server"] = record.get("server") or {}
        defaults = {"precision": {"kv": entry.get("kv")}}
        for section in ("parallelism", "server"):
            defaults[section] = entry.get(section, {})
        for section, values in defaults.items():
            own_values = record.get(section)
            if isinstance(own_values, dict):
                own_values = {key: value for key, value in own_values.items() if value is not None}
                record[section] = values | own_values
    return record
