"""Pass times and limits of a planned engine, as the simulation needs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.estimate.chip_memory import capacity_bytes
from shardwise.estimate.serving.engine import Engine
from shardwise.estimate.serving.extra_traffic import batch_shards
from shardwise.estimate.serving.memory import max_batch
from shardwise.estimate.serving.pass_table import PassTable
from shardwise.estimate.serving.program_times import ProgramTimes
from shardwise.estimate.serving.steady_state import max_pass_tokens
from shardwise.formulas.inference import speculative_tokens
from shardwise.simulate.limits import Limits
from shardwise.simulate.times import PassTimes
from shardwise.workload import Serve

BLOCK_TOKENS = 16  # vLLM's default block size
HALVINGS = 40  # bisection steps, for 12 digits


@dataclass(frozen=True, slots=True)
class SpeculativePassTimes:
    """Pass times with speculative decoding: passes of the draft model plus the verifying pass.

    Args:
        table: pass times of the target model, which verifies the drafted tokens.
        draft_cost: seconds of all passes of the draft model for one pass of the target model,
            divided by the seconds of that pass if it only decodes.
    """

    table: PassTable
    draft_cost: float

    def pass_s(
        self,
        decode: float,
        kv_tokens: float,
        prefill: float,
        pairs: float,
        chunks: Sequence[tuple[int, int]] = (),
    ) -> float:
        """Seconds of a pass: see `PassTimes`."""
        seconds = self.table.pass_s(decode, kv_tokens, prefill, pairs)
        if not decode:
            return seconds
        decode_s = seconds
        if prefill:
            decode_s = self.table.pass_s(decode, kv_tokens, 0, 0)
        return seconds + self.draft_cost * decode_s

    def traverse_s(self, tokens: int, past: int) -> float:
        """Seconds of a chunk in all stages: see `PassTimes`."""
        return self.table.traverse_s(tokens, past)


def cache_tokens(engine: Engine, job: Serve) -> float:
    """Number of tokens whose keys and values fit into the HBM of an engine beside its weights."""
    batch = max_batch(
        engine.config,
        engine.layout,
        engine.layout.sizes,
        job,
        capacity_bytes(engine.rates.chip),
        ideal=engine.rates.ideal,
    )
    return float(batch) * job.context


def n_blocks(engine: Engine, job: Serve, max_context: int = 0) -> int:
    """Number of KV cache blocks that fit into HBM; never too few for `max_context` tokens."""
    return int(max(cache_tokens(engine, job), max_context) / BLOCK_TOKENS) + 2


def pass_times(engine: Engine, job: Serve, max_context: int, sequences: int) -> PassTimes:
    """Return the pass times of an engine.

    Args:
        job: the workload, which says how many tokens are drafted.
        max_context: tokens of the longest sequence, prompt and output.
        sequences: the most sequences in a pass.
    """
    if engine.rates.measured:
        return ProgramTimes(engine, sequences)
    verified = 1 + job.drafted
    max_rows = int(max_pass_tokens(engine)) + sequences * verified
    table = PassTable(engine, max_rows, 2 * max_context, verified)
    if not job.drafted:
        return table
    return SpeculativePassTimes(table, job.drafted * job.draft_cost)


def engine_limits(
    engine: Engine,
    job: Serve,
    sequences: int,
    *,
    max_context: int = 0,
    chunked: bool | None = None,
    paged: bool = True,
    prefix_cache: bool = True,
) -> Limits:
    """Return the limits of an engine.

    Args:
        sequences: the most sequences that run at the same time.
        max_context: tokens that the KV cache has room for, even if they do not fit into HBM.
        chunked: whether prompts are split into chunks that share passes with decoding; None for
            the default of the engine's software.
        paged, prefix_cache: see `Limits`.
    """
    if chunked is None:
        chunked = engine.rates.overhead.chunked_prefill
    max_tokens = int(max_pass_tokens(engine))
    return Limits(
        n_blocks=n_blocks(engine, job, max_context),
        block_tokens=BLOCK_TOKENS,
        max_sequences=sequences,
        max_tokens=max(max_tokens, sequences),
        chunked=chunked,
        paged=paged,
        prefix_cache=prefix_cache,
        tokens_per_pass=speculative_tokens(job.acceptance, job.drafted),
        passes_ahead=engine.rates.overhead.passes_ahead,
    )


def max_sequences(
    engine: Engine, job: Serve, times: PassTimes, tpot_s: float | None, *, prefills: bool = True
) -> int:
    """Return the most sequences that an engine should run at the same time.

    Sequences of mean length have to fit into the KV cache, and the batch into a pass. With a bound
    on the time between tokens, a full engine has to meet it: one sequence too many would violate
    the bound for all sequences, while in the queue it only waits.

    Args:
        times: pass times of the engine.
        tpot_s: bound on the mean seconds between two tokens; None or 0 for no bound.
        prefills: whether this engine also computes the prompts.
    """
    fitting = cache_tokens(engine, job) / job.mean_context
    shards = int(batch_shards(engine.layout, engine.layout.sizes))
    pass_limit = engine.rates.overhead.max_sequences * shards
    high = max(1, int(min(fitting, pass_limit, max_pass_tokens(engine))))

    def meets(sequences: int) -> bool:
        if not tpot_s:
            return True
        return full_batch_tpot_s(engine, job, times, sequences, prefills=prefills) <= tpot_s

    if meets(high):
        return high
    low = 1  # returned even if a single sequence violates the bound
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
    """Mean seconds between two tokens if a new prompt starts whenever a sequence ends.

    This is the time of a pass without prompts plus the time that prompts add to the passes that
    they share. The time of a pass with the mean load would be wrong: with routed experts, a pass
    becomes much slower with the first prompt token.

    Args:
        times: pass times of the engine.
        sequences: number of running sequences.
        prefills: whether this engine also computes the prompts.
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
    """Mean seconds between two tokens at `rate` requests per second, without simulation.

    By Little's law the number of running sequences is the rate times the time that a sequence
    decodes. Queues are not modelled.

    Args:
        times: pass times of the engine.
        rate: requests per second.
        max_sequences: the most sequences that run at the same time. At a higher rate than these can
            serve, the result is the time at this number.
        prefills: whether this engine also computes the prompts.
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
