"""Files that a script writes for its own command: `cat > engine.yaml <<EOF`.

https://www.gnu.org/software/bash/manual/html_node/Redirections.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_HEREDOC = re.compile(
    r"""^[^\n#]*?
    (?:(?:>\s*(?P<before>[^\s<>|&;]+)\s*)?<<-?\s*(?P<quote>["']?)(?P<end>\w+)(?P=quote)
    (?:\s*>\s*(?P<after>[^\s<>|&;]+))?)[^\n]*\n
    (?P<body>.*?)
    ^\s*(?P=end)\s*$""",
    re.M | re.S | re.X,
)


# Such lines as a word, `$(cat <<EOF`, or the value of a variable, `read -r -d '' NAME <<EOF`.
_LINES = (
    r"""<<-?\s*(?P<quote>["']?)(?P<end>\w+)(?P=quote)[^\n]*\n(?P<body>.*?)^\s*(?P=end)[ \t]*$"""
)
_OUTPUT = re.compile(rf"""(?P<is_value>=?)["']?\$\(\s*cat\s*{_LINES}\s*\)["']?""", re.M | re.S)
_READ = re.compile(
    r"""^[ \t]*(?:IFS=\S*\s+)?read\s[^\n<]*?-r?d\s*(?:''|"")\s*(?:-r\s+)?(?P<name>\w+)\s*"""
    + _LINES,
    re.M | re.S,
)
_LOOP = re.compile(r"^[^\n]*\bdone\s*(?=<<)")


class Written(NamedTuple):
    """A file that a script writes.

    Args:
        name: as the script writes it, with variables.
        body: its text.
        is_plain: whether variables in it stay as they are.
    """

    name: str
    body: str
    is_plain: bool


def files(text: str) -> Iterator[Written]:
    """The files that a script writes from lines of its own.

    >>> [*files("cat > a.yml <<EOF\\ntp: 8\\nEOF\\nserve --config a.yml")]
    [Written(name='a.yml', body='tp: 8\\n', is_plain=False)]
    """
    for match in _HEREDOC.finditer(text):
        name = match["before"] or match["after"]
        if name:
            yield Written(name.strip("\"'"), match["body"], bool(match["quote"]))


def without(text: str) -> str:
    """A script without such lines, which are no commands; those of a variable are its value.

    >>> without("cat > a.yml <<EOF\\ntp: 8\\nEOF\\nserve --config a.yml").strip()
    'serve --config a.yml'
    >>> without("A=$(cat <<EOF\\n--tp 8\\nEOF\\n)\\nserve $A")
    'A="--tp 8\\n"\\nserve $A'
    >>> without("while read k; do echo $k; done <<EOF\\na\\nEOF\\nserve")
    'while read k; do echo $k; done \\nserve'
    """
    text = _OUTPUT.sub(_word, text)
    text = _READ.sub(lambda lines: f"{lines['name']}={_quoted(lines)}", text)
    return _HEREDOC.sub(_loop, text)


def _word(lines: re.Match[str]) -> str:
    """Lines of a script as the value of a variable, or as words of a command."""
    return f"={_quoted(lines)}" if lines["is_value"] else lines["body"].replace("\n", " ")


def _quoted(lines: re.Match[str]) -> str:
    """Lines of a script as one word in quotes."""
    if lines["quote"]:
        return "'" + lines["body"].replace("'", "'\\''") + "'"
    return '"' + lines["body"].replace('"', '\\"') + '"'


def _loop(lines: re.Match[str]) -> str:
    """The end of a loop over lines of the script, or all of it if it is on one line."""
    loop = _LOOP.match(lines[0])
    return loop[0] if loop else ""
