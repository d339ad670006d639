"""`shardwise generate MODEL "prompt"`: text from a model on the devices of this host."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from shardwise import units
from shardwise.cli import options, serving_model
from shardwise.cli.answer import Answer
from shardwise.cli.inputs import Inputs
from shardwise.cli.options import argument, option
from shardwise.cli.serving_model import EngineWords, read_engine_options, read_model
from shardwise.cli.streams import write_answer
from shardwise.errors import BadInput
from shardwise.report.style import printable, showable
from shardwise.serve.request import Sampling

if TYPE_CHECKING:
    from shardwise.serve.text.texts import Texts

MAX_TOKENS = 128

sampling_option = partial(option, "Sampling")


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedText:
    """The prompt and the text that a model generated for it."""

    model: str
    prompt: str
    text: str


def run(
    model: serving_model.ModelOrPlan,
    prompt: Annotated[str, argument("PROMPT", "text to continue")],
    chat: Annotated[
        bool, option("Workload", "--chat", "the prompt is the user's message in a chat")
    ] = False,
    max_tokens: Annotated[
        str,
        option("Workload", "--max-tokens N", f"most tokens to generate  [default: {MAX_TOKENS}]"),
    ] = "",
    stop: Annotated[str, option("Workload", "--stop TEXT", "text at which the output ends")] = "",
    temperature: Annotated[
        float | None,
        sampling_option("--temperature X", "0: the most probable token  [default: 1]"),
    ] = None,
    top_k: Annotated[
        str, sampling_option("--top-k N", "draw from the N most probable tokens  [default: all]")
    ] = "",
    top_p: Annotated[
        float | None,
        sampling_option("--top-p X", "draw from the most probable, up to this sum  [default: 1]"),
    ] = None,
    seed: Annotated[
        int | None, sampling_option("--seed N", "seed of the draws  [default: a new one]")
    ] = None,
    start: serving_model.WeightsFrom = "",
    context: serving_model.Context = "",
    dtype: serving_model.WeightsDtype = "",
    kv_dtype: serving_model.KvDtype = "",
    draft: serving_model.Draft = "",
    drafted: serving_model.Drafted = "",
    json: options.Json = False,
) -> Answer:
    """Generate text with a model in this process. Text appears as it is generated."""
    inputs = Inputs()
    words = EngineWords(
        context=context, sequences="1", weights=dtype, kv=kv_dtype, draft=draft, drafted=drafted
    )
    engine_options = inputs.read(read_engine_options, words)
    served = inputs.read(read_model, model, start)
    n_tokens = inputs.optional(units.parse_whole, max_tokens, "--max-tokens") or MAX_TOKENS
    sampling = inputs.read(_sampling, temperature, top_k, top_p, seed)
    inputs.done()
    from shardwise.serve.generate import stream
    from shardwise.serve.texts_of_model import texts_of_model

    found, plan = served
    texts = texts_of_model(found)
    prompt_tokens = _chat_tokens(texts, prompt) if chat else texts.prompt(prompt)
    pieces = []
    with serving_model.running_engine(found, engine_options, plan, quiet=json) as engine:
        stops = (stop,) if stop else ()
        room = engine.max_context - len(prompt_tokens)
        if max_tokens and n_tokens > room > 0:
            sys.stderr.write(
                f"the context of {engine.max_context:,} tokens has room for {room:,} after the "
                f"prompt, fewer than --max-tokens {n_tokens:,}\n"
            )
        for piece in stream(
            engine, texts, prompt_tokens, max_tokens=n_tokens, sampling=sampling, stops=stops
        ):
            pieces.append(piece)
            if not json:
                write_answer(showable(printable(piece), sys.stdout))
    result = GeneratedText(model=model, prompt=prompt, text="".join(pieces))
    # The text has been written already; what is left of it is the end of its line.
    return Answer(document=lambda: result, blocks=(), raw="\n", as_json=json)


def _sampling(
    temperature: float | None, top_k: str, top_p: float | None, seed: int | None
) -> Sampling:
    """The options of sampling.

    Raises:
        BadInput: with every option that is out of range.
    """
    inputs = Inputs()
    if temperature is not None and not 0 <= temperature <= 100:
        inputs.refuse(f"--temperature {temperature:g} is not between 0 and 100.")
    if top_p is not None and not 0 < top_p <= 1:
        inputs.refuse(f"--top-p {top_p:g} is not above 0 and at most 1.")
    if seed is not None and seed < 0:
        inputs.refuse(f"--seed {seed} is below 0.")
    n_top = inputs.optional(units.parse_whole, top_k, "--top-k")
    inputs.done()
    return Sampling(
        temperature=1.0 if temperature is None else temperature,
        top_k=n_top or 0,
        top_p=1.0 if top_p is None else top_p,
        seed=seed,
    )


def _chat_tokens(texts: Texts, message: str) -> list[int]:
    """The tokens of a conversation that begins with a message.

    Raises:
        BadInput: the model has no chat template.
    """
    if texts.template is None:
        raise BadInput(f"{texts.model} has no chat template: leave --chat out.")
    rendered = texts.template.render([{"role": "user", "content": message}])
    return texts.vocabulary.encode(rendered)
