"""What clients send: OpenAI's fields, and those of vLLM that the engine can serve.

Unknown fields are ignored, since clients send those of other servers. Misspelled ones are refused,
and those of other servers that would change the answer. Fields whose type is a single value are
known and not served: `NOT_SERVED` says what would be.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

MOST_CHOICES = 128
MOST_LOGPROBS = 20
MOST_STOPS = 16

Count = Annotated[int, Meta(ge=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Share = Annotated[float, Meta(ge=0, le=1)]
Logprobs = Annotated[int, Meta(ge=0, le=MOST_LOGPROBS)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TokenText = Annotated[str, Meta(pattern=r"^[0-9]{1,9}$")]
Bias = Annotated[float, Meta(ge=-100, le=100)]
Stop = Annotated[str, Meta(min_length=1, max_length=1000)]
FunctionName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
JsonObject = dict[str, Any]
Choices = Annotated[list[str], Meta(min_length=1, max_length=1000)]

NOT_SERVED = {
    "best_of": "Ask for n choices, and take the best.",
    "suffix": "The model only continues a prompt.",
    "min_tokens": 'Use "ignore_eos": true with max_tokens.',
    "prompt_logprobs": "Log-probabilities are given of generated tokens: logprobs.",
    "functions": "Use tools.",
    "function_call": "Use tool_choice.",
    "modalities": "The model writes text.",
    "audio": "The model writes text.",
    "guided_grammar": "Use guided_regex or guided_json.",
    "grammar": "Use guided_regex or guided_json.",
    "bad_words": "Use logit_bias.",
    "allowed_token_ids": "Use guided_choice or guided_regex.",
    "truncate_prompt_tokens": "Shorten the prompt.",
    "use_beam_search": "Ask for n choices.",
    "return_token_ids": "Ask for logprobs, which name the tokens.",
    "structured_outputs": "Its fields are regex, json and choice.",
}


class StreamOptions(Struct, kw_only=True):
    include_usage: bool | None = None


class StructuredOutputs(Struct, kw_only=True, forbid_unknown_fields=True):
    regex: str | None = None
    json: str | JsonObject | None = None
    choice: Choices | None = None


class TextFormat(Struct, tag_field="type", tag="text"):
    pass


class JsonObjectFormat(Struct, tag_field="type", tag="json_object"):
    pass


class JsonSchema(Struct, kw_only=True):
    schema: JsonObject
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(Struct, tag_field="type", tag="json_schema"):
    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class GenerationRequest(Struct, kw_only=True):
    """Fields of both kinds of completions."""

    model: str | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_CHOICES)] | None = None
    max_tokens: Count | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=MOST_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    logit_bias: Annotated[dict[TokenText, Bias], Meta(max_length=1024)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    user: str | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_regex: str | None = None
    guided_json: str | JsonObject | None = None
    guided_choice: Choices | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=1024)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    min_tokens: Literal[0] | None = None
    prompt_logprobs: None = None
    guided_grammar: None = None
    grammar: Literal[""] | None = None
    bad_words: Annotated[list[str], Meta(max_length=0)] | None = None
    allowed_token_ids: None = None
    truncate_prompt_tokens: None = None
    use_beam_search: Literal[False] | None = None
    return_token_ids: Literal[False] | None = None


class CompletionRequest(GenerationRequest, kw_only=True):
    """Continue a prompt, or each of several."""

    prompt: (
        Annotated[str, Meta(min_length=1)]
        | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1)]
    )
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    echo: bool | None = None
    logprobs: Logprobs | None = None
    best_of: Literal[1] | None = None
    suffix: Literal[""] | None = None


class TextPart(Struct, tag_field="type", tag="text"):
    text: str


class FunctionCall(Struct, kw_only=True):
    name: str
    arguments: str


class MessageToolCall(Struct, kw_only=True):
    function: FunctionCall
    id: str | None = None
    type: Literal["function"] = "function"


class Message(Struct, kw_only=True, omit_defaults=True):
    role: Annotated[str, Meta(min_length=1)]
    content: str | list[TextPart] | UnsetType | None = UNSET
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None


# What a message has to have: see `conversation._check_contents`.
CONTENT_OR_CALLS = {
    "anyOf": [
        {"required": ["content"], "properties": {"content": {"type": ["string", "array"]}}},
        {
            "required": ["tool_calls"],
            "properties": {
                "role": {"const": "assistant"},
                "tool_calls": {"type": "array", "minItems": 1},
            },
        },
    ]
}


class Function(Struct, kw_only=True, omit_defaults=True):
    name: FunctionName
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class Tool(Struct, kw_only=True):
    type: Literal["function"] = "function"
    function: Function


class FunctionChoice(Struct, kw_only=True):
    name: FunctionName


class ToolChoice(Struct, kw_only=True):
    function: FunctionChoice
    type: Literal["function"] = "function"


class ChatRequest(GenerationRequest, kw_only=True):
    """Answer a conversation."""

    messages: Annotated[
        list[Annotated[Message, Meta(extra_json_schema=CONTENT_OR_CALLS)]], Meta(min_length=1)
    ]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: JsonObject | None = None
    add_generation_prompt: bool | None = None
    functions: None = None
    function_call: None = None
    audio: None = None
    modalities: list[Literal["text"]] | None = None
