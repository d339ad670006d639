"""Manifests of Kubernetes and Docker Compose: the commands of their containers, as a script.

A container has `command` and `args`, lists of words; Compose has `entrypoint` and `command`, lists
or text. https://kubernetes.io/docs/tasks/inject-data-application/define-command-argument-container
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from shardwise.frameworks.exported import Settings
from shardwise.frameworks.shell.launchers import entrypoint_of

_COMMANDS = ("entrypoint", "command", "args")
_OF_A_SHELL = ("-c", "-lc", "-ec")


def is_manifest(settings: Settings) -> bool:
    """Whether a YAML document is a manifest."""
    return "apiVersion" in settings or isinstance(settings.get("services"), Mapping)


def script(settings: Settings) -> str:
    """The commands of all containers, one a line; empty if there are none."""
    return "\n".join(_commands(settings))


def _commands(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        words = [text for key in _COMMANDS if (text := _text(value.get(key)))]
        if words:
            variables = dict(_variables(value.get("env")))
            for name, text in variables.items():
                yield f"{name}={shlex.quote(text)}"
            text = _with_variables(" ".join(words), variables)
            entrypoint = entrypoint_of(str(value.get("image")), text.split()[:1])
            yield " ".join([*entrypoint, text])
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _commands(item)


def _variables(env: Any) -> Iterator[tuple[str, str]]:
    """The variables of a container: a list of names and values, or a mapping."""
    if isinstance(env, Mapping):
        env = [{"name": name, "value": value} for name, value in env.items()]
    for variable in env if isinstance(env, list) else []:
        is_given = isinstance(variable, Mapping) and {"name", "value"} <= variable.keys()
        if is_given and re.fullmatch(r"[A-Za-z_]\w*", str(variable["name"])):
            yield str(variable["name"]), str(variable["value"])


def _with_variables(text: str, variables: Mapping[str, str]) -> str:
    """A command with `$(NAME)` replaced by the value of the variable."""
    for name, value in variables.items():
        text = text.replace(f"$({name})", value)
    return text


def _text(words: Any) -> str:
    """The words of a command; what follows `bash -c` is a script of its own."""
    if isinstance(words, str):
        return words
    if not isinstance(words, list):
        return ""
    text = ""
    for i, word in enumerate(words):
        is_script = (i and str(words[i - 1]) in _OF_A_SHELL) or "\n" in str(word)
        text += f"\n{word}\n" if is_script else f"{shlex.quote(str(word))} "
    return text
