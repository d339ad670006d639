"""Documents to tokenize, from text files, from folders of them, and from lines of .jsonl files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shardwise.errors import BadFile, file_error, raise_all

CHUNK_CHARACTERS = 1 << 20  # longest text that is tokenized at once
# First bytes of compressed files -> name of the format.
COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
}


@dataclass(slots=True, kw_only=True)
class Sources:
    """Files that contain documents.

    Args:
        files: all files; those of a folder are sorted by name.
        required: files that the user named, for which it is an error not to be UTF-8.
        key: key of the text in the JSON object on a line of .jsonl.
        skipped: files in folders that are not UTF-8; `documents` fills this list.
    """

    files: tuple[Path, ...]
    required: frozenset[Path]
    key: str = "text"
    skipped: list[Path] = field(default_factory=list)

    def documents(self) -> Iterator[Iterator[str]]:
        """Yield each document as an iterator over chunks of its text.

        Raises:
            BadFile: a file cannot be read, or a line of .jsonl has no text.
        """
        for path in self.files:
            if path.suffix == ".jsonl":
                for line in _lines(path, self.key):
                    yield iter((line,))
            elif (text := self._text(path)) is not None:
                yield _chunks(text)

    def why_no_text(self) -> str:
        """Say why no text came from the files, after `documents` has read them."""
        reasons = ""
        if self.skipped:
            first = self.skipped[0]
            compression = _compression(first)
            if compression:
                compression = f" ({compression}: unpack it first)"
            reasons += f" Not UTF-8 text: {len(self.skipped):,}, such as {first}{compression}."
        empty = [path for path in self.files if path not in self.skipped]
        if empty:
            reasons += f" Empty: {len(empty):,}, such as {empty[0]}."
        return f"there is no text.{reasons}"

    def _text(self, path: Path) -> str | None:
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            if path in self.required:
                raise BadFile(_not_text(path, error)) from None
            self.skipped.append(path)
            return None
        except OSError as error:
            raise file_error(path, error) from None


def find_sources(inputs: Sequence[str], pattern: str, key: str) -> Sources:
    """Find the named files, and all files in the named folders whose names match the pattern.

    Raises:
        BadFile: inputs do not exist, or are folders without a matching file; lists all of them.
    """
    files: dict[Path, None] = {}
    required = set()
    problems = []
    for text in inputs:
        path = Path(text)
        if path.is_file():
            files[path] = None
            required.add(path)
        elif path.is_dir():
            try:
                matches = sorted(match for match in path.rglob(pattern) if match.is_file())
            except OSError as error:  # a part of it that this user may not read
                problems.append(f'"{path}" cannot be searched: {error.filename}: {error.strerror}.')
                continue
            files.update(dict.fromkeys(matches))
            if not matches:
                problems.append(f'no file in "{path}" matches "{pattern}".')
        else:
            problems.append(f'no file or folder "{path}".')
    raise_all(BadFile, problems)
    return Sources(files=tuple(files), required=frozenset(required), key=key)


def _not_text(path: Path, error: UnicodeDecodeError) -> str:
    """Return the message for a file that is not UTF-8, which names a compression by its magic."""
    what = _compression(path)
    if what:
        return f"{path} is compressed ({what}), not text: unpack it first."
    return f"{path} is not UTF-8 text: {error.reason}."


def _compression(path: Path) -> str:
    """Return the format of a compressed file; empty if it is not compressed."""
    with path.open("rb") as file:
        start = file.read(8)
    for magic, name in COMPRESSED.items():
        if start.startswith(magic):
            return name
    return ""


def _chunks(text: str) -> Iterator[str]:
    """Split a long text into chunks, at the ends of lines if possible."""
    start = 0
    while start < len(text):
        stop = min(start + CHUNK_CHARACTERS, len(text))
        if stop < len(text):
            stop = text.rfind("\n", start, stop) + 1 or stop
        yield text[start:stop]
        start = stop


def _lines(path: Path, key: str) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _line_text(path, number, line, key)
    except UnicodeDecodeError as error:
        raise BadFile(_not_text(path, error)) from None
    except OSError as error:
        raise file_error(path, error) from None


def _line_text(path: Path, number: int, line: str, key: str) -> str:
    try:
        text = json.loads(line)[key]
    except json.JSONDecodeError as error:
        raise BadFile(f"{path}, line {number} is not JSON: {error.msg}.") from None
    except (KeyError, TypeError):
        raise BadFile(f'{path}, line {number} has no "{key}". Name its field: --field.') from None
    if not isinstance(text, str):
        raise BadFile(f'{path}, line {number}: "{key}" is not a string.')
    try:
        text.encode()
    except UnicodeEncodeError:
        problem = "has a lone surrogate, which UTF-8 cannot encode"
        raise BadFile(f'{path}, line {number}: "{key}" {problem}.') from None
    return text
