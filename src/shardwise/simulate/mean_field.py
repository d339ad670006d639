"""The closed form beside the simulation: what balance alone says of constant traffic.

In a long run every request brings its prompt and its decode passes, whatever happens in between. So
if `x` requests come for each pass, a pass decodes `x d` sequences on the mean (`d` decode passes a
request), reads their mean contexts and computes `x` prompts; and `x` a pass in `step(x)` seconds
is the rate. Where pass times are affine this is no approximation of the mean pass: the mean over
passes of an affine function is the function of the means. What it cannot know is variation: queues,
the longest pass, preemption. Whole prompts are taken to come one by one; those that end together
make the next ones start together, and then share passes. And no sequence decodes during its own
prompt, so it meets half a prompt less than the mean (1 % of TPOT for tens of sequences).
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.arrays import ceil_div
from shardwise.errors import BadInput
from shardwise.simulate.limits import Limits
from shardwise.simulate.request import Request
from shardwise.simulate.times import Times

HALVINGS = 60  # of an interval: to the last digit


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanField:
    """The mean state of one engine under constant traffic.

    Args:
        rate: requests a second that it serves.
        largest_rate: requests a second that it can serve.
        step_s: mean busy seconds from one decode pass to the next.
        decoding: mean sequences in a decode pass.
        tpot_s: mean seconds between the tokens of a request.
        utilisation: share of the time in which passes run.
    """

    rate: float
    largest_rate: float
    step_s: float
    decoding: float
    tpot_s: float
    utilisation: float


@dataclass(frozen=True, slots=True)
class _Means:
    """What one request brings, on the mean."""

    times: Times
    limits: Limits
    prompt: float
    output: float

    @property
    def decodes(self) -> float:
        """Decode passes; the first token comes from the prompt's pass."""
        return (self.output - 1) / self.limits.tokens_per_pass

    @property
    def context(self) -> float:
        """Tokens that a decode pass reads of one sequence."""
        return self.prompt + self.limits.tokens_per_pass * (self.decodes + 1) / 2

    @property
    def pairs(self) -> float:
        """Query-key pairs of the prompt."""
        return self.prompt * (self.prompt + 1) / 2

    @property
    def chunks(self) -> int:
        """Passes over a prompt that has a pass for itself."""
        return ceil_div(int(self.prompt), self.limits.max_tokens) if self.limits.chunked else 1

    def seconds(self, decode: float, prompts: float) -> float:
        """A pass with mean sequences and mean prompts, which need not be whole numbers."""
        prefill = prompts * self.prompt
        return self._pass_s(decode, decode * self.context, prefill, prompts * self.pairs)

    def _pass_s(self, decode: float, kv_tokens: float, prefill: float, pairs: float) -> float:
        return self.times.pass_s(decode, kv_tokens, prefill, pairs)  # type: ignore[arg-type]

    def step(self, x: float) -> float:
        """Seconds from one decode pass to the next when `x` requests come in between."""
        if self.limits.chunked:
            return self.seconds(x * self.decodes, x)
        together = max(1.0, min(x, self.limits.max_tokens // self.prompt))
        prefill_s = self.seconds(0, together) / together
        return self.seconds(x * self.decodes, 0) + x * prefill_s

    def alone_s(self) -> float:
        """Seconds of a request in an idle engine."""
        n, left = self.chunks, self.prompt
        total = self.decodes * self.seconds(1, 0)
        for i in range(n):
            tokens = min(left, self.limits.max_tokens) if n > 1 else left
            past = i * self.limits.max_tokens
            pairs = tokens * past + tokens * (tokens + 1) / 2
            total += self._pass_s(0, 0, tokens, pairs)
            left -= tokens
        return total

    def most(self) -> float:
        """Requests a pass that sequences, tokens and blocks allow."""
        limits, decodes = self.limits, self.decodes
        prefills = self.chunks if limits.chunked else 0
        blocks = (self.context / limits.block + 0.5) * decodes  # a last block is half full
        blocks += prefills * ceil_div(int(self.prompt), limits.block)
        if not limits.paged:
            request = Request(0, 0.0, round(self.prompt), round(self.output))
            blocks = limits.blocks_for(request) * (decodes + prefills)
        allowed = [
            limits.max_sequences / max(decodes + prefills, 1.0),
            limits.n_blocks * (1 - limits.watermark) / max(blocks, 1.0),
        ]
        if limits.chunked:
            allowed.append(limits.max_tokens / (self.prompt + decodes))
        return min(allowed)


def mean_field(
    times: Times, limits: Limits, prompt: float, output: float, rate: float
) -> MeanField:
    """The mean state of one engine for requests at equal distances and of equal lengths.

    Above `largest_rate` the queue grows for ever, and the state is that at the largest rate. As
    long as a request ends before the next one arrives, none meets another; otherwise some pass
    always runs.

    Args:
        times: seconds of a pass; affine ones make the mean pass exact.
        limits: of the engine.
        prompt, output: tokens of a request, or their means.
        rate: requests a second.

    Raises:
        BadInput: lengths or a rate that cannot be.
    """
    if prompt < 1 or output < 1 or rate <= 0:
        raise BadInput(
            f"prompt {prompt}, output {output} and rate {rate} must be at least 1, 1, 0."
        )
    means = _Means(times, limits, prompt, output)
    most = means.most()
    largest = most / means.step(most)
    alone_s = means.alone_s()
    if rate * alone_s <= 1:
        step_s, decoding, utilisation = means.seconds(1, 0), 1.0, rate * alone_s
        largest = max(largest, 1 / alone_s)
    else:
        utilisation = 1.0
        low, high = 0.0, most
        if rate < largest:
            for _ in range(HALVINGS):
                x = (low + high) / 2
                low, high = (x, high) if x < rate * means.step(x) else (low, x)
        step_s, decoding = means.step(high), high * means.decodes
    return MeanField(
        rate=min(rate, largest),
        largest_rate=largest,
        step_s=step_s,
        decoding=decoding,
        tpot_s=step_s / limits.tokens_per_pass,
        utilisation=utilisation,
    )
