"""Layouts of serving engines, checked for what the open engines have, and their dtypes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from shardwise.errors import BadFile
from shardwise.frameworks.exported import Engine, Settings, no_number, refuse
from shardwise.frameworks.watched import as_watched
from shardwise.models import load, presets
from shardwise.plan.machine import system_of
from shardwise.search.serving.engine_limits import limit_of, ranks_of_a_head
from shardwise.workload import Serve

MAX_TOKENS = 8192  # of a pass with chunked prefill, as in `simulate.limits` and in vLLM

# Name of a quantization in vLLM, SGLang or TensorRT-LLM -> dtype of the weights.
_QUANTIZED = {
    "fp8": "fp8", "modelopt": "fp8", "modelopt_fp8": "fp8", "w8a8_fp8": "fp8", "fbgemm_fp8": "fp8",
    "w8a8_int8": "int8", "awq": "int4", "gptq": "int4", "awq_marlin": "int4",
    "gptq_marlin": "int4", "mxfp4": "mxfp4",
}  # fmt: skip
# The same in names of checkpoints, and who publishes those of other people's models.
_ENDINGS = {
    "fp8": "fp8", "fp8-dynamic": "fp8", "int8": "int8", "w8a8": "int8", "w8a16": "int8",
    "awq": "int4", "gptq": "int4", "int4": "int4", "w4a16": "int4", "fp4": "fp4", "nvfp4": "fp4",
}  # fmt: skip
_QUANTIZED_NAME = re.compile(rf"(.+?)-(?:quantized\.)?({'|'.join(_ENDINGS)})", re.I)
_QUANTIZERS = {
    "nvidia", "redhatai", "neuralmagic", "hugging-quants", "unsloth", "thebloke", "casperhansen",
    "amd", "intel", "modelcloud", "ista-daslab",
}  # fmt: skip


def check(engine: Engine, framework: str, word: str) -> None:
    """Refuse a layout that the engine of a framework does not have.

    Args:
        word: the engine, as `--engine` takes it.

    Raises:
        BadInput: the layout is not among those of the framework.
    """
    chip = system_of(engine.plan.hardware).chip
    limit = limit_of(word, engine.model, chip, engine.layout, engine.layout.mesh)
    if limit:
        raise refuse(framework, limit.asked, limit.has, limit.nearest)


def whole_experts(engine: Engine, tensor: int, expert: int) -> bool:
    """Whether ranks have whole experts, different ones."""
    shards = engine.layout.expert_tensor or tensor
    return engine.is_moe and expert * (tensor // shards) > 1


def expert_shards(degree: int, tensor: int, groups: int) -> tuple[int | None, str]:
    """The tensor shards of an expert (None for `tensor`), and a note if the engine has more.

    Args:
        degree: ranks that have different experts.
        tensor: ranks of a group of attention.
        groups: groups of attention, whose ranks together share the experts.
    """
    shards = max(1, tensor * groups // degree)
    if shards <= tensor:
        return None if shards == tensor else shards, ""
    return 1, (
        f"each expert is sliced over {shards} ranks of several groups of attention. The plan gives "
        "each rank whole experts, which takes as much memory and sends their tokens in other ways."
    )


NOT_QUANTIZED = ("bf16", "fp16", "fp32")


def repository(engine: Engine) -> str:
    """The hub repository of the model, or its name."""
    preset = presets.find(engine.plan.model.name)
    return preset.source if preset else engine.plan.model.name


def kv_dtype(engine: Engine, framework: str, names: Mapping[str, str]) -> str:
    """The framework's name for the dtype of the KV cache.

    Raises:
        BadInput: it has none.
    """
    dtype = engine.plan.strategy.precision["kv"]
    if dtype not in names:
        raise refuse(
            framework,
            f"a KV cache in {dtype}",
            f"its caches are in {', '.join(names)}",
            f"--kv-dtype {'fp8' if 'fp8' in names else 'bf16'}",
        )
    return names[dtype]


def quantization(engine: Engine) -> tuple[str | None, list[str]]:
    """The quantization to ask for when the weights are loaded, and a note if there is none."""
    dtype = engine.plan.strategy.precision["weights"]
    name = engine.plan.model.name
    published = load(name).checkpoint_dtype if presets.find(name) else dtype
    method = "fp8" if dtype == "fp8" else None
    if published not in (*NOT_QUANTIZED, dtype):
        return method, [
            f"{repository(engine)} is in {published}, and the plan in {dtype}: name a checkpoint "
            f"in {'bf16' if method else dtype} in its place, or plan with --dtype {published}."
        ]
    if dtype in (*NOT_QUANTIZED, "mxfp4", "fp8"):
        return method, []
    return None, [f"weights in {dtype}: load a checkpoint that is quantized so."]


def notes_of(engine: Engine) -> list[str]:
    """Notes about parts of a deployment that one engine's file cannot say."""
    notes = []
    if preset := presets.find(engine.plan.model.name):
        notes.append(
            f"the checkpoint: {preset.source} is the one whose sizes are planned; name another of "
            "the same sizes, as one tuned for instructions, in its place."
        )
    if engine.layout.count > 1:
        notes.append(
            f"the plan has {engine.layout.count:,} such engines: start as many, behind a router."
        )
    work = engine.plan.workload
    if work.drafted:
        notes.append(f"{work.drafted} drafted tokens a pass: the draft model is not named.")
    if work.rate:
        notes.append(f"{work.rate:g} requests/s arrive at all engines.")
    if work.users:
        notes.append(f"{work.users:,} users ask all engines, each one request at a time.")
    traffic = engine.plan.estimate.traffic
    if traffic and traffic.kind == "trace":
        notes.append(f"the longest request of {traffic.source}; the context is the mean one's.")
    return notes


