"""Adapter from the planner's engines to the simulation: seconds of passes, and limits."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.estimate.serving.engine import Engine
from shardwise.estimate.serving.extra_traffic import batch_shards
from shardwise.estimate.serving.memory import max_batch
from shardwise.estimate.serving.pass_table import PassTable
from shardwise.estimate.serving.steady_state import max_pass_tokens
from shardwise.formulas.inference import speculative_tokens
from shardwise.simulate.limits import Limits
from shardwise.simulate.times import PassTimes
from shardwise.workload import Serve

BLOCK_TOKENS = 16  # vLLM's default block size
HALVINGS = 40  # of an interval: to the last digit that matters
LARGEST_BATCH = 2048  # sequences per pass and batch shard: TensorRT-LLM's default max_batch_size


@dataclass(frozen=True, slots=True)
class SpeculativePassTimes:
    """Times of passes that verify drafted tokens, including the draft model's own passes.

    Args:
        table: pass times of the target model.
        draft_cost: seconds of all passes of the draft model over those of one decode pass.
    """

    table: PassTable
    draft_cost: float

    def pass_s(self, decode: float, kv_tokens: float, prefill: float, pairs: float) -> float:
        """Seconds of a pass: see `PassTimes`."""
        seconds = self.table.pass_s(decode, kv_tokens, prefill, pairs)
        if not decode:
            return seconds
        decode_s = seconds
        if prefill:
            decode_s = self.table.pass_s(decode, kv_tokens, 0, 0)
        return seconds + self.draft_cost * decode_s


def cache_tokens(engine: Engine, job: Serve) -> float:
    """Tokens whose keys and values fit into the HBM that an engine's weights leave."""
    batch = max_batch(
        engine.config,
        engine.layout,
        engine.layout.sizes,
        job,
        engine.rates.chip.need("hbm_bytes"),
        ideal=engine.rates.ideal,
    )
    return float(batch) * job.context


def n_blocks(engine: Engine, job: Serve, longest: int = 0) -> int:
    """Blocks of the cache that fit into HBM, enough for at least `longest` tokens."""
    return int(max(cache_tokens(engine, job), longest) / BLOCK_TOKENS) + 2


def pass_times(engine: Engine, job: Serve, longest: int, sequences: int) -> PassTimes:
    """Seconds of any pass of the engine.

    Args:
        job: whose drafted tokens are verified.
        longest: tokens of the longest sequence.
        sequences: most sequences of a pass.
    """
    verified = 1 + job.drafted
    max_rows = int(max_pass_tokens(engine)) + sequences * verified
    table = PassTable(engine, max_rows, 2 * longest, verified)
    if not job.drafted:
        return table
    return SpeculativePassTimes(table, job.drafted * job.draft_cost)


def engine_limits(
    engine: Engine,
    job: Serve,
    sequences: int,
    *,
    longest: int = 0,
    chunked: bool | None = None,
    paged: bool = True,
    prefix_cache: bool = True,
) -> Limits:
    """Limits of a pass of the engine, and its KV cache.

    Args:
        sequences: most sequences that run at once.
        longest: tokens for which the cache has room in any case.
        chunked: split prompts into chunks that share passes with decoding; None for the default of
            the engine's software.
    """
    if chunked is None:
        chunked = engine.rates.overhead.chunked_prefill
    max_tokens = int(max_pass_tokens(engine))
    return Limits(
        n_blocks=n_blocks(engine, job, longest),
        block_tokens=BLOCK_TOKENS,
        max_sequences=sequences,
        max_tokens=max(max_tokens, sequences),
        chunked=chunked,
        paged=paged,
        prefix_cache=prefix_cache,
        tokens_per_pass=speculative_tokens(job.acceptance, job.drafted),
    )


def max_sequences(
    engine: Engine, job: Serve, times: PassTimes, tpot_s: float | None, *, prefills: bool = True
) -> int:
    """The most sequences that an engine should run at once.

    As many as fit into the cache on average and into a pass; with a bound on the time between
    tokens, as many as meet it when the engine is full. More would violate it for all sequences,
    where one more would only wait.

    Args:
        times: seconds of its passes.
        tpot_s: bound on the seconds between two tokens.
        prefills: whether this engine computes the prompts, too.
    """
    fitting = cache_tokens(engine, job) / job.mean_context
    shards = int(batch_shards(engine.layout, engine.layout.sizes))
    high = max(1, int(min(fitting, LARGEST_BATCH * shards, max_pass_tokens(engine))))

    def meets(sequences: int) -> bool:
        if not tpot_s:
            return True
        return full_batch_tpot_s(engine, job, times, sequences, prefills=prefills) <= tpot_s

    if meets(high):
        return high
    low = 1  # may violate the bound, too: then no batch meets it
    while high - low > 1:
        middle = (low + high) // 2
        if meets(middle):
            low = middle
        else:
            high = middle
    return low


def full_batch_tpot_s(
    engine: Engine, job: Serve, times: PassTimes, sequences: float, *, prefills: bool = True
) -> float:
    """Mean seconds between tokens when a new prompt starts whenever a sequence ends.

    Sums the time of passes without prompts and what a prompt adds to the passes that it shares. A
    pass of the mean load would not do: passes of routed experts are far slower from the first
    prompt token on.
    """
    tokens_per_pass = float(speculative_tokens(job.acceptance, job.drafted))
    kv_tokens = sequences * job.mean_context

    def pass_s(prefill: float, pairs: float) -> float:
        return times.pass_s(sequences, kv_tokens, prefill, pairs)  # type: ignore[arg-type]

    decode_s = pass_s(0.0, 0.0)
    if not prefills or not job.output:
        return decode_s / tokens_per_pass
    prompt = job.fresh_tokens
    ends_per_pass = sequences * tokens_per_pass / job.output
    budget = max(1.0, float(max_pass_tokens(engine)) - sequences)
    chunk = min(budget, prompt * max(1.0, ends_per_pass))
    pairs = chunk * (job.prompt_tokens - prompt) + chunk * (prompt + 1) / 2
    prompt_s = (pass_s(chunk, pairs) - decode_s) * prompt / chunk
    return (decode_s + ends_per_pass * prompt_s) / tokens_per_pass


def mean_field_tpot_s(
    engine: Engine,
    job: Serve,
    times: PassTimes,
    rate: float,
    max_sequences: int,
    *,
    prefills: bool = True,
) -> float:
    """Mean seconds between tokens at `rate` requests per second, in the closed form.

    As many sequences run as arrive while one is served, which holds for constant arrivals.

    Args:
        max_sequences: most sequences at once; a rate above what they serve gives their time.
    """
    gaps = max(1, (job.output or 1) - 1)
    low = 0.0
    high = float(max_sequences)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        tpot_s = full_batch_tpot_s(engine, job, times, middle, prefills=prefills)
        if middle > rate * gaps * tpot_s:
            high = middle
        else:
            low = middle
    return full_batch_tpot_s(engine, job, times, max(1.0, high), prefills=prefills)
