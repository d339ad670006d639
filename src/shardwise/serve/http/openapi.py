"""The OpenAPI document, made of the structs that bodies are decoded into."""

from __future__ import annotations

from typing import Any

import msgspec

from shardwise.serve.http.requests import ChatRequest, CompletionRequest
from shardwise.serve.http.responses import (
    ChatChunk,
    ChatResponse,
    CompletionResponse,
    ErrorResponse,
    Health,
    ModelCard,
    ModelList,
)
from shardwise.serve.prefill_message import PATH as PREFILL_PATH

REFERENCE = "#/components/schemas/{name}"
SCHEMAS = (
    CompletionRequest,
    ChatRequest,
    CompletionResponse,
    ChatResponse,
    ChatChunk,
    ErrorResponse,
    Health,
    ModelCard,
    ModelList,
)
JSON = "application/json"
PROBLEMS = {
    "400": "The body is refused; the message says why.",
    "401": "The API key is missing or wrong.",
    "404": "The model is not served.",
    "408": "The body did not come in time.",
    "413": "The body is too long.",
    "415": "The body is declared as no JSON.",
    "429": "Too many requests wait.",
    "500": "The server or the engine failed.",
    "503": "The server is shutting down, or its engine or prefill server has failed.",
}


def openapi(
    version: str, *, keys: bool, prefill: type[msgspec.Struct] | None = None
) -> dict[str, Any]:
    """The document.

    Args:
        version: of this package.
        keys: whether the server asks for API keys.
        prefill: the body of a prompt for a server that computes prompts for others; None if this
            one does not.
    """
    structs = SCHEMAS if prefill is None else (*SCHEMAS, prefill)
    _, schemas = msgspec.json.schema_components(structs, ref_template=REFERENCE)
    components: dict[str, Any] = {"schemas": schemas}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Shardwise", "version": version},
        "paths": {
            "/v1/completions": {
                "post": _generation(CompletionRequest, CompletionResponse, CompletionResponse)
            },
            "/v1/chat/completions": {"post": _generation(ChatRequest, ChatResponse, ChatChunk)},
            "/v1/models": {"get": _read("The served model.", _content(JSON, ModelList), "401")},
            "/v1/models/{model}": {"get": _model()},
            "/health": {
                "get": _read("Whether requests are served.", _content(JSON, Health), "503")
            },
            "/metrics": {"get": _read("Metrics for Prometheus.", {"text/plain": {}})},
        },
        "components": components,
    }
    if prefill is not None:
        document["paths"][PREFILL_PATH] = {"post": _prefill(prefill)}
    if keys:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _generation(
    asked: type[msgspec.Struct], whole: type[msgspec.Struct], chunk: type[msgspec.Struct]
) -> dict[str, Any]:
    content = _content(JSON, whole)
    stream = f"Server-sent events, each {chunk.__name__}; the last one is [DONE]."
    event = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
    content["text/event-stream"] = {"schema": {"description": stream, **event}}
    responses = {"200": {"description": "The answer.", "content": content}, **_problems(*PROBLEMS)}
    return {
        "summary": asked.__doc__,
        "requestBody": {"required": True, "content": _content(JSON, asked)},
        "responses": responses,
    }


def _prefill(asked: type[msgspec.Struct]) -> dict[str, Any]:
    description = "The first token and the KV cache of the prompt (serve/prefill_message.py)."
    content = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    return {
        "summary": asked.__doc__,
        "requestBody": {"required": True, "content": _content(JSON, asked)},
        "responses": {
            "200": {"description": description, "content": content},
            **_problems(*PROBLEMS),
        },
    }


def _read(description: str, content: dict[str, Any], *problems: str) -> dict[str, Any]:
    responses = {"200": {"description": description, "content": content}, **_problems(*problems)}
    return {"summary": description, "responses": responses}


def _model() -> dict[str, Any]:
    operation = _read("The served model.", _content(JSON, ModelCard), "401", "404")
    name = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    return {**operation, "parameters": [name]}


def _problems(*statuses: str) -> dict[str, Any]:
    responses = {}
    for status in statuses:
        content = _content(JSON, ErrorResponse)
        responses[status] = {"description": PROBLEMS[status], "content": content}
    return responses


def _content(kind: str, value: type[msgspec.Struct]) -> dict[str, Any]:
    return {kind: {"schema": {"$ref": REFERENCE.format(name=value.__name__)}}}
