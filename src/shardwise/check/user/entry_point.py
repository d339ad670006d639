"""Import of an object by its name, `module:attribute` or `path/to/file.py:attribute`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from shardwise.errors import BadInput


def load_attribute(name: str) -> Any:
    """Import the module of `module:attribute`, or a file, and return the attribute.

    Raises:
        BadInput: the module, the file or the attribute does not exist.
    """
    module_name, _, path = name.rpartition(":")
    if not (module_name and path):
        raise BadInput(f'"{name}" does not name a function. Write module:function.')
    if module_name.endswith(".py"):
        value: Any = _import_file(Path(module_name))
    else:
        value = _import_module(module_name, name)
    for attribute in path.split("."):
        if not hasattr(value, attribute):
            raise BadInput(f'module "{module_name}" has no "{path}".')
        value = getattr(value, attribute)
    return value


def _import_module(module_name: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # Not if the module exists, but imports another one that does not.
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise BadInput(f'there is no module "{error.name}" ({name}).') from None
        raise


def _import_file(path: Path) -> ModuleType:
    """Import a file, in its package if it is in one.

    Like a script it finds the modules that lie beside it.
    """
    file = path.resolve()
    if not file.is_file():
        raise BadInput(f"there is no file {path}.")
    name = file.stem
    root = file.parent
    while (root / "__init__.py").is_file():
        name = f"{root.name}.{name}"
        root = root.parent
    for folder in dict.fromkeys((root, file.parent)):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    module = importlib.import_module(name)
    if module.__file__ is None or Path(module.__file__).resolve() != file:
        raise BadInput(f"{path} has the name of another module, {module.__file__}. Rename it.")
    return module
