"""Modules in place of libraries that are imported beside a framework's parser.

The parser stands in a module that also imports image libraries, web servers or kernels. Where these
are not installed, the import has to succeed all the same; the parser calls nothing of them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _AnyName(type):
    """Gives a class every attribute, and lets annotations use the class."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __iter__(cls) -> Iterator[Any]:
        return iter(())


class StandIn(metaclass=_AnyName):
    """A class, a decorator or a value of an absent library."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        decorates = len(args) == 1 and callable(args[0])
        return args[0] if decorates else StandIn

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> dict[str, str]:
        return {"type": "any"}


class _Module(ModuleType):
    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn


class _Finder(MetaPathFinder, Loader):
    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in self._names:
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def allow(*names: str) -> None:
    """Let these top-level packages be imported where they are not installed."""
    sys.meta_path.append(_Finder(names))


def answer(parse: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Parse each file of the list of requests on stdin; the last line of stdout has what was read.

    What the parser refuses has the key "error" alone.
    """
    answers: list[dict[str, Any]] = []
    for request in json.load(sys.stdin):
        try:
            answers.append(parse(request))
        except SystemExit as error:  # of argparse, which has printed its reason
            answers.append({"error": f"exit {error.code}"})
        except Exception as error:
            answers.append({"error": f"{type(error).__name__}: {error}"})
    print("\n" + json.dumps(answers))
