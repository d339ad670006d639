"""Measure a server at each load of a sweep."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardwise.errors import BadInput, MissingExtra
from shardwise.serve.load.measurement import Measurement, measure, pareto
from shardwise.serve.load.prediction import Predictor
from shardwise.serve.load.requests import (
    Prompts,
    Shape,
    TextLength,
    check_count,
    closed_loop,
    open_loop,
    random_tokens,
    random_words,
    text_pieces,
)
from shardwise.serve.load.schedule import Clock, Replies, send_all
from shardwise.simulate import Slo, Traffic
from shardwise.simulate.traffic import fixed

if TYPE_CHECKING:
    from shardwise.plan.schema.serving import ServingPlan
    from shardwise.serve.load.client import Client, Server

Progress = Callable[[int, int], None]
# Tokens of pieces of a text are counted first, so that prompts have the length that is asked for:
# of short pieces, which are mostly what every prompt has, and of longer ones, parts of a prompt.
TEXT_PARTS = (0.1, 0.9)
TEXT_TOKENS = 2_000  # counted in pieces of a length, where a prompt is shorter than that
MIN_TEXT_PIECES = 2
MAX_TEXT_PIECES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A load of a sweep: a rate, a number of users, or neither for a recording as it is."""

    rate: float | None = None
    users: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """The measurements of a sweep.

    Args:
        url, model, chat: the server, and how it was asked.
        arrivals: kind of the arrivals, or the file name of a recording.
        prompt, output: tokens that requests were to have; None for a recording.
        seed: seed of arrivals and prompts.
        ttft_bound_s, tpot_bound_s: bounds for goodput; None for no bound.
        rows: a measurement for each load.
        pareto: indices of the rows that no other beats in throughput and TPOT, fastest first.
    """

    url: str
    model: str
    chat: bool
    arrivals: str
    prompt: int | None
    output: int | None
    seed: int
    ttft_bound_s: float | None
    tpot_bound_s: float | None
    rows: tuple[Measurement, ...]
    pareto: tuple[int, ...]


def bench(
    url: str,
    points: Sequence[Point],
    shape: Shape,
    *,
    model: str = "",
    key: str = "",
    chat: bool = False,
    text: str = "",
    warmup: int = 0,
    ttft_s: float | None = None,
    tpot_s: float | None = None,
    plan: ServingPlan | None = None,
    on_reply: Progress = lambda done, total: None,
) -> BenchResult:
    """Send the requests of each load to a server, one load after the other, and measure them.

    Args:
        url: address of a server with the OpenAI API, without /v1.
        points: the loads.
        shape: lengths, number and arrivals of requests.
        model: name of the model; empty for the first one that the server lists.
        key: API key; empty for none.
        chat: send prompts as chats rather than as texts to complete.
        text: text that prompts are cut from; empty for random tokens.
        warmup: requests before the first measurement that do not count.
        ttft_s, tpot_s: bounds for goodput; None for no bound.
        plan: the plan of the server, which predicts each measurement.
        on_reply: called after each reply with the number of replies and of requests of a load.

    Raises:
        BadInput: no server answers, or it refuses the requests of the warm-up.
        MissingExtra: httpx is not installed.
    """
    try:
        from shardwise.serve.load.client import Server
    except ImportError:
        raise MissingExtra(
            "requests are sent by httpx, which is missing: pip install 'shardwise[serve]'."
        ) from None
    slo = Slo(ttft_s=ttft_s or math.inf, tpot_s=tpot_s or math.inf)
    predictor = None
    if plan is not None:
        predictor = Predictor(plan, slo)
    check_count(warmup)
    loads = [_traffic(shape, point) for point in points]
    sweep = _Sweep(shape=shape, loads=loads, text=text, warmup=warmup, on_reply=on_reply)
    server, replies = asyncio.run(sweep.run(Server(url=url, key=key, model=model, chat=chat)))
    rows = []
    for point, replies_of_point in zip(points, replies, strict=True):
        row = measure(replies_of_point, slo, point.rate, point.users)
        if predictor:
            row = row.beside(predictor.predict(replies_of_point.replies, point.users))
        rows.append(row)
    is_recorded = shape.arrivals.trace is not None
    return BenchResult(
        url=url,
        model=server.model,
        chat=chat,
        arrivals=shape.arrivals.name or shape.arrivals.kind,
        prompt=None if is_recorded else shape.prompt,
        output=None if is_recorded else shape.output,
        seed=shape.seed,
        ttft_bound_s=ttft_s,
        tpot_bound_s=tpot_s,
        rows=tuple(rows),
        pareto=tuple(rows.index(row) for row in pareto(rows)),
    )


