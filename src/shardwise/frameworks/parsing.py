"""Launch configurations as settings: JSON, TOML, YAML, manifests, scripts and what they name."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from shardwise.errors import BadFile
from shardwise.frameworks import heredocs, manifest, shell_script, simple_yaml
from shardwise.frameworks.exported import Settings
from shardwise.frameworks.shell.result import Run
from shardwise.frameworks.shell.run import Beside, run

SCRIPT = ".sh"
# Flags that name a file of options: `--config`, `--deepspeed`, `--extra_llm_api_options`.
_OF_OPTIONS = re.compile(
    r"(?!.*(?:tokenizer|generation|model|hf|log)).*(?:conf|cfg|option|yaml|deepspeed).*"
)
# Begin of the command whose files of options have the last word.
_FILE_WINS = re.compile(r"\btrtllm-")


class Parsed(NamedTuple):
    """The settings of a file, and of a script what it does."""

    settings: Settings
    script: Run | None = None


def parse(text: str, file: str, beside: Beside = lambda name: None) -> Parsed:
    """Read a file by its suffix, or without a known one by its first characters.

    Args:
        beside: reads the files that a script names.

    Raises:
        BadFile: it is not of the form that its name promises.
    """
    kind = _kind(text, file)
    script = None
    try:
        if kind == SCRIPT:
            script = run(heredocs.without(text), file, _or_written(text, beside), _of_slurm(text))
            settings = _with_files(script, text, beside)
            settings["text"] = text
        else:
            settings = _PARSERS[kind](text, file)
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{file} is no {kind[1:].upper()}: {error}.") from None
    if not isinstance(settings, dict) or not settings:
        raise BadFile(f"{file} has no options: it is no mapping.")
    # An exported JobSet is read as a whole.
    if manifest.is_manifest(settings) and "shardwise plan" not in text:
        script = run(manifest.script(settings), file)
        settings = shell_script.settings(script) if script.commands else settings
    return Parsed(settings, script)


def _or_written(text: str, beside: Beside) -> Beside:
    """A reader of the files that a script writes itself, or else of those beside it."""
    written = {file.name.removeprefix("./"): file.body for file in heredocs.files(text)}
    return lambda name: written.get(name.removeprefix("./")) or beside(name)


def _of_slurm(text: str) -> dict[str, str]:
    """Variables that Slurm sets by the `#SBATCH` lines of a script, where the caller does not."""
    nodes = re.search(r"^#SBATCH\s+(?:--nodes[= ]|-N\s*)(\d+)\s*(?:#.*)?$", text, re.M)
    names = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES") if nodes else ()
    return {name: nodes[1] for name in names if nodes and name not in os.environ}


def _kind(text: str, file: str) -> str:
    """The suffix of a file, or that of the kind which its first characters are of."""
    body = re.sub(r"^\s*#.*$", "", text, flags=re.M).lstrip()
    if not body:
        raise BadFile(f"{file} is empty.")
    suffix = _suffix(file)
    if suffix == ".py":
        raise BadFile(
            f"{file} is a program in Python, which is not run. Name the script that starts it, or "
            "a configuration that it writes."
        )
    if suffix in _PARSERS:
        return suffix
    if body.startswith("{"):
        return ".json"
    if body.startswith("<"):
        raise BadFile(f"{file} is HTML or XML, and no launch configuration.")
    if re.match(r"\[\w+\]", body):
        return ".toml"
    if re.match(r"[\w.-]+:(\s|$)", body):
        return ".yaml"
    return SCRIPT


def _suffix(file: str) -> str:
    return "." + file.rpartition(".")[2].lower()


def _with_files(script: Run, text: str, beside: Beside) -> Settings:
    """The options of a script and of the files that it names, written by itself or not.

    An option of the command counts before that of a file, except with `trtllm-serve`.
    """
    settings = shell_script.settings(script)
    written = {}
    for file in heredocs.files(text):
        name = script.scope.quoted(file.name).removeprefix("./")
        written[name] = file.body if file.is_plain else script.scope.quoted(file.body)
    of_files: Settings = {}
    for name in names_of_files(settings):
        content = written.get(name.removeprefix("./"), beside(name))
        if content is not None:
            of_files |= parse(content, name).settings
            settings = _without(settings, name)
    if not of_files:
        return settings
    return settings | of_files if _FILE_WINS.search(text) else of_files | settings


def names_of_files(settings: Settings) -> Iterator[str]:
    """Files of options that a script names, as values of flags and as words."""
    values = [
        value
        for flag, value in settings.items()
        if isinstance(value, str) and _OF_OPTIONS.fullmatch(flag)
    ]
    words = [word for word in shell_script.words_of(settings) if not word.endswith(".json")]
    for name in dict.fromkeys([*values, *words]):
        if _suffix(name) in _PARSERS and not name.endswith("base.yml"):  # all defaults of MaxText
            yield name


def _without(settings: Settings, name: str) -> Settings:
    """Settings without the flag or word that names a file."""
    words = [word for word in shell_script.words_of(settings) if word != name]
    kept = {flag: value for flag, value in settings.items() if value != name}
    return kept | {shell_script.PROGRAM: words}


def _parse_toml(text: str, file: str) -> Any:
    return tomllib.loads(text)


def _parse_json(text: str, file: str) -> Any:
    return json.loads(re.sub(r"^\s*(#|//).*$", "", text, flags=re.M))


def _parse_yaml(text: str, file: str) -> Any:
    """A YAML file; of several manifests in one, that with a command."""
    parts = simple_yaml.documents(text)
    with_command = [part for part in parts if re.search(r"^[\s-]*(command|args):", part.text, re.M)]
    if len(parts) > 1 and len(with_command) == 1:
        text = with_command[0].text
    return simple_yaml.read(text, file)


_PARSERS: Mapping[str, Callable[[str, str], Any]] = {
    ".json": _parse_json,
    ".toml": _parse_toml,
    ".yaml": _parse_yaml,
    ".yml": _parse_yaml,
}
