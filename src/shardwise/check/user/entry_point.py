"""Import of an object by its name, `module:attribute`."""

from __future__ import annotations

import importlib
from typing import Any

from shardwise.errors import BadInput


def load_attribute(name: str) -> Any:
    """Import the module of `module:attribute` and return the attribute.

    Raises:
        BadInput: the module or the attribute does not exist.
    """
    module_name, _, path = name.partition(":")
    if not (module_name and path):
        raise BadInput(f'"{name}" does not name a function. Write module:function.')
    try:
        value: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # Not if the module exists, but imports another one that does not.
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise BadInput(f'there is no module "{error.name}" ({name}).') from None
        raise
    for attribute in path.split("."):
        if not hasattr(value, attribute):
            raise BadInput(f'module "{module_name}" has no "{path}".')
        value = getattr(value, attribute)
    return value
