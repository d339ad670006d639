"""Launch configurations on disk, and the files beside them that they name."""

from __future__ import annotations

import os

from shardwise.errors import BadFile, file_error
from shardwise.frameworks.shell.run import Beside

LARGEST_FILE = 4 << 20  # characters; launch configurations have some thousand


def text_of(path: str) -> str:
    """The text of a launch configuration.

    Raises:
        BadFile: it cannot be read, is no text, or is far too long.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            text = stream.read(LARGEST_FILE + 1)
    except OSError as error:
        raise file_error(path, error) from None
    except UnicodeError:
        raise BadFile(f"{path} is no text in UTF-8.") from None
    if len(text) > LARGEST_FILE:
        raise BadFile(f"{path} has more than {LARGEST_FILE:,} characters: no launch configuration.")
    return text


def beside(path: str) -> Beside:
    """A reader of the files that a configuration names, from its own folder on.

    Raises, when it is called:
        BadFile: the file is there, but cannot be read as a configuration.
    """

    def read(name: str) -> str | None:
        file = os.path.join(os.path.dirname(path), name)
        return text_of(file) if os.path.isfile(file) else None

    return read
