"""Documents of what was named: text files, folders of them, lines of jsonl."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shardwise.errors import BadFile, raise_all

PIECE = 1 << 20  # characters that are tokenised at once


@dataclass(slots=True, kw_only=True)
class Sources:
    """Files that documents are read from, in the order of their names.

    Args:
        files: all of them.
        key: of a line of jsonl, where its text stands.
        skipped: files of folders that were no UTF-8 text, as they are met.
    """

    files: tuple[Path, ...]
    named: frozenset[Path]
    key: str = "text"
    skipped: list[Path] = field(default_factory=list)

    def documents(self) -> Iterator[Iterator[str]]:
        """Each document as pieces of text."""
        for path in self.files:
            if path.suffix == ".jsonl":
                for line in _lines(path, self.key):
                    yield iter((line,))
            elif (text := self._text(path)) is not None:
                yield _pieces(text)

    def _text(self, path: Path) -> str | None:
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            if path in self.named:
                raise BadFile(f"{path} is not UTF-8 text: {error.reason}.") from None
            self.skipped.append(path)
            return None
        except OSError as error:
            raise BadFile(f"{path}: {error.strerror}.") from None


def find(inputs: Sequence[str], pattern: str, key: str) -> Sources:
    """The files of some inputs: files as they are named, folders with all below that match.

    Raises:
        BadFile: with every input that is not there, or has no files.
    """
    found: dict[Path, None] = {}
    named, problems = set(), []
    for text in inputs:
        path = Path(text)
        if path.is_file():
            found[path] = None
            named.add(path)
        elif path.is_dir():
            inside = sorted(p for p in path.rglob(pattern) if p.is_file())
            found.update(dict.fromkeys(inside))
            if not inside:
                problems.append(f"no file in {path} matches {pattern}.")
        else:
            problems.append(f"no file or folder {path}.")
    raise_all(BadFile, problems)
    return Sources(files=tuple(found), named=frozenset(named), key=key)


def _pieces(text: str) -> Iterator[str]:
    """A long text in pieces that end with lines where they can."""
    start = 0
    while start < len(text):
        stop = min(start + PIECE, len(text))
        if stop < len(text):
            stop = text.rfind("\n", start, stop) + 1 or stop
            stop = stop if stop > start else min(start + PIECE, len(text))
        yield text[start:stop]
        start = stop


def _lines(path: Path, key: str) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _of_line(path, number, line, key)
    except UnicodeDecodeError as error:
        raise BadFile(f"{path} is not UTF-8 text: {error.reason}.") from None
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror}.") from None


def _of_line(path: Path, number: int, line: str, key: str) -> str:
    try:
        text = json.loads(line)[key]
    except json.JSONDecodeError as error:
        raise BadFile(f"{path}, line {number} is not JSON: {error.msg}.") from None
    except (KeyError, TypeError):
        raise BadFile(f'{path}, line {number} has no "{key}". Name its field: --field.') from None
    if not isinstance(text, str):
        raise BadFile(f'{path}, line {number}: "{key}" is no text.')
    try:
        text.encode()
    except UnicodeEncodeError:
        half = "has half of a character (a surrogate), which no UTF-8 text has"
        raise BadFile(f'{path}, line {number}: "{key}" {half}.') from None
    return text