def chunk(engine: Engine) -> int:
    """Tokens of a pass with chunked prefill: those of the plan's scheduler, or a sequence each."""
    return max(MAX_TOKENS, engine.batch)


def decode_context(engine: Engine) -> int:
    """Tensor ranks that share the tokens of one KV head: 1 unless the cache is split so."""
    if engine.layout.kv != "sequence":
        return 1
    return int(ranks_of_a_head(engine.model, engine.layout.mesh["tensor"]))


def kv_cache(values: Values, names: Mapping[str, str]) -> tuple[str | None, tuple[str, ...]]:
    """The dtype of the KV cache, and as an option that is not read a dtype that `names` lacks.

    Args:
        names: word of the framework -> dtype. "auto" is the dtype of activations, bf16.
    """
    word = str(values.get("kv_cache_dtype") or "auto")
    dtype = {**names, "auto": "bf16"}.get(word)
    return dtype, () if dtype else (f"kv_cache_dtype {word}",)


def drafted_tokens(config: Any, *names: str) -> int:
    """Tokens that a draft proposes for each pass; 0 if the configuration does not say.

    Args:
        config: settings of speculative decoding, or their JSON.
        names: keys of the number, the first that is set.
    """
    if isinstance(config, str) and config.lstrip().startswith("{"):
        try:
            config = json.loads(config)
        except ValueError:
            return 0
    numbers = [config.get(name) for name in names] if isinstance(config, Mapping) else []
    return next((n for n in numbers if isinstance(n, int) and n > 0), 0)


def draft_notes(n_tokens: int) -> tuple[str, ...]:
    """What a plan assumes of drafted tokens, which no file says."""
    if not n_tokens:
        return ()
    assumed = Serve(context=1)
    return (
        f"{n_tokens} drafted tokens a pass are planned, each accepted with a probability of "
        f"{assumed.acceptance:g}, for {assumed.draft_cost:.0%} of the time of a pass each.",
    )


# Half of disaggregated serving -> the figures of a plan that are its own, and the other half's.
_FIGURES = {"prefill": ("TTFT", "TPOT and tokens/s"), "decode": ("TPOT and tokens/s", "TTFT")}


