"""Launch configurations as settings: JSON, TOML, YAML, manifests, scripts and the files they name.

https://www.gnu.org/software/bash/manual/html_node/Bourne-Shell-Builtins.html
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shardwise.errors import BadFile
from shardwise.frameworks import heredocs, manifest, shell_script, simple_yaml
from shardwise.frameworks.exported import Settings

# The text of a file that another one names, or None where there is none.
Beside = Callable[[str], str | None]

MOST_SOURCED = 20  # files that a script runs by `source`, theirs included
_SOURCED = re.compile(r"^[ \t]*(?:source|\.)[ \t]+(\S[^\n;&|#]*?)[ \t]*$", re.M)
# The folder of a script, which is where the names in it begin: "$(dirname "$0")/", "${HERE}/".
_FOLDER = re.compile(r"^(?:.*[)}\"]|\$\w+)/", re.S)
# Flags that name a file of options: `--config`, `--deepspeed`, `--extra_llm_api_options`.
_OF_OPTIONS = re.compile(
    r"(?!.*(?:tokenizer|generation|model|hf|log)).*(?:conf|cfg|option|yaml|deepspeed).*"
)
# Begin of the command whose files of options have the last word.
_FILE_WINS = re.compile(r"\btrtllm-")


def parse(text: str, file: str, beside: Beside = lambda name: None) -> Settings:
    """The settings of a file, by its suffix, or without a known one by its first characters.

    Args:
        beside: reads the files that a script names.

    Raises:
        BadFile: it is not of the form that its name promises.
    """
    parser = _parser(text, file)
    if parser is _parse_script:
        text = _with_sourced(text, beside)
    try:
        settings = parser(text, file)
    except (ValueError, RecursionError) as error:
        kind = next(suffix for suffix, parse in _PARSERS.items() if parse is parser)
        raise BadFile(f"{file} is no {kind[1:].upper()}: {error}.") from None
    if not isinstance(settings, dict) or not settings:
        raise BadFile(f"{file} has no options: it is no mapping.")
    if parser is _parse_script:
        settings = _with_files(settings, text, beside)
        settings["text"] = text
    return settings


def _parser(text: str, file: str) -> Callable[[str, str], Any]:
    body = re.sub(r"^\s*#.*$", "", text, flags=re.M).lstrip()
    if not body:
        raise BadFile(f"{file} is empty.")
    suffix = _suffix(file)
    if suffix in _PARSERS:
        return _PARSERS[suffix]
    if body.startswith("{"):
        return _parse_json
    if re.match(r"\[\w+\]", body):
        return _parse_toml
    if re.match(r"[\w.-]+:(\s|$)", body):
        return _parse_yaml
    return _parse_script


def _suffix(file: str) -> str:
    return "." + file.rpartition(".")[2].lower()


def _with_sourced(text: str, beside: Beside) -> str:
    """A script with the files that it runs by `source` in their places."""
    for _ in range(MOST_SOURCED):
        for match in _SOURCED.finditer(text):
            name = shell_script.with_variables(match[1].strip("\"'"), text)
            content = beside(name)
            if content is None:
                content = beside(_FOLDER.sub("", name))
            if content is not None:
                text = f"{text[: match.start()]}{content}{text[match.end() :]}"
                break
        else:
            break
    return text


def _with_files(settings: Settings, text: str, beside: Beside) -> Settings:
    """The options of a script and of the files that it names, written by itself or not.

    An option of the command counts before that of a file, except with `trtllm-serve`.
    """
    script = heredocs.without(text)
    written = {}
    for file in heredocs.files(text):
        name = shell_script.with_variables(file.name, script).removeprefix("./")
        body = file.body if file.is_plain else shell_script.with_variables(file.body, script)
        written[name] = body
    of_files: Settings = {}
    for name in names_of_files(settings):
        content = written.get(name.removeprefix("./"), beside(name))
        if content is not None:
            of_files |= parse(content, name)
            settings = _without(settings, name)
    if not of_files:
        return settings
    return settings | of_files if _FILE_WINS.search(script) else of_files | settings


def names_of_files(settings: Settings) -> Iterator[str]:
    """Files of options that a script names, as values of flags and as words."""
    values = [
        value
        for flag, value in settings.items()
        if isinstance(value, str) and _OF_OPTIONS.fullmatch(flag)
    ]
    words = [word for word in shell_script.words_of(settings) if not word.endswith(".json")]
    for name in dict.fromkeys([*values, *words]):
        is_options = _PARSERS.get(_suffix(name), _parse_script) is not _parse_script
        if is_options and not name.endswith("base.yml"):  # all defaults of MaxText
            yield name


def _without(settings: Settings, name: str) -> Settings:
    """Settings without the flag or word that names a file."""
    words = [word for word in shell_script.words_of(settings) if word != name]
    kept = {flag: value for flag, value in settings.items() if value != name}
    return kept | {shell_script.PROGRAM: words}


def _parse_script(text: str, file: str) -> Any:
    return shell_script.read(heredocs.without(text), file)


def _parse_toml(text: str, file: str) -> Any:
    return tomllib.loads(text)


def _parse_json(text: str, file: str) -> Any:
    return json.loads(re.sub(r"^\s*(#|//).*$", "", text, flags=re.M))


def _parse_yaml(text: str, file: str) -> Any:
    """A YAML file, or of a manifest the flags of its containers' commands."""
    parts = simple_yaml.documents(text)
    with_command = [part for part in parts if re.search(r"^[\s-]*(command|args):", part.text, re.M)]
    if len(parts) > 1 and len(with_command) == 1:
        text = with_command[0].text
    settings = simple_yaml.read(text, file)
    if not isinstance(settings, dict) or not manifest.is_manifest(settings):
        return settings
    if "shardwise plan" in text:  # an exported JobSet
        return settings
    script = manifest.script(settings)
    return shell_script.read(script, file) if script else settings


_PARSERS: Mapping[str, Callable[[str, str], Any]] = {
    ".json": _parse_json,
    ".toml": _parse_toml,
    ".yaml": _parse_yaml,
    ".yml": _parse_yaml,
    ".sh": _parse_script,
    ".sbatch": _parse_script,
    ".slurm": _parse_script,
}
