"""Hostile requests to `shardwise serve`: none lost, none mixed up, nothing left behind.

    pip install 'shardwise[serve]'
    python bench/soak.py REQUESTS [SEED]      # 10000: some ten minutes on two cores

Starts the server with a tiny random Llama and a cache so small that sequences are preempted and
prefixes evicted. Requests of random kinds (`soak_requests.py`) are sent by many clients at once,
and in bursts above the queue's limit: streamed and whole, with several choices, stop strings,
seeds, grammars and shared prefixes, malformed (`soak_malformed.py`), read slowly, and cancelled by
clients that go away at any moment. Each output is compared with what is known of its prompt: greedy
ones with a loop without cache or batches (`soak_reference.py`), others with the answer that the
same request got alone.

Afterwards nothing runs, waits or has blocks, the server has counted what the clients have seen, and
threads, open files and memory are as they were after the first fifth. Then other clients' latency
is measured while some clients do not read their streams. Prints a table, and ends with exit code 1
if anything is not as it should be.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the tiny model is that of the tests

from soak_client import PATIENCE_S, SMALL_BUFFER, connected, exchange, get, message  # noqa: E402
from soak_malformed import COMPLETIONS  # noqa: E402
from soak_reference import CONTEXT, known_prompts, write_model  # noqa: E402
from soak_requests import (  # noqa: E402
    FEW,
    KINDS,
    SPECIAL,
    Fault,
    Kind,
    Target,
    learn,
    require,
    whole,
)

CLIENTS = 32
SEQUENCES, CHUNK, QUEUE = 8, 64, 128
N_BLOCKS = 40  # of 16 tokens: three of the longest sequences
ROUND, BURST_SHARE = 2500, 0.12  # requests of a round, and the share that is sent at once
EVERY_FEW = 500  # requests for each of the rare kinds
FIRST_SHARE = 0.2  # of the requests, after which the server is measured first
MOST_GROWTH = 0.03  # of resident memory from then on: allocators keep some pages
STALLED = 8  # clients that do not read
LATENCIES = 60
MOST_DELAY = 1.5  # of the others' median latency beside them
START_S = 300
IDLE_S = 60
SHOWN_FAULTS = 10
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_blocks_used")


@contextmanager
def served(model: Path, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server of a model as a process, with its port; killed at the end."""
    command = [sys.executable, str(Path(__file__).with_name("soak_server.py")), str(N_BLOCKS)]
    command += ["serve", str(model), "--json", "--port", str(port), "--dtype", "fp32"]
    command += ["--sequences", str(SEQUENCES), "--context", str(CONTEXT), "--chunk", str(CHUNK)]
    command += ["--queue", str(QUEUE)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process, _ready(process)
    finally:
        process.kill()
        process.communicate()


def _ready(process: subprocess.Popen[str]) -> int:
    """The port of a server, once it takes requests."""
    text = ""
    assert process.stdout is not None
    for line in process.stdout:
        text += line
        if line == "}\n":
            return int(re.findall(r":(\d+)/", json.loads(text)["url"])[0])
    raise SystemExit(f"the server has ended with {process.wait()}")


@dataclass(frozen=True, slots=True)
class Held:
    """What a process has of the system."""

    rss_mib: float
    threads: int
    files: int


def held(pid: int) -> Held:
    """What a process has now (Linux)."""
    status = Path(f"/proc/{pid}/status").read_text()
    values = dict(re.findall(r"^(VmRSS|Threads):\s+(\d+)", status, re.MULTILINE))
    files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return Held(int(values["VmRSS"]) / 1024, int(values["Threads"]), files)


@dataclass(slots=True)
class Tally:
    """What has become of the requests."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    async def run(self, kind: Kind, target: Target, rng: random.Random) -> None:
        """Send one request, and note what becomes of it."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                outcome = await kind(target, rng)
        except Fault as fault:
            outcome = "FAULT"
            self.faults.append(f"{kind.__name__}: {fault}")
        except (OSError, ValueError, LookupError, TimeoutError) as error:
            outcome = "FAULT"
            self.faults.append(f"{kind.__name__}: {error!r}")
        self.outcomes[outcome] += 1


async def load(target: Target, n: int, rng: random.Random, tally: Tally) -> None:
    """Send n requests: by many clients, and now and then a burst."""
    kinds = rng.choices(list(KINDS), list(KINDS.values()), k=n)
    for place in range(EVERY_FEW - 1, n, EVERY_FEW):
        kinds[place] = rng.choice(FEW)
    seeds = [rng.randrange(2**32) for _ in kinds]
    work = list(zip(kinds, seeds, strict=True))
    while work:
        requests, work = work[:ROUND], work[ROUND:]
        n_steady = round(len(requests) * (1 - BURST_SHARE))
        queue = iter(requests[:n_steady])

        async def client(queue: Iterator[tuple[Kind, int]] = queue) -> None:
            for kind, seed in queue:
                await tally.run(kind, target, random.Random(seed))

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        burst = [random.Random(seed) for _, seed in requests[n_steady:]]
        await asyncio.gather(*(tally.run(whole, target, one) for one in burst))


async def metrics(port: int) -> dict[str, float]:
    """The server's metrics by name, those of requests by handler and status."""
    text = (await get(port, "/metrics")).body.decode()
    values: dict[str, float] = {}
    for name, labels, value in re.findall(r"^shardwise:(\w+)(\{.*\})? (\S+)$", text, re.MULTILINE):
        values[name] = values.get(name, 0) + float(value)
        if name == "http_requests_total":
            status = re.findall(r'status="(\d+)"', labels)[0]
            if '"/v1' in labels:
                values[status] = values.get(status, 0) + float(value)
    return values


async def idle(pid: int, port: int) -> tuple[dict[str, float], Held]:
    """The server's metrics, and what it has, when nothing runs any more.

    Raises:
        Fault: something is left.
    """
    deadline = time.monotonic() + IDLE_S
    while True:
        values = await metrics(port)
        left = {name: values[name] for name in GAUGES if values[name]}
        if not left:
            break
        require(time.monotonic() < deadline, "left behind:", left)
        await asyncio.sleep(0.1)
    health = await get(port, "/health")
    require(health.status == 200, "health:", health)
    await asyncio.sleep(1)  # for the system to close connections
    return values, held(pid)


@asynccontextmanager
async def stalled(target: Target) -> AsyncIterator[None]:
    """Clients that ask for more than buffers hold, and read nothing."""
    known = max(target.known, key=lambda known: len(known.output))
    body = {"prompt": known.prompt, "max_tokens": CONTEXT - len(known.prompt), "stream": True}
    body |= {"n": 8, "logprobs": 20, "ignore_eos": True}
    async with AsyncExitStack() as stack:
        for _ in range(STALLED):
            _, writer = await stack.enter_async_context(connected(target.port, SMALL_BUFFER))
            writer.write(message(COMPLETIONS, json.dumps(body).encode()))
        await asyncio.sleep(1)
        while (await metrics(target.port))["num_requests_running"]:
            await asyncio.sleep(0.1)
        yield


async def latency_ms(target: Target) -> float:
    """Median latency of a short request."""
    known = target.known[0]
    body = {"prompt": known.prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    sent = message(COMPLETIONS, json.dumps(body).encode())
    seconds = []
    for _ in range(LATENCIES):
        began = time.perf_counter()
        answer = await exchange(target.port, sent)
        require(answer.status == 200, "status", answer.status)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds) * 1e3


async def prepared(port: int, model: Path, seed: int) -> Target:
    """A server with what is known of its outputs."""
    known = known_prompts(model, seed)
    return Target(port=port, known=known, special=[await learn(port, *one) for one in SPECIAL])


async def soak(n: int, seed: int) -> int:
    """Run everything, print the table, and return the exit code."""
    rng = random.Random(seed)
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder) / "tiny")
        with served(model) as (process, port):
            target = await prepared(port, model, seed)
            before = await metrics(port)
            began = time.monotonic()
            await load(target, round(n * FIRST_SHARE), rng, tally)
            _, early = await idle(process.pid, port)
            await load(target, n - round(n * FIRST_SHARE), rng, tally)
            values, late = await idle(process.pid, port)
            seconds = time.monotonic() - began
            alone_ms = await latency_ms(target)
            async with stalled(target):
                beside_ms = await latency_ms(target)
            await idle(process.pid, port)
            alone_ms = max(alone_ms, await latency_ms(target))  # the machine has other work too
    problems = tally.faults + counted_wrongly(tally, before, values)
    problems += left_behind(n, early, late)
    if beside_ms > MOST_DELAY * alone_ms:
        problems.append(f"latency {beside_ms:.1f} ms beside stalled clients, {alone_ms:.1f} alone")
    print(f"{n:,} requests of seed {seed} in {seconds:,.0f} s")
    for outcome, count in tally.outcomes.most_common():
        print(f"  {outcome:18}{count:>8,}")
    print(f"  {'preempted':18}{values['num_preemptions_total']:>8,.0f} sequences")
    print(f"  {'from the cache':18}{values['prefix_cache_hits_total']:>8,.0f} tokens of prompts")
    print(
        f"  {'memory':18}{early.rss_mib:>8,.1f} MiB after a fifth, {late.rss_mib:,.1f} at the end"
    )
    print(f"  {'threads':18}{late.threads:>8} ({early.threads} after a fifth)")
    print(f"  {'open files':18}{late.files:>8} ({early.files} after a fifth)")
    print(f"  {'latency':18}{alone_ms:>8.1f} ms, {beside_ms:.1f} beside {STALLED} stalled clients")
    for problem in problems[:SHOWN_FAULTS]:
        print(f"✗ {problem}")
    print(f"✗ {len(problems)} problems" if problems else "✓ none lost, none mixed up, nothing left")
    return int(bool(problems))


