"""`shardwise generate MODEL "PROMPT"`: continue one prompt on the devices of this machine."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated

from shardwise import units
from shardwise.cli import serving_model
from shardwise.cli.answer import Answer
from shardwise.cli.inputs import Inputs
from shardwise.cli.options import argument, option
from shardwise.cli.serving_model import EngineWords, read_engine_options, read_model
from shardwise.cli.streams import write_answer
from shardwise.errors import BadInput, raise_all
from shardwise.report.style import showable

if TYPE_CHECKING:
    from shardwise.serve.text.texts import Texts

TOKENS = 128
TEMPERATURE = 0.7

sampling_option = partial(option, "Sampling")


def run(
    model: serving_model.ModelOrPlan,
    prompt: Annotated[str, argument("PROMPT", "a text to continue; - to read it from stdin")],
    chat: Annotated[
        bool, option("Workload", "--chat", "the prompt is a message that the model answers")
    ] = False,
    start: serving_model.WeightsFrom = "",
    tokens: Annotated[
        str, sampling_option("--tokens N", f"most tokens of the output  [default: {TOKENS}]")
    ] = "",
    temperature: Annotated[
        float,
        sampling_option("--temperature X", f"0: most likely tokens  [default: {TEMPERATURE}]"),
    ] = TEMPERATURE,
    top_p: Annotated[
        float, sampling_option("--top-p X", "share of probability to draw from  [default: 1]")
    ] = 1.0,
    seed: Annotated[int | None, sampling_option("--seed N", "seed of the draws")] = None,
    stop: Annotated[str, sampling_option("--stop TEXT", "a text that ends the output")] = "",
    context: serving_model.Context = "",
    dtype: serving_model.Weights = "",
    kv_dtype: serving_model.KvDtype = "",
) -> Answer | None:
    """Continue a prompt, or answer a message, with a model on the devices of this machine."""
    inputs = Inputs()
    words = EngineWords(context=context, sequences="1", weights=dtype, kv=kv_dtype)
    options = inputs.read(read_engine_options, words)
    served = inputs.read(read_model, model, start)
    n_tokens = inputs.optional(units.parse_whole, tokens, "--tokens") or TOKENS
    inputs.read(_check_sampling, temperature, top_p)
    inputs.done()
    from shardwise.serve.generate import stream
    from shardwise.serve.request import Sampling
    from shardwise.serve.texts_of_model import texts_of_model

    found, plan = served
    texts = texts_of_model(found)
    if prompt == "-":
        prompt = sys.stdin.read()
    if chat:
        prompt_tokens = _chat_tokens(texts, prompt)
    else:
        prompt_tokens = texts.prompt(prompt)
    sampling = Sampling(temperature=temperature, top_p=top_p, seed=seed)
    with serving_model.running_engine(found, options, plan, quiet=False) as engine:
        room = max(1, engine.max_context - len(prompt_tokens))
        pieces = stream(
            engine,
            texts,
            prompt_tokens,
            max_tokens=min(n_tokens, room),
            sampling=sampling,
            stops=[stop] if stop else [],
        )
        for piece in pieces:
            write_answer(showable(piece, sys.stdout))
    write_answer("\n")
    return None


def _check_sampling(temperature: float, top_p: float) -> None:
    """Raise BadInput for numbers that are no temperature or share."""
    problems = []
    if not 0 <= temperature <= 100:
        problems.append(f"--temperature {temperature} is not between 0 and 100.")
    if not 0 < top_p <= 1:
        problems.append(f"--top-p {top_p} is not above 0 and up to 1.")
    raise_all(BadInput, problems)


def _chat_tokens(texts: Texts, message: str) -> list[int]:
    """The tokens of a conversation that begins with a message."""
    if texts.template is None:
        raise BadInput(f"{texts.model} has no chat template: leave --chat out.")
    rendered = texts.template.render([{"role": "user", "content": message}])
    return texts.vocabulary.encode(rendered)
