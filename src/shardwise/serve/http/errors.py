"""Errors as clients get them, in the shape of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

INVALID = "invalid_request_error"
SERVER = "server_error"


class ApiError(Exception):
    """An error with its HTTP status.

    Args:
        status: HTTP status.
        message: what was asked, the limit, and what would work.
        kind: `type` of the error.
        param: path of the field that is wrong; None if no single one is.
        code: what programs distinguish errors by.
        headers: further headers of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def document(self) -> dict[str, Any]:
        """The body of the response."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """A request that cannot be served as it is."""
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str, *, code: str, retry_seconds: int = 1) -> ApiError:
    """A server that cannot serve any request now."""
    headers = {"retry-after": str(retry_seconds)}
    return ApiError(503, message, kind=SERVER, code=code, headers=headers)


def failed(message: str) -> ApiError:
    """A fault of the server."""
    return ApiError(500, message, kind=SERVER, code="internal_error")
