"""`module:attribute` -> the object."""

from __future__ import annotations

import importlib
from typing import Any

from shardwise.errors import BadInput


def find(name: str) -> Any:
    """The attribute that `module:attribute` names.

    Raises:
        BadInput: no such module or attribute.
    """
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise BadInput(f'"{name}" names no function. Write module:function.')
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise BadInput(f'no module "{error.name}" to be found ({name}).') from None
        raise
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise BadInput(f'module "{module}" has no "{attribute}".')
        found = getattr(found, part)
    return found
