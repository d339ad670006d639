"""The engines that the planner predicts, as a simulation takes them: seconds of passes, limits."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.estimate.serving.engine import Engine
from shardwise.estimate.serving.extra_traffic import batch_shards
from shardwise.estimate.serving.memory import max_batch
from shardwise.estimate.serving.pass_table import PassTable
from shardwise.estimate.serving.steady_state import max_pass_tokens
from shardwise.formulas.inference import speculative_tokens
from shardwise.simulate.limits import Limits
from shardwise.simulate.times import Times
from shardwise.workload import Serve

BLOCK = 16  # tokens of a block: what vLLM takes by default
HALVINGS = 40  # of an interval: to the last digit that matters
LARGEST_BATCH = 2048  # sequences of one pass, each part: TensorRT-LLM's default max_batch_size


@dataclass(frozen=True, slots=True)
class Drafted:
    """Passes that score drafted tokens, after those of the small model that drafts them.

    Args:
        table: of the large model.
        share: seconds of all passes of the small model over those of a decoding one.
    """

    table: PassTable
    share: float

    def pass_s(self, decode: float, kv_tokens: float, prefill: float, pairs: float) -> float:
        """Seconds of a pass: see `Times`."""
        seconds = self.table.pass_s(decode, kv_tokens, prefill, pairs)
        if not decode:
            return seconds
        alone = self.table.pass_s(decode, kv_tokens, 0, 0) if prefill else seconds
        return seconds + self.share * alone


def cache_tokens(engine: Engine, job: Serve) -> float:
    """Tokens whose keys and values fit beside the weights of an engine."""
    capacity, sizes = engine.rates.chip.need("hbm_bytes"), engine.layout.sizes
    ideal = engine.rates.ideal
    most = max_batch(engine.config, engine.layout, sizes, job, capacity, ideal=ideal)
    return float(most) * job.context


def n_blocks(engine: Engine, job: Serve, longest: int = 0, block: int = BLOCK) -> int:
    """Blocks of the cache that fit beside the weights, enough for `longest` tokens at least."""
    return int(max(cache_tokens(engine, job), longest) / block) + 2


def pass_times(engine: Engine, job: Serve, longest: int, sequences: int) -> Times:
    """Seconds of any pass of the engine.

    Args:
        job: whose drafted tokens are scored.
        longest: tokens of the longest sequence.
        sequences: most of a pass.
    """
    scored = 1 + job.drafted
    rows = int(max_pass_tokens(engine)) + sequences * scored
    table = PassTable(engine, rows, 2 * longest, scored)
    return Drafted(table, job.drafted * job.draft_cost) if job.drafted else table


def limits_of(
    engine: Engine,
    job: Serve,
    sequences: int,
    *,
    longest: int = 0,
    chunked: bool | None = None,
    paged: bool = True,
    prefix_cache: bool = True,
) -> Limits:
    """What a pass of the engine may hold, and its cache.

    Args:
        sequences: that run at once at most.
        longest: tokens for which the cache has room in any case.
        chunked: prompts are cut and share passes with decoding; None for the software's habit.
    """
    software = engine.rates.overhead
    return Limits(
        n_blocks=n_blocks(engine, job, longest),
        block=BLOCK,
        max_sequences=sequences,
        max_tokens=max(int(max_pass_tokens(engine)), sequences),
        chunked=software.chunked_prefill if chunked is None else chunked,
        paged=paged,
        prefix_cache=prefix_cache,
        tokens_per_pass=speculative_tokens(job.acceptance, job.drafted),
    )


def most_sequences(
    engine: Engine, job: Serve, times: Times, bound_s: float | None, *, reads: bool = True
) -> int:
    """Sequences that an engine should run at once at most.

    As many as fit in the mean and in a pass; with a bound on the time between tokens, as many as
    meet it when the engine is full. More would break it for all, where one more would only wait.

    Args:
        times: seconds of its passes.
        bound_s: seconds between two tokens.
        reads: prompts come in as answers end; else others read them.
    """
    fit = cache_tokens(engine, job) / job.mean_context
    parts = int(batch_shards(engine.layout, engine.layout.sizes))
    most = max(1, int(min(fit, LARGEST_BATCH * parts, max_pass_tokens(engine))))

    def meets(n: int) -> bool:
        return not bound_s or full_s(engine, job, times, n, reads=reads) <= bound_s

    if meets(most):
        return most
    low, high = 1, most  # `high` breaks the bound; `low` may too, then no batch meets it
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low


def full_s(engine: Engine, job: Serve, times: Times, n: float, *, reads: bool = True) -> float:
    """Mean seconds between tokens when `n` sequences run and a prompt comes in as one ends.

    Passes without prompts, and what a prompt adds to those that it shares: not the pass of the mean
    load, as passes of routed experts take far longer from the first prompt token on.
    """
    gain = float(speculative_tokens(job.acceptance, job.drafted))
    keys = n * job.mean_context

    def pass_s(tokens: float, pairs: float) -> float:
        return times.pass_s(n, keys, tokens, pairs)  # type: ignore[arg-type]

    plain = pass_s(0.0, 0.0)
    if not reads or not job.output:
        return plain / gain
    fresh = job.fresh_tokens
    ends = n * gain / job.output  # in one pass
    chunk = min(max(1.0, float(max_pass_tokens(engine)) - n), fresh * max(1.0, ends))
    pairs = chunk * (job.prompt_tokens - fresh) + chunk * (fresh + 1) / 2
    added = (pass_s(chunk, pairs) - plain) * fresh / chunk
    return (plain + ends * added) / gain


def balanced_s(
    engine: Engine, job: Serve, times: Times, rate: float, most: int, *, reads: bool = True
) -> float:
    """Mean seconds between tokens at `rate` requests a second, by balance alone.

    As many sequences run as come in while one is served: the closed form for constant arrivals.

    Args:
        most: sequences that run at once; a higher rate than they serve gives their time.
    """
    gaps = max(1, (job.output or 1) - 1)
    low, high = 0.0, float(most)
    for _ in range(HALVINGS):
        n = (low + high) / 2
        over = n > rate * gaps * full_s(engine, job, times, n, reads=reads)
        low, high = (low, n) if over else (n, high)
    return full_s(engine, job, times, max(1.0, high), reads=reads)
