"""Events of traces that tests make up."""

from __future__ import annotations

from typing import Any

from shardwise.profile.devices import Event

MODULE = "jit_step"


def event(name: str, start_ns: float, end_ns: float, **changes: Any) -> Event:
    """An operation of a program that the model does not name, but for these fields."""
    fields = {
        "operation": ("", ""),
        "category": "matmul",
        "module": MODULE,
        "run": None,
        "program": MODULE,
    }
    fields |= {"line": "thread", "asynchronous": False} | changes
    return Event(name=name, start_ns=start_ns, end_ns=end_ns, **fields)
