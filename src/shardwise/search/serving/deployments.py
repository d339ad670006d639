"""Deployments as arrays: engines that do both, or engines that read beside engines that generate.

Latency and throughput are means over equal requests (`estimate.serving.steady_state`), not
percentiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from shardwise.arrays import Num
from shardwise.estimate.serving.attention import kv_shards
from shardwise.hardware import Chip, Switched, System
from shardwise.models import ModelConfig
from shardwise.models.count import kv_cache_bytes
from shardwise.search.serving.evaluate import BUSY, Block
from shardwise.workload import Serve

# Engines are planned for so much of the requests that they can end: means know no bursts.
FULL = 0.9
SERVERS = (1, 2, 3, 4)  # engines that generate, where the number of chips is free


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Deployments, one element each.

    Args:
        block, point: what generates: a block and its operating point.
        reader, site, busy: what reads: a block, its engine, an index of `BUSY`; -1 where engines
            do both.
        engines, readers: how many of each.
        chips: of the deployment: what is paid for.
        tokens_per_s, requests_per_s: at most; requests 0 where no length of answers is stated.
        transfer_s: of a prompt's keys and values from one engine to the other.
    """

    block: Num
    point: Num
    reader: Num
    site: Num
    busy: Num
    engines: Num
    readers: Num
    chips: Num
    tpot_s: Num
    ttft_s: Num
    tokens_per_s: Num
    requests_per_s: Num
    transfer_s: Num

    def __len__(self) -> int:
        return len(self.chips)

    def take(self, rows: Num) -> Points:
        """Some of them."""
        return Points(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


def joined(parts: Sequence[Points]) -> Points:
    """Several as one."""
    import numpy as np

    names = [f.name for f in fields(Points)]
    return Points(**{n: np.concatenate([getattr(p, n) for p in parts]) for n in names})


def together(blocks: Sequence[Block], job: Serve, *, sized: bool) -> list[Points]:
    """Deployments whose engines read and generate."""
    import numpy as np

    found = []
    for i, block in enumerate(blocks):
        here, steady = block.sites.take(block.row), block.steady
        room = here.sizes["data"] if sized else np.full(len(here), np.inf)
        engines = here.sizes["data"] if sized else np.ones(len(here))
        chips = np.array([s.n_chips for s in here.systems])[here.system].astype(float)
        if job.rate:
            engines = np.ceil(job.rate / (FULL * steady.requests_per_s))
            chips = engines * here.engine_chips
        none = np.full(len(here), -1)
        every = Points(
            block=np.full(len(here), i),
            point=np.arange(len(here)),
            reader=none,
            site=none,
            busy=none,
            engines=engines,
            readers=np.zeros(len(here)),
            chips=chips,
            tpot_s=steady.tpot_s,
            ttft_s=steady.ttft_s + block.rates.overhead.request_s,
            tokens_per_s=engines * steady.tokens_per_s,
            requests_per_s=engines * steady.requests_per_s,
            transfer_s=np.zeros(len(here)),
        )
        found.append(every.take((engines <= room).nonzero()[0]))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """Engines of one kind that are worth it: none of their size is both faster and busier."""

    block: Num
    place: Num
    busy: Num
    chips: Num
    seconds: Num
    rate: Num
    ways: Num

    def take(self, rows: Num) -> _Side:
        return _Side(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


def apart(
    config: ModelConfig, blocks: Sequence[Block], job: Serve, limit: int, *, sized: bool
) -> list[Points]:
    """Deployments with engines of their own for prompts, the caches sent between them.

    Args:
        limit: chips of all of them at most.
        sized: the chips are given, and all are paid for.
    """
    found = []
    for one in dict.fromkeys(b.job for b in blocks):
        some = [i for i, b in enumerate(blocks) if b.job == one]
        read, generate = _readers(config, blocks, some), _generators(config, blocks, some, job)
        found += _pairs(config, blocks[some[0]], one, read, generate, limit, sized=sized)
    return found


def _readers(config: ModelConfig, blocks: Sequence[Block], some: Sequence[int]) -> _Side:
    import numpy as np

    sides = []
    for i in some:
        here = blocks[i].sites
        n, k = len(here), len(BUSY)
        sides.append(
            _Side(
                block=np.full(n * k, i),
                place=np.tile(np.arange(n), k),
                busy=np.repeat(np.arange(k), n),
                chips=np.tile(here.engine_chips, k),
                seconds=np.broadcast_to(blocks[i].reading_s, (k, n)).ravel(),
                rate=np.broadcast_to(blocks[i].reads_per_s, (k, n)).ravel(),
                ways=np.tile(_ways(config, blocks[i], here.sizes), k),
            )
        )
    return _best(_both(sides))


def _generators(
    config: ModelConfig, blocks: Sequence[Block], some: Sequence[int], job: Serve
) -> _Side:
    import numpy as np

    sides = []
    for i in some:
        block = blocks[i]
        here = block.sites.take(block.row)
        sides.append(
            _Side(
                block=np.full(len(here), i),
                place=np.arange(len(here)),
                busy=np.zeros(len(here), int),
                chips=here.engine_chips,
                seconds=block.steady.pass_s,
                rate=block.batch / block.steady.pass_s / (job.output or 1),
                ways=_ways(config, block, here.sizes),
            )
        )
    return _best(_both(sides))


def _both(sides: Sequence[_Side]) -> _Side:
    import numpy as np

    names = [f.name for f in fields(_Side)]
    return _Side(**{n: np.concatenate([getattr(s, n) for s in sides]) for n in names})


def _best(side: _Side) -> _Side:
    """The front of seconds against rate, of each number of chips."""
    import numpy as np

    order = np.lexsort((-side.rate, side.seconds, side.chips))
    keep = []
    chips, most = -1.0, 0.0
    for i, n, rate in zip(order, side.chips[order], side.rate[order], strict=True):
        if n != chips:
            chips, most = n, 0.0
        if rate > most:
            keep.append(i)
            most = rate
    return side.take(np.array(keep, int))


def _ways(config: ModelConfig, block: Block, sizes: object) -> Num:
    """Chips that hold different parts of a cache: so many links carry it."""
    import numpy as np

    attentions = [a for a, _ in config.attentions]
    n = len(sizes["tensor"])  # type: ignore[index]
    return kv_shards(attentions[0], block.form, sizes) if attentions else np.ones(n)  # type: ignore[arg-type]


def link(chip: Chip, systems: Sequence[System], chips: Num, *, sized: bool) -> Num:
    """Bytes per second of one chip's slowest link between two engines of a deployment.

    GPUs of one domain use its switches, others the network between nodes; engines on one TPU slice
    its ICI, on several slices DCN.

    Raises:
        UnknownFigure: the chip has no figure for it.
    """
    import numpy as np

    if chip.ici:
        inside = sized and systems[0].n_slices == 1
        rate = chip.need("ici.link" if inside else "dcn.bandwidth")
        return np.full_like(chips, rate)
    topology = systems[0].topology
    domain = topology.domain if isinstance(topology, Switched) else 1
    near = chips <= domain
    node = chip.need("node.egress") if near.any() else 0.0
    out = chip.need("scale_out.egress") if not near.all() else 0.0
    return np.where(near, node, out)


def _pairs(
    config: ModelConfig,
    block: Block,
    job: Serve,
    read: _Side,
    generate: _Side,
    limit: int,
    *,
    sized: bool,
) -> list[Points]:
    """Every pair of engines in the ratio that serves most."""
    import numpy as np

    p, d = (i.ravel() for i in np.indices((len(read.chips), len(generate.chips))))
    reads, ends = read.rate[p], generate.rate[d]
    n_read, n_end = read.chips[p], generate.chips[d]
    counts = []
    if job.rate:
        counts = [(np.ceil(job.rate / reads), np.ceil(job.rate / (FULL * ends)))]
    elif sized:
        even = limit / (n_read + n_end * reads / ends)
        for x in (np.floor(even), np.ceil(even)):
            counts.append((x, np.floor((limit - x * n_read) / n_end)))
    else:
        counts = [(np.ceil(y * ends / reads), np.full_like(ends, y)) for y in SERVERS]
        counts.append((np.ones_like(ends), np.floor(reads / ends)))
    n_bytes = kv_cache_bytes(config, job.prompt_tokens, job.kv)
    ways = np.minimum(read.ways[p], generate.ways[d])
    server_s, found = block.rates.overhead.request_s, []
    for x, y in counts:
        used = x * n_read + y * n_end
        rows = ((x >= 1) & (y >= 1) & (used <= limit)).nonzero()[0]
        if not len(rows):
            continue
        x, y, used, r, g = x[rows], y[rows], used[rows], p[rows], d[rows]
        requests = np.minimum(x * reads[rows], y * ends[rows])
        rate = link(block.rates.chip, block.sites.systems, used, sized=sized)
        sent = n_bytes / (ways[rows] * rate)
        found.append(
            Points(
                block=generate.block[g],
                point=generate.place[g],
                reader=read.block[r],
                site=read.place[r],
                busy=read.busy[r],
                engines=y,
                readers=x,
                chips=np.full_like(used, limit) if sized and not job.rate else used,
                tpot_s=generate.seconds[g],
                ttft_s=read.seconds[r] + sent + generate.seconds[g] + server_s,
                tokens_per_s=requests * (job.output or 1),
                requests_per_s=requests,
                transfer_s=sent,
            )
        )
    return found