def half_notes(half: str | None) -> tuple[str, ...]:
    """What a plan has otherwise of an engine that only prefills, or only decodes."""
    if half is None:
        return ()
    own, other = _FIGURES[half]
    return (
        f"it starts the {half} half of disaggregated serving, planned as an engine that does both: "
        f"take {own} from the plan, not {other}. Both halves: shardwise plan MODEL HARDWARE "
        "--serve --prompt N --output N --disaggregate.",
    )


def kv_split(shards: int) -> str:
    """How an engine stores KV heads that several tensor ranks share, by the ranks of a cache."""
    return "sequence" if shards > 1 else "copied"


def weights_dtype(name: Any) -> str | None:
    """The dtype of weights of a quantization; None for that of the published weights."""
    return _QUANTIZED.get(str(name).lower())


def quantized_repository(name: str | None) -> tuple[str | None, str | None]:
    """A repository without the ending that names its quantization, and the dtype of that.

    Of those who publish quantized checkpoints of others, the owner is left out too.

    >>> quantized_repository("Qwen/Qwen3-32B-FP8"), quantized_repository("Qwen/Qwen3-32B")
    (('Qwen/Qwen3-32B', 'fp8'), ('Qwen/Qwen3-32B', None))
    >>> quantized_repository("RedHatAI/Llama-3.3-70B-Instruct-quantized.w8a8")
    ('Llama-3.3-70B-Instruct', 'int8')
    """
    base, dtype = name or "", None
    while ending := _QUANTIZED_NAME.fullmatch(base):
        base, dtype = ending[1], dtype or _ENDINGS[ending[2].lower()]
    if dtype is None:
        return name, None
    owner, _, model = base.rpartition("/")
    return model if owner.lower() in _QUANTIZERS else base, dtype


# Numbers as vLLM takes them: 32k is 32,000 and 32K is 32,768.
_ROUNDED = re.compile(r"(\d+(?:\.\d+)?)([kKmM])")
_MULTIPLES = {"k": 1000, "K": 1 << 10, "m": 1_000_000, "M": 1 << 20}


class Values:
    """Options of a file under any of their spellings: `tp_size`, `tp-size`, `--tp-size`."""

    def __init__(self, settings: Settings, framework: str) -> None:
        self._framework = framework
        values = {str(key).lstrip("-").replace("-", "_"): value for key, value in settings.items()}
        self._values = as_watched(settings, values)

    def get(self, *names: str) -> Any:
        """The value of the first of `names` that is set, or None."""
        for name in names:
            if self._values.get(name) is not None:
                return self._values[name]
        return None

    def text(self, *names: str) -> str | None:
        """A text; of several words after a flag the first, as the others are no values of it."""
        value = self.get(*names)
        if isinstance(value, list):
            value = next(iter(value), None)
        return None if value is None else str(value)

    def number(self, *names: str) -> int | None:
        """A number; None if it is left out or "auto".

        Raises:
            BadFile: it is no whole number.
        """
        value = self.get(*names)
        if value is None or value == "auto":
            return None
        if isinstance(value, str) and value.isdecimal():  # manifests quote the arguments
            return int(value)
        if isinstance(value, str) and (rounded := _ROUNDED.fullmatch(value)):
            return round(float(rounded[1]) * _MULTIPLES[rounded[2]])
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadFile(no_number(self._framework, names[0], value))
        return value

    def size(self, *names: str) -> int:
        """The size of an axis; 1 if it is left out.

        Raises:
            BadFile: it is no number from 1.
        """
        value = self.number(*names)
        if value is None:
            return 1
        if value < 1:
            raise BadFile(f"{self._framework}: {names[0]} is {value}; it must be 1 or more.")
        return value

    def unread(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the names that the file sets, to something else than off."""
        return tuple(name for name in names if self._values.get(name) not in (None, False))

    def unread_beside_drafts(self, names: tuple[str, ...], drafted: int) -> tuple[str, ...]:
        """Those of `unread`, without speculative decoding if its drafted tokens are planned."""
        unread = self.unread(names)
        return tuple(name for name in unread if not (drafted and name.startswith("speculative_")))

    def count(self, names: tuple[str, ...]) -> int:
        """How many of the names are set."""
        return sum(name in self._values for name in names)
