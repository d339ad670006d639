"""Mean state of an engine under constant traffic, in closed form, to compare simulations with.

Let `x` requests arrive per decode pass, each with `d` decode passes. In a long run, a pass then
decodes `x d` sequences on average, reads their mean contexts, and computes `x` prompts. If a pass
takes `step_s(x)` seconds, the request rate is `x / step_s(x)`, which is solved for `x`.

With affine pass times this is exact for the mean pass, since the mean of an affine function is the
function of the means. There are three approximations:

- There is no variation: no queues, no long passes, no preemption.
- Without chunked prefill, prompts are assumed to arrive one by one. In fact, requests that end
  together let the next ones start together, and their prompts share passes.
- A sequence does not decode while its own prompt is computed, so it shares its passes with half a
  prompt less than the mean (1 % of TPOT for tens of sequences).
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.arrays import ceil_div
from shardwise.errors import BadInput
from shardwise.simulate.limits import Limits
from shardwise.simulate.request import Request
from shardwise.simulate.times import PassTimes

HALVINGS = 60  # bisection steps, to the last digit of a double


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanField:
    """The mean state of one engine under constant traffic.

    Args:
        rate: requests per second that the engine serves.
        largest_rate: the most requests per second that it can serve.
        step_s: mean seconds from one decode pass to the next, without idle time.
        decoding: mean number of sequences that decode in a decode pass.
        tpot_s: mean seconds between two tokens of a request.
        utilisation: share of the time in which passes run.
    """

    rate: float
    largest_rate: float
    step_s: float
    decoding: float
    tpot_s: float
    utilisation: float


@dataclass(frozen=True, slots=True)
class _MeanRequest:
    """A request of mean prompt and output length, and the passes that it needs."""

    times: PassTimes
    limits: Limits
    prompt: float
    output: float

    @property
    def decode_passes(self) -> float:
        """Decode passes of the request; its first token comes from the pass over the prompt."""
        return (self.output - 1) / self.limits.tokens_per_pass

    @property
    def context(self) -> float:
        """Mean tokens that a decode pass reads from the KV cache for one sequence."""
        return self.prompt + self.limits.tokens_per_pass * (self.decode_passes + 1) / 2

    @property
    def pairs(self) -> float:
        """(query, key) pairs of the prompt."""
        return self.prompt * (self.prompt + 1) / 2

    @property
    def n_chunks(self) -> int:
        """Number of passes for the prompt, if they contain no other prompt."""
        if not self.limits.chunked:
            return 1
        return int(ceil_div(int(self.prompt), self.limits.max_tokens))

    def pass_s(self, decode: float, prompts: float) -> float:
        """Seconds of a pass that decodes `decode` sequences and computes `prompts` prompts.

        Both may be fractions.
        """
        prefill = prompts * self.prompt
        return self._pass_s_of_work(decode, decode * self.context, prefill, prompts * self.pairs)

    def _pass_s_of_work(
        self, decode: float, kv_tokens: float, prefill: float, pairs: float
    ) -> float:
        return self.times.pass_s(decode, kv_tokens, prefill, pairs)  # type: ignore[arg-type]

    def step_s(self, x: float) -> float:
        """Seconds from one decode pass to the next when `x` requests arrive in between."""
        if self.limits.chunked:
            return self.pass_s(x * self.decode_passes, x)
        prompts = max(1.0, min(x, self.limits.max_tokens // self.prompt))
        prefill_s = self.pass_s(0, prompts) / prompts
        return self.pass_s(x * self.decode_passes, 0) + x * prefill_s

    def alone_s(self) -> float:
        """Seconds that the request takes in an engine without other requests."""
        total = self.decode_passes * self.pass_s(1, 0)
        remaining = self.prompt
        for index in range(self.n_chunks):
            tokens = remaining
            if self.n_chunks > 1:
                tokens = min(remaining, self.limits.max_tokens)
            past = index * self.limits.max_tokens
            pairs = tokens * past + tokens * (tokens + 1) / 2
            total += self._pass_s_of_work(0, 0, tokens, pairs)
            remaining -= tokens
        return total

    def max_per_pass(self) -> float:
        """Return the most requests per decode pass that the limits of the engine allow.

        The limits are on the sequences, on the tokens of a pass, and on KV cache blocks.
        """
        limits = self.limits
        decode_passes = self.decode_passes
        prefill_passes = 0
        if limits.chunked:
            prefill_passes = self.n_chunks
        if limits.paged:
            # Half of the last block of a sequence is empty on average.
            n_blocks = (self.context / limits.block_tokens + 0.5) * decode_passes
            n_blocks += prefill_passes * ceil_div(int(self.prompt), limits.block_tokens)
        else:
            request = Request(0, 0.0, round(self.prompt), round(self.output))
            n_blocks = limits.blocks_for(request) * (decode_passes + prefill_passes)
        bounds = [
            limits.max_sequences / max(decode_passes + prefill_passes, 1.0),
            limits.n_blocks * (1 - limits.watermark) / max(n_blocks, 1.0),
        ]
        if limits.chunked:
            bounds.append(limits.max_tokens / (self.prompt + decode_passes))
        return min(bounds)


def mean_field(
    times: PassTimes, limits: Limits, prompt: float, output: float, rate: float
) -> MeanField:
    """Compute the mean state of one engine for equal requests at equal intervals.

    If a request ends before the next one arrives, requests never share a pass, and the engine is
    idle in between. Otherwise it is always busy. Above `largest_rate` the queue grows without
    bound, and the result is the state at `largest_rate`.

    Args:
        times: seconds of a pass; the result is exact for the mean pass if they are affine.
        limits: limits of the engine.
        prompt, output: mean tokens of the prompt and of the answer.
        rate: requests per second.

    Raises:
        BadInput: a length or the rate is out of range.
    """
    if prompt < 1 or output < 1 or rate <= 0:
        raise BadInput(
            "prompt and output must be at least 1 and rate above 0, "
            f"not {prompt}, {output} and {rate}."
        )
    request = _MeanRequest(times, limits, prompt, output)
    high = request.max_per_pass()
    largest_rate = high / request.step_s(high)
    alone_s = request.alone_s()
    utilisation = rate * alone_s
    if utilisation <= 1:
        step_s = request.pass_s(1, 0)
        decoding = 1.0
        largest_rate = max(largest_rate, 1 / alone_s)
    else:
        utilisation = 1.0
        if rate < largest_rate:
            low = 0.0
            for _ in range(HALVINGS):
                x = (low + high) / 2
                if x < rate * request.step_s(x):
                    low = x
                else:
                    high = x
        step_s = request.step_s(high)
        decoding = high * request.decode_passes
    return MeanField(
        rate=min(rate, largest_rate),
        largest_rate=largest_rate,
        step_s=step_s,
        decoding=decoding,
        tpot_s=step_s / limits.tokens_per_pass,
        utilisation=utilisation,
    )
