"""How a request asks tokens to be chosen, and what structure it gives its output."""

from __future__ import annotations

import json
from typing import Any

from shardwise.serve.http.errors import bad_request
from shardwise.serve.http.requests import (
    GenerationRequest,
    JsonObject,
    JsonObjectFormat,
    JsonSchemaFormat,
)
from shardwise.serve.request import Sampling
from shardwise.serve.text.structure import CHOICE, JSON_OBJECT, JSON_SCHEMA, REGEX, GrammarSpec


def sampling_of(asked: GenerationRequest, logprobs: int | None, vocab: int) -> Sampling:
    """How tokens are chosen.

    Args:
        asked: the decoded body.
        logprobs: as in `Sampling`.
        vocab: number of tokens of the model.

    Raises:
        ApiError: 400 if the logit bias names a token that the model does not have.
    """
    bias = {}
    for text, value in (asked.logit_bias or {}).items():
        bias[int(text)] = value
    check_tokens(list(bias), vocab, "logit_bias")
    values: dict[str, Any] = {"logit_bias": bias, "logprobs": logprobs}
    for name in (
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "seed",
    ):
        value = getattr(asked, name)
        if value is not None:
            values[name] = value
    if values.get("top_k") == -1:  # vLLM's word for all
        values["top_k"] = 0
    return Sampling(**values)


def check_tokens(tokens: list[int], vocab: int, param: str) -> None:
    """Raise a 400 if the model lacks one of the tokens."""
    if tokens and max(tokens) >= vocab:
        raise bad_request(
            f"{param}: the model has the tokens 0 to {vocab - 1}, and not {max(tokens)}.",
            param=param,
        )


def structure_of(asked: GenerationRequest) -> GrammarSpec | None:
    """The structure that a request gives its output; None for free text.

    Raises:
        ApiError: 400 if it gives several, or a schema that is no JSON.
    """
    specs = []
    form = asked.response_format
    if isinstance(form, JsonObjectFormat):
        specs.append(GrammarSpec(kind=JSON_OBJECT))
    if isinstance(form, JsonSchemaFormat):
        specs.append(_schema(form.json_schema.schema, "response_format"))
    regexes = {"guided_regex": asked.guided_regex}
    schemas = {"guided_json": asked.guided_json}
    choices = {"guided_choice": asked.guided_choice}
    if asked.structured_outputs is not None:
        regexes["structured_outputs.regex"] = asked.structured_outputs.regex
        schemas["structured_outputs.json"] = asked.structured_outputs.json
        choices["structured_outputs.choice"] = asked.structured_outputs.choice
    for param, regex in regexes.items():
        if regex is not None:
            specs.append(GrammarSpec(kind=REGEX, definition=regex, param=param))
    for param, schema in schemas.items():
        if schema is not None:
            specs.append(_schema(schema, param))
    for param, texts in choices.items():
        if texts is not None:
            specs.append(GrammarSpec(kind=CHOICE, definition=json.dumps(texts), param=param))
    if len(specs) > 1:
        raise bad_request(
            f"the output is given {len(specs)} structures: give one of response_format, "
            "structured_outputs.json, .regex and .choice, guided_json, guided_regex and "
            "guided_choice."
        )
    if specs:
        return specs[0]
    return None


def _schema(schema: str | JsonObject, param: str) -> GrammarSpec:
    if not isinstance(schema, str):
        return GrammarSpec(kind=JSON_SCHEMA, definition=json.dumps(schema), param=param)
    try:
        json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the schema is no JSON: {error}.", param=param) from None
    return GrammarSpec(kind=JSON_SCHEMA, definition=schema, param=param)