def counted_wrongly(tally: Tally, before: dict[str, float], after: dict[str, float]) -> list[str]:
    """Where the server's count of answers is not that of its clients."""

    def count(status: str) -> float:
        return after.get(status, 0) - before.get(status, 0)

    problems = []
    errors = sum(count(str(status)) for status in range(500, 600))
    if errors:
        problems.append(f"{errors:.0f} answers with 5xx")
    answered, gone = tally.outcomes["answered"], tally.outcomes["client gone"]
    if not answered <= count("200") + count("499"):
        problems.append(f"{answered} answers came, and the server counts {count('200'):.0f}")
    if count("429") < tally.outcomes["queue full (429)"]:
        problems.append(f"the server counts {count('429'):.0f} answers with 429")
    if count("499") > gone + len(tally.faults):
        problems.append(f"{count('499'):.0f} clients went away, and {gone} have")
    return problems


def left_behind(n: int, early: Held, late: Held) -> list[str]:
    """What the server has more than after the first fifth of the requests."""
    problems = []
    if late.threads > early.threads:
        problems.append(f"{late.threads} threads, {early.threads} after a fifth")
    if late.files > early.files:
        problems.append(f"{late.files} open files, {early.files} after a fifth")
    enough = n >= 5000  # before that, caches and allocators still fill
    if enough and late.rss_mib > (1 + MOST_GROWTH) * early.rss_mib:
        problems.append(f"{late.rss_mib:,.1f} MiB of memory, {early.rss_mib:,.1f} after a fifth")
    return problems


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(__doc__)
    words = [int(word) for word in sys.argv[1:]]
    sys.exit(asyncio.run(soak(words[0], words[1] if words[1:] else 1)))
