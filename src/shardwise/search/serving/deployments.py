"""Deployments as arrays: colocated engines, or disaggregated prefill and decode engines.

Latency and throughput are means over identical requests (`steady_state`), not percentiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

from shardwise.arrays import Num
from shardwise.estimate.serving.attention import kv_shards
from shardwise.estimate.serving.steady_state import requested_rate
from shardwise.models import ModelConfig
from shardwise.models.count import kv_cache_bytes
from shardwise.search.serving.evaluate import PREFILL_LOADS, EngineBlock
from shardwise.search.serving.nodes import cache_link, occupied
from shardwise.search.serving.rule import NO_SLACK, Slack
from shardwise.workload import Serve

# Share of an engine's maximum request rate that a plan uses. The rest is for bursts of requests,
# which the means leave out.
MAX_LOAD = 0.9
DECODE_COUNTS = (1, 2, 3, 4)  # numbers of decode engines to try when the chip count is free


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Deployments as parallel arrays, with one element for each deployment.

    Decode engines of a colocated deployment also prefill; its `prefill_block`, `prefill_row` and
    `prefill_load` are -1.

    Args:
        decode_block: index of the `EngineBlock` of the decode engines.
        decode_point: index of the operating point in that block.
        prefill_block: index of the `EngineBlock` of the prefill engines.
        prefill_row: index of the prefill engine in that block.
        prefill_load: index in `PREFILL_LOADS` of the utilization of the prefill engines.
        n_decode: number of decode engines.
        n_prefill: number of prefill engines.
        chips: number of chips that are paid for.
        tpot_s: mean time per output token.
        ttft_s: mean time to first token.
        tokens_per_s: output tokens per second of the deployment when all engines are full.
        requests_per_s: requests per second of the deployment when all engines are full.
        transfer_s: seconds to send the KV cache of one prompt to a decode engine.
    """

    decode_block: Num
    decode_point: Num
    prefill_block: Num
    prefill_row: Num
    prefill_load: Num
    n_decode: Num
    n_prefill: Num
    chips: Num
    tpot_s: Num
    ttft_s: Num
    tokens_per_s: Num
    requests_per_s: Num
    transfer_s: Num

    def __len__(self) -> int:
        return len(self.chips)

    def take(self, rows: Num) -> Points:
        """The deployments at the indices `rows`."""
        return Points(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePool:
    """Candidate prefill engines, or candidate decode engines, of a disaggregated deployment.

    Parallel arrays, with one element for each candidate engine.

    Args:
        block: index of the engine's `EngineBlock`.
        row: index of a prefill engine, or of the operating point of a decode engine, in the block.
        load: index in `PREFILL_LOADS` of the engine's utilization; 0 for decode engines.
        chips: number of chips of one engine.
        seconds: mean time of a prefill, queueing included, or of a decoding pass.
        batch: sequences that a decode engine decodes at once; 0 for prefill engines.
        requests_per_s: requests per second that one engine completes.
        kv_shards: number of distinct shards into which an engine splits a KV cache.
    """

    block: Num
    row: Num
    load: Num
    chips: Num
    seconds: Num
    batch: Num
    requests_per_s: Num
    kv_shards: Num

    def take(self, rows: Num) -> EnginePool:
        """The engines at the indices `rows`."""
        return EnginePool(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


Arrays = TypeVar("Arrays", Points, EnginePool)


def max_load(job: Serve, slack: Slack = NO_SLACK) -> float:
    """Share of an engine's maximum request rate that a plan uses.

    Users in a closed loop wait for their answers, so they send no bursts and need no reserve.
    """
    return slack.load if job.users else MAX_LOAD * slack.load


def concatenate(parts: Sequence[Arrays]) -> Arrays:
    """Join several groups of parallel arrays into one, field by field."""
    import numpy as np

    columns = {}
    for column in fields(parts[0]):
        columns[column.name] = np.concatenate([getattr(part, column.name) for part in parts])
    return type(parts[0])(**columns)


def colocated(
    blocks: Sequence[EngineBlock],
    job: Serve,
    *,
    machine_is_given: bool,
    slack: Slack = NO_SLACK,
) -> list[Points]:
    """Deployments whose engines both prefill and decode, one `Points` for each block.

    Args:
        machine_is_given: whether the search is on one machine, which limits the number of engines.
        slack: how far its load may be above that of a plan.
    """
    import numpy as np

    deployments = []
    for i, block in enumerate(blocks):
        steady = block.steady
        engines = block.engines.take(block.engine_index)
        n_points = len(engines)
        if machine_is_given:
            n_engines = engines.sizes["data"]
            max_engines = n_engines
        else:
            n_engines = np.ones(n_points)
            max_engines = np.full(n_points, np.inf)
        overhead = block.rates.overhead
        ranks = engines.sizes["expert"]
        delay_s = overhead.first_token_s(steady.tpot_s, steady.batch, ranks)
        ttft_s = steady.ttft_s + delay_s
        rate = requested_rate(job, ttft_s, steady.tpot_s)
        machine_chips = np.array([system.n_chips for system in engines.systems])
        chips = machine_chips[engines.system_index].astype(float)
        if rate is not None:
            n_engines = np.ceil(rate / (max_load(job, slack) * steady.requests_per_s))
            chips = n_engines * engines.engine_chips
            if machine_is_given:
                chips = occupied(block.engines.systems[0], chips, engines.engine_chips)
        no_prefill = np.full(n_points, -1)
        points = Points(
            decode_block=np.full(n_points, i),
            decode_point=np.arange(n_points),
            prefill_block=no_prefill,
            prefill_row=no_prefill,
            prefill_load=no_prefill,
            n_decode=n_engines,
            n_prefill=np.zeros(n_points),
            chips=chips,
            tpot_s=steady.tpot_s,
            ttft_s=ttft_s,
            tokens_per_s=n_engines * steady.tokens_per_s,
            requests_per_s=n_engines * steady.requests_per_s,
            transfer_s=np.zeros(n_points),
        )
        deployments.append(points.take((n_engines <= max_engines).nonzero()[0]))
    return deployments


def disaggregated(
    config: ModelConfig,
    blocks: Sequence[EngineBlock],
    job: Serve,
    max_chips: float,
    *,
    machine_is_given: bool,
) -> list[Points]:
    """Deployments with separate prefill engines, which send KV caches to the decode engines.

    Args:
        max_chips: limit on the total number of chips of all engines; may be infinite.
        machine_is_given: whether the search is on one machine of `max_chips` chips, all of which
            are paid for unless the job states a request rate.
    """
    deployments = []
    indices_by_job: dict[Serve, list[int]] = {}
    for i, block in enumerate(blocks):
        indices_by_job.setdefault(block.job, []).append(i)
    for dtype_job, indices in indices_by_job.items():
        deployments += _pairs(
            config,
            blocks[indices[0]],
            dtype_job,
            _prefill_pool(config, blocks, indices),
            _decode_pool(config, blocks, indices, job),
            max_chips,
            machine_is_given=machine_is_given,
        )
    return deployments


def _prefill_pool(
    config: ModelConfig, blocks: Sequence[EngineBlock], indices: Sequence[int]
) -> EnginePool:
    """Best prefill engines of the blocks at `indices`, at each of `PREFILL_LOADS`."""
    import numpy as np

    pools = []
    n_loads = len(PREFILL_LOADS)
    for i in indices:
        block = blocks[i]
        engines = block.engines
        n_engines = len(engines)
        shape = (n_loads, n_engines)
        pool = EnginePool(
            block=np.full(n_engines * n_loads, i),
            row=np.tile(np.arange(n_engines), n_loads),
            load=np.repeat(np.arange(n_loads), n_engines),
            chips=np.tile(engines.engine_chips, n_loads),
            seconds=np.broadcast_to(block.prefill_s, shape).ravel(),
            batch=np.zeros(n_engines * n_loads),
            requests_per_s=np.broadcast_to(block.prefills_per_s, shape).ravel(),
            kv_shards=np.tile(_kv_shards(config, block, engines.sizes), n_loads),
        )
        pools.append(pool)
    return _undominated(concatenate(pools))


def _decode_pool(
    config: ModelConfig, blocks: Sequence[EngineBlock], indices: Sequence[int], job: Serve
) -> EnginePool:
    """Best operating points of the decode engines of the blocks at `indices`."""
    import numpy as np

    pools = []
    for i in indices:
        block = blocks[i]
        engines = block.engines.take(block.engine_index)
        n_points = len(engines)
        pool = EnginePool(
            block=np.full(n_points, i),
            row=np.arange(n_points),
            load=np.zeros(n_points, int),
            chips=engines.engine_chips,
            seconds=block.steady.pass_s,
            batch=block.batch,
            requests_per_s=block.batch / block.steady.pass_s / (job.output or 1),
            kv_shards=_kv_shards(config, block, engines.sizes),
        )
        pools.append(pool)
    return _undominated(concatenate(pools))


def _undominated(pool: EnginePool) -> EnginePool:
    """The engines on the Pareto front of time and request rate, for each number of chips."""
    import numpy as np

    order = np.lexsort((-pool.requests_per_s, pool.seconds, pool.chips))
    rows = []
    current_chips = -1.0
    best_rate = 0.0
    for row in order:
        chips = pool.chips[row]
        rate = pool.requests_per_s[row]
        if chips != current_chips:
            current_chips = chips
            best_rate = 0.0
        if rate > best_rate:
            rows.append(row)
            best_rate = rate
    return pool.take(np.array(rows, int))


def _kv_shards(config: ModelConfig, block: EngineBlock, sizes: Mapping[str, Num]) -> Num:
    """Number of distinct shards of a KV cache, each of which can be sent over a separate link."""
    import numpy as np

    if not config.attentions:
        return np.ones(len(sizes["tensor"]))
    attention, _ = config.attentions[0]
    return kv_shards(attention, block.form, sizes)


def _engine_counts(
    job: Serve, prefill: EnginePool, decode: EnginePool, max_chips: float, *, machine_is_given: bool
) -> Iterator[tuple[Num, Num]]:
    """Yield numbers of prefill and decode engines to try, as two arrays over pairs of engine types.

    Args:
        prefill: the prefill engine of each pair.
        decode: the decode engine of each pair.
        max_chips: limit on the total number of chips of a deployment.
        machine_is_given: whether the search is on one machine, whose chips are all used.
    """
    import numpy as np

    prefill_rate = prefill.requests_per_s
    decode_rate = decode.requests_per_s
    rate = requested_rate(job, prefill.seconds + decode.seconds, decode.seconds)
    if rate is not None:
        yield np.ceil(rate / prefill_rate), np.ceil(rate / (max_load(job) * decode_rate))
    elif machine_is_given:
        balanced = max_chips / (prefill.chips + decode.chips * prefill_rate / decode_rate)
        for n_prefill in (np.floor(balanced), np.ceil(balanced)):
            yield n_prefill, np.floor((max_chips - n_prefill * prefill.chips) / decode.chips)
    else:
        for count in DECODE_COUNTS:
            yield np.ceil(count * decode_rate / prefill_rate), np.full_like(decode_rate, count)
        yield np.ones_like(decode_rate), np.floor(prefill_rate / decode_rate)


def _pairs(
    config: ModelConfig,
    block: EngineBlock,
    job: Serve,
    prefill_pool: EnginePool,
    decode_pool: EnginePool,
    max_chips: float,
    *,
    machine_is_given: bool,
) -> list[Points]:
    """Deployments of every prefill engine with every decode engine, in the numbers to try."""
    import numpy as np

    shape = (len(prefill_pool.chips), len(decode_pool.chips))
    prefill_index, decode_index = np.indices(shape).reshape(2, -1)
    every_prefill = prefill_pool.take(prefill_index)
    every_decode = decode_pool.take(decode_index)
    cache_bytes = kv_cache_bytes(config, job.prompt_tokens, job.kv)
    overhead = block.rates.overhead
    deployments = []
    for prefill_counts, decode_counts in _engine_counts(
        job, every_prefill, every_decode, max_chips, machine_is_given=machine_is_given
    ):
        total_chips = prefill_counts * every_prefill.chips + decode_counts * every_decode.chips
        legal = (prefill_counts >= 1) & (decode_counts >= 1) & (total_chips <= max_chips)
        rows = legal.nonzero()[0]
        if not len(rows):
            continue
        prefill = every_prefill.take(rows)
        decode = every_decode.take(rows)
        n_prefill = prefill_counts[rows]
        n_decode = decode_counts[rows]
        chips = total_chips[rows]
        requests = np.minimum(n_prefill * prefill.requests_per_s, n_decode * decode.requests_per_s)
        link_rate = cache_link(
            block.rates.chip, block.engines.systems, chips, machine_is_given=machine_is_given
        )
        n_links = np.minimum(prefill.kv_shards, decode.kv_shards)
        transfer_s = cache_bytes / (n_links * link_rate)
        if machine_is_given and job.states_load:
            chips = occupied(block.engines.systems[0], chips, decode.chips)
        elif machine_is_given:
            chips = np.full_like(chips, max_chips)
        points = Points(
            decode_block=decode.block,
            decode_point=decode.row,
            prefill_block=prefill.block,
            prefill_row=prefill.row,
            prefill_load=prefill.load,
            n_decode=n_decode,
            n_prefill=n_prefill,
            chips=chips,
            tpot_s=decode.seconds,
            ttft_s=prefill.seconds
            + transfer_s
            + decode.seconds
            + overhead.first_token_s(decode.seconds, decode.batch),
            tokens_per_s=requests * (job.output or 1),
            requests_per_s=requests,
            transfer_s=transfer_s,
        )
        deployments.append(points)
    return deployments