def _traffic(shape: Shape, point: Point) -> Traffic:
    if point.users:
        return closed_loop(shape, point.users)
    return open_loop(shape, point.rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sweep:
    """The loads of a sweep: see `bench`."""

    shape: Shape
    loads: Sequence[Traffic]
    text: str
    warmup: int
    on_reply: Progress

    async def run(self, server: Server) -> tuple[Server, list[Replies]]:
        """Warm the server up and send each load.

        Returns:
            The server with the name of its model, and the replies to each load.
        """
        from shardwise.serve.load.client import Client

        clock = Clock()
        replies = []
        async with Client(server, clock) as client:
            if not server.model:
                client.server = replace(server, model=await client.first_model())
            length = TextLength()
            if self.text:
                length = await self._text_length(client, clock)
            if self.warmup:
                await self._warm_up(client, clock, length)
            for index, traffic in enumerate(self.loads):
                prompts = self._prompts(client, f"load {index}", length)
                replies.append(await self._send(client, clock, traffic, prompts))
        return client.server, replies

    async def _text_length(self, client: Client, clock: Clock) -> TextLength:
        """Learn from short pieces of the text how many tokens the server counts in them."""
        usual = float(self.loads[0].prompt.mean())
        n = min(MAX_TEXT_PIECES, max(MIN_TEXT_PIECES, math.ceil(TEXT_TOKENS / usual)))
        counts = []
        for part in TEXT_PARTS:
            traffic = Traffic(
                users=1, prompt=fixed(n, max(1, int(part * usual))), output=fixed(n, 1)
            )
            # No tokenizer counts more tokens than characters: no piece is longer than a prompt.
            prompts = self._prompts(client, f"text {part}", TextLength(per_token=1.0))
            replies = await send_all(traffic, prompts, client.send, clock)
            for request, reply in zip(traffic, replies.replies, strict=True):
                if reply.prompt_tokens:
                    counts.append((len(prompts(request)), reply.prompt_tokens))
        if len({characters for characters, _ in counts}) < len(TEXT_PARTS):
            return TextLength()
        return TextLength.of(counts)

    async def _warm_up(self, client: Client, clock: Clock, length: TextLength) -> None:
        """Send requests of the usual lengths at once, and check that one of them is answered."""
        n = self.warmup
        recording = self.shape.arrivals.trace
        if recording is None:
            prompt = fixed(n, self.shape.prompt)
            output = fixed(n, self.shape.output)
        else:
            prompt = recording.prompt[:n]
            output = recording.output[:n]
        traffic = Traffic(users=n, prompt=prompt, output=output)
        prompts = self._prompts(client, "warm-up", length)
        replies = (await send_all(traffic, prompts, client.send, clock)).replies
        errors = [reply for reply in replies if reply.error]
        if len(errors) == len(replies):
            raise BadInput(
                f"{client.server.url} answered no request of the warm-up: {errors[0].error}, "
                f"{errors[0].message}."
            )

    async def _send(
        self, client: Client, clock: Clock, traffic: Traffic, prompts: Prompts
    ) -> Replies:
        return await send_all(
            traffic,
            prompts,
            client.send,
            clock,
            seconds=self.shape.seconds,
            on_reply=lambda done: self.on_reply(done, len(traffic)),
        )

    def _prompts(self, client: Client, name: str, length: TextLength) -> Prompts:
        """Prompts that differ from those of other loads, which the server may have cached."""
        seed = f"{self.shape.seed} {name}"
        if self.text:
            return text_pieces(self.text, seed, length)
        if client.server.chat:
            return random_words(seed)
        return random_tokens(seed, client.vocab)
