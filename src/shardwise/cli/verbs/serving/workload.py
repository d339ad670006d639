"""Parse the options of requests and engines to jobs, one for each dtype of the weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import shardwise as sw
from shardwise import units
from shardwise.cli import options
from shardwise.cli.inputs import (
    Inputs,
    parse_settings,
    parse_word,
    parse_words,
    plain_dtypes,
    roles,
)
from shardwise.cli.ranges import split_rate
from shardwise.errors import BadInput
from shardwise.estimate.serving.overhead import ENGINES
from shardwise.plan.serving.time_parts import usual_cache, usual_compute

USERS_NEED_A_BOUND = (
    "--users needs a bound, without which few chips let users wait as long as they like: "
    "--tpot 30ms, with --ttft 500ms or without."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """The texts of the options of requests; empty for an option that is not given."""

    prompt: str = ""
    output: str = ""
    context: str = ""
    batch: str = ""
    rate: str = ""
    users: str = ""
    ttft: str = ""
    tpot: str = ""
    cached: str = ""
    draft: str = ""
    acceptance: str = ""
    draft_cost: str = ""
    engine: str = ""


def weights_of(model: sw.ModelConfig | None, dtype: str) -> str:
    """The dtypes that --dtype names; without it, the dtype in which the model is published."""
    if dtype or model is None:
        return dtype or "bf16"
    return model.checkpoint_dtype


def read_jobs(
    requests: RequestOptions,
    weights: str,
    kv_dtype: str,
    compute: str,
    chip: sw.Chip | None,
    *,
    recorded: bool = False,
) -> tuple[sw.Serve, ...]:
    """Parse the options to serving jobs, one for each dtype of the weights.

    Args:
        weights: dtypes of the weights, separated by commas.
        kv_dtype: dtype of the KV cache; empty for that of the weights.
        compute: dtype of matrix products; empty for that of the weights, if the chip has a peak
            rate for it.
        recorded: whether the lengths of requests come from a recording.

    Raises:
        BadInput: with every option that is wrong.
    """
    inputs = Inputs()
    weights, kv_dtype, compute = map(plain_dtypes, (weights, kv_dtype, compute))
    dtypes = inputs.read(parse_words, weights, "dtype", units.BYTES_PER_ELEMENT) or ()
    inputs.optional(parse_word, kv_dtype, "dtype", units.BYTES_PER_ELEMENT)
    inputs.optional(parse_word, compute, "dtype", units.BYTES_PER_ELEMENT)
    if recorded:
        sizes: dict[str, int | None] = {"prompt": 1, "output": 1}
    else:
        sizes = _read_lengths(inputs, requests)
    batch_size = inputs.optional(units.parse_whole, requests.batch, "--batch")
    if batch_size is not None:
        sizes["batch"] = batch_size
    require_draft(inputs, requests.draft, acceptance=requests.acceptance)
    require_draft(inputs, requests.draft, draft_cost=requests.draft_cost)
    parse_seconds = units.parse_seconds
    settings = {
        "ttft_s": inputs.optional(parse_seconds, requests.ttft, "--ttft"),
        "tpot_s": inputs.optional(parse_seconds, requests.tpot, "--tpot"),
        "rate": inputs.optional(parse_rate, requests.rate),
        "users": inputs.optional(units.parse_whole, requests.users, "--users"),
        "drafted": inputs.optional(units.parse_whole, requests.draft, "--draft"),
        "cached": inputs.optional(parse_share, requests.cached, "--cached"),
        "acceptance": inputs.optional(parse_share, requests.acceptance, "--acceptance"),
        "draft_cost": inputs.optional(parse_share, requests.draft_cost, "--draft-cost"),
        "engine": inputs.optional(parse_word, requests.engine, "engine", ENGINES),
    }
    inputs.done()
    fields_set = {name: value for name, value in settings.items() if value is not None}
    serving_job = partial(sw.Serve, **sizes, **fields_set)  # type: ignore[arg-type]
    jobs = []
    for dtype in dtypes:
        products = compute or usual_compute(dtype, chip)
        cache = kv_dtype or usual_cache(dtype, chip)
        jobs.append(serving_job(weights=dtype, kv=cache, compute=products))
    return tuple(jobs)


def _read_lengths(inputs: Inputs, requests: RequestOptions) -> dict[str, int | None]:
    """Fields of a job for the tokens of a request: `context`, or `prompt` and `output`."""
    check_lengths(inputs, requests.prompt, requests.output, requests.context)
    for name, text in {"--rate": requests.rate, "--users": requests.users}.items():
        if text and not requests.output:
            inputs.refuse(f"{name} needs the length of requests: --prompt N --output N.")
    if not (requests.prompt or requests.output):
        context = requests.context or options.CONTEXT
        return {"context": inputs.read(units.parse_length, context, "--context")}
    limits = {
        "prompt": inputs.optional(parse_lengths, requests.prompt, "--prompt"),
        "output": inputs.optional(parse_lengths, requests.output, "--output"),
    }
    return {name: pair and round(sum(pair) / 2) for name, pair in limits.items()}


def parse_lengths(text: str, what: str) -> tuple[int, int]:
    """Parse a length, or a range of lengths that are equally likely: `512-4k` -> (512, 4096).

    >>> parse_lengths("512-4k", "--prompt"), parse_lengths("2048", "--prompt")
    ((512, 4096), (2048, 2048))

    Raises:
        BadInput: not a length, or the first one of a range is larger.
    """
    shortest, _, longest = text.strip().partition("-")
    if not shortest:
        shortest = text  # a negative number
        longest = ""
    low = units.parse_length(shortest, what)
    high = units.parse_length(longest, what) if longest else low
    if low > high:
        raise BadInput(f"{what} {text}: {low:,} is more than {high:,}. Write {longest}-{shortest}.")
    return low, high


def check_lengths(inputs: Inputs, prompt: str, output: str, context: str) -> None:
    """Refuse --context with --prompt or --output, and either of these without the other."""
    if context and (prompt or output):
        inputs.refuse("--context is --prompt and --output together. Give it, or those two.")
    if bool(prompt) != bool(output):
        inputs.refuse("--prompt and --output belong together: give both, or --context alone.")


def require_draft(inputs: Inputs, draft: str, **options: str) -> None:
    """Refuse `options`, the texts of options of drafted tokens, if no tokens are drafted."""
    for name, text in options.items():
        if text and not draft:
            option = name.replace("_", "-")
            inputs.refuse(f"--{option} needs --draft, the tokens that are drafted for each pass.")


def parse_rate(text: str) -> float:
    """Parse a rate, `20/s`, `600/min` or `20`, to requests per second.

    >>> parse_rate("600/min"), parse_rate("10")
    (10.0, 10.0)

    Raises:
        BadInput: no number, or an unknown unit.
    """
    count, unit_s = split_rate(text)
    return units.parse_count(count, "--rate") / unit_s


def parse_share(text: str, what: str) -> float:
    """Parse a share: `50%` or `0.5` -> 0.5. `what` names it in errors.

    Raises:
        BadInput: not between 0 and 1.
    """
    number = text.strip().removesuffix("%").strip()
    full_scale = 100 if "%" in text else 1
    try:
        share = float(number) / full_scale
    except ValueError:
        raise BadInput(f'{what} "{text}" is not a share. Write 50% or 0.5.') from None
    if not 0 <= share <= 1:
        raise BadInput(f"{what} {text} is not between 0 and 1 (100%).")
    return share


def parse_engine(mesh: str, fix: str) -> dict[str, int | str]:
    """Parse the fixed settings of an engine: `tensor=8,kv=batch`.

    Args:
        mesh: the whole engine; axes that it does not name have size 1.
        fix: parts of the engine; the others are searched.

    Raises:
        BadInput: with every part that is wrong.
    """
    from shardwise.search.serving.layouts import NUMBER_OPTIONS, WORD_OPTIONS

    if not (mesh or fix):
        return {}
    settings = parse_settings(mesh or fix, WORD_OPTIONS, (*roles(), *NUMBER_OPTIONS, *WORD_OPTIONS))
    if not mesh:
        return settings
    engine: dict[str, int | str] = dict.fromkeys(roles(), 1)
    del engine["data"]
    return engine | settings
