"""From what a client asked for to generations in tokens."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from shardwise.errors import ShardwiseError
from shardwise.serve.http.errors import bad_request
from shardwise.serve.http.requests import GenerationRequest
from shardwise.serve.http.sampling import check_tokens, sampling_of, structure_of
from shardwise.serve.request import Generation, TokenMask
from shardwise.serve.text.structure import Grammar, GrammarSpec
from shardwise.serve.text.texts import Texts
from shardwise.serve.text.tools import Parser, PlainText


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What is served.

    Args:
        texts: of the model.
        max_context: the most tokens of prompt and output together.
        vocab: number of tokens of the model.
        grammar: makes the mask of a structured output; None if none can be made.
        most_sequences: the most outputs that one request may ask for.
    """

    texts: Texts
    max_context: int
    vocab: int
    grammar: Grammar | None
    most_sequences: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a request wants that the two kinds of completions express differently.

    Args:
        id: of the answer.
        prompts: tokens of each prompt.
        client: whom the request takes turns for.
        max_tokens: tokens of each output; None for as many as fit.
        logprobs: as in `Sampling`.
        structure: of a required call; None for what the request says.
        parser: makes the parser of an output.
        continues: whether an output continues its prompt, rather than to begin a text.
        scores_prompt: whether log-probabilities of the prompts' tokens are reported.
    """

    id: str
    prompts: Sequence[Sequence[int]]
    client: str
    max_tokens: int | None
    logprobs: int | None
    structure: GrammarSpec | None = None
    parser: Callable[[], Parser] = PlainText
    continues: bool = False
    scores_prompt: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One generation, and how its tokens become text.

    Args:
        generation: what the engine is asked.
        stops: strings that end the text.
        include_stop: whether such a string is part of the text.
        special: whether special tokens are written out.
        context: tokens that the text continues; empty if it begins anew.
        parser: makes the parser of the text.
    """

    generation: Generation
    stops: tuple[str, ...]
    include_stop: bool
    special: bool
    context: tuple[int, ...]
    parser: Callable[[], Parser]


def new_id(prefix: str) -> str:
    """An id that no other answer has."""
    return f"{prefix}-{uuid.uuid4().hex}"


def prepare(service: Service, asked: GenerationRequest, wish: Wish) -> list[Output]:
    """The outputs of a request: those of the first prompt, then those of the next.

    Raises:
        ApiError: 400 if they cannot be served.
    """
    choices = asked.n or 1
    _check_count(service, len(wish.prompts), choices)
    structure = wish.structure or structure_of(asked)
    sampling = sampling_of(asked, wish.logprobs, service.vocab)
    stop_tokens = _stop_tokens(service, asked)
    if wish.scores_prompt and wish.max_tokens == 1:  # clients count on a token after the prompt's
        stop_tokens = frozenset()
    stops = tuple(asked.stop or ())
    if isinstance(asked.stop, str):
        stops = (asked.stop,)
    outputs: list[Output] = []
    for prompt in wish.prompts:
        max_tokens = _output_length(service, prompt, wish.max_tokens)
        for choice in range(choices):
            seed = sampling.seed
            if seed is not None:  # else all choices would be the same
                seed = (seed + choice) % 2**63
            generation = Generation(
                id=f"{wish.id}-{len(outputs)}",
                prompt=tuple(prompt),
                max_tokens=max_tokens,
                sampling=replace(sampling, seed=seed),
                stop_tokens=stop_tokens,
                mask=_mask(service, structure),
                scores_prompt=wish.scores_prompt,
                client=wish.client,
            )
            output = Output(
                generation=generation,
                stops=stops,
                include_stop=bool(asked.include_stop_str_in_output),
                special=asked.skip_special_tokens is False,
                context=generation.prompt if wish.continues else (),
                parser=wish.parser,
            )
            outputs.append(output)
    return outputs


def _check_count(service: Service, prompts: int, choices: int) -> None:
    if prompts * choices > service.most_sequences:
        raise bad_request(
            f"{prompts} prompts with {choices} choices each are {prompts * choices} outputs; this "
            f"server takes up to {service.most_sequences} in a request. Send several requests.",
            param="n",
        )


def _stop_tokens(service: Service, asked: GenerationRequest) -> frozenset[int]:
    stop_tokens = frozenset(asked.stop_token_ids or ())
    check_tokens(list(stop_tokens), service.vocab, "stop_token_ids")
    if asked.ignore_eos:
        return stop_tokens
    return stop_tokens | service.texts.stop_tokens


def _output_length(service: Service, prompt: Sequence[int], max_tokens: int | None) -> int:
    """Tokens that an output may have.

    Raises:
        ApiError: 400 if the prompt is empty, or it and the output are longer than the context.
    """
    if not prompt:
        raise bad_request("the prompt is empty: it needs at least one token.", param="prompt")
    check_tokens(list(prompt), service.vocab, "prompt")
    room = service.max_context - len(prompt)
    if room < (max_tokens or 1):
        most = f"the model's context is {service.max_context} tokens"
        param = "max_tokens"
        if room < 1:
            param = "prompt"
            problem = f"{most}, and the prompt has {len(prompt)}: shorten the prompt."
        else:
            problem = (
                f"{most}, and the prompt has {len(prompt)}: max_tokens can be up to {room}, and "
                f"is {max_tokens}."
            )
        raise bad_request(problem, param=param, code="context_length_exceeded")
    return max_tokens or room


def _mask(service: Service, structure: GrammarSpec | None) -> TokenMask | None:
    """The mask of one output.

    Raises:
        ApiError: 400 if the structure is malformed, or no grammars can be made.
    """
    if structure is None:
        return None
    if service.grammar is None:
        raise bad_request(
            "structured outputs need the package llguidance on the server: "
            "pip install 'shardwise[serve]'.",
            param=structure.param,
            code="structured_outputs_unavailable",
        )
    try:
        return service.grammar(structure)
    except ShardwiseError as error:
        raise bad_request(
            f"the structure of the output ({structure.kind}) is refused: {error}",
            param=structure.param,
        ) from None
