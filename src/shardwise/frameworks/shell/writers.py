"""What `echo`, `printf` and `cat` write.

https://www.gnu.org/software/bash/manual/html_node/Bash-Builtins.html
"""

from __future__ import annotations

import re
from collections.abc import Callable

_ESCAPES = {r"\n": "\n", r"\t": "\t", r"\\": "\\"}
_ESCAPE = re.compile(r"\\[nt\\]")
_PLACE = re.compile(r"%[%sdi]")


def written(
    words: list[str], beside: Callable[[str], str | None] = lambda name: None
) -> str | None:
    """The text that a command writes; None if its form, or a file that it reads, is not known here.

    >>> written(["echo", "-n", "a", "b"]), written(["printf", "%s-%d\\\\n", "tp", "8"])
    ('a b', 'tp-8\\n')

    Args:
        beside: the text of a file that `cat` names.
    """
    name, *arguments = words
    if name == "cat":
        texts = [beside(argument) for argument in arguments]
        return "".join(map(str, texts)) if texts and None not in texts else None
    if name == "printf":
        arguments = arguments[1:] if arguments[:1] == ["--"] else arguments
        return _formatted(arguments[0], arguments[1:]) if arguments else ""
    end = "\n"
    while arguments and re.fullmatch("-[neE]+", arguments[0]):
        flag = arguments.pop(0)
        end = "" if "n" in flag else end
        if "e" in flag:
            arguments = [_unescaped(word) for word in arguments]
    return " ".join(arguments) + end


def _formatted(pattern: str, values: list[str]) -> str | None:
    """A text with values in its places; it is repeated until all have been used."""
    pattern, unused = _unescaped(pattern), list(values)
    if "%" in _PLACE.sub("", pattern):  # a width, or another kind of number
        return None

    def value(place: re.Match[str]) -> str:
        if place[0] == "%%":
            return "%"
        return unused.pop(0) if unused else ""

    text = _PLACE.sub(value, pattern)
    while unused and len(unused) < len(values):
        values = list(unused)
        text += _PLACE.sub(value, pattern)
    return text


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda escape: _ESCAPES[escape[0]], text)
