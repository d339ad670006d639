"""The grammar of a script: commands, lists, branches, loops, functions.

It is lenient: what is left open is closed by the end of the text, and a keyword in the wrong place
is a word. https://www.gnu.org/software/bash/manual/html_node/Shell-Commands.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from shardwise.frameworks.shell import nodes
from shardwise.frameworks.shell.nodes import Node

END = "\n"  # the token between commands, of a line or a semicolon
_SEPARATORS = (END, "&", ";;")
_OPERATORS = ("&&", "||", "|", "|&")
_TOKENS = re.compile(r"&&|\|\||;;&?|;&|\|&|[;&|\n]")
_REDIRECTION = re.compile(r"(?:\d|&)?(?:>>?|<<?<?-?)(?:&[\d-]|\|)?")
_SPACES = re.compile(r"[ \t\r\f\v]+|\\[ \t]*\n")
# Parts of a word. Spaces in brackets and quotes do not end it.
BRACKETS = r"(?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*+\))*+\))*+\))*+"
BRACES = r"(?:[^{}]|\{(?:[^{}]|\{[^{}]*+\})*+\})*+"
QUOTED = rf"""(?:\\.|\$\({BRACKETS}\)|\$\{{{BRACES}\}}|[^"\\])*+"""  # between double quotes
_PARTS = re.compile(
    rf"""\\[^\n] | '[^']*+' | "{QUOTED}"
    | \$?\(\({BRACKETS}\)\) | \$\({BRACKETS}\) | `[^`]*+` | \$\{{{BRACES}\}}
    | [^\s;&|'"`()\\$]++ | \$ | \(""",
    re.S | re.X,
)
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=")
_FUNCTION = re.compile(r"[A-Za-z_][\w-]*")
_BETWEEN = re.compile(r"\s+|\\\n|#[^\n]*|[;&|()]")  # the words of an array


def parse(text: str) -> list[Node]:
    """The commands of a script.

    Raises:
        ValueError: a quote is not closed.
        RecursionError: it is too deep.
    """
    parser = _Parser(list(_tokens(text)))
    commands: list[Node] = []
    while not parser.at_end:
        commands += parser.until(())
        parser.position += 1  # a keyword or bracket that closes nothing
    return commands


def _tokens(text: str) -> Iterator[str]:
    """Words, operators and redirections."""
    position = 0
    while position < len(text):
        if space := _SPACES.match(text, position):
            position = space.end()
        elif text[position] == "#":
            end = text.find("\n", position)
            position = len(text) if end < 0 else end
        elif redirection := _REDIRECTION.match(text, position):
            yield redirection[0]
            position = redirection.end()
        elif token := _TOKENS.match(text, position):
            yield END if token[0] == ";" else token[0][:2]
            position = token.end()
        else:
            word, position = _word(text, position)
            yield word


def _word(text: str, start: int) -> tuple[str, int]:
    """The word at a position, and its end.

    Raises:
        ValueError: a quote in it is not closed.
    """
    position = start
    while part := _PARTS.match(text, position):
        if part[0] == "(":
            if not _ARRAY.fullmatch(text[start:position]):
                break
            return _array(text, start, part.end())
        position = part.end()
    if position > start:
        return text[start:position], position
    if text[start] in "'\"`":
        raise ValueError("No closing quotation")
    return text[start], start + 1


def _array(text: str, start: int, position: int) -> tuple[str, int]:
    """An array with its brackets and a space between its words, which may stand on many lines."""
    words = [text[start:position]]
    while position < len(text) and text[position] != ")":
        if between := _BETWEEN.match(text, position):
            position = between.end()
        else:
            word, position = _word(text, position)
            words.append(word)
    return " ".join([*words, ")"]), position + 1


_CLOSING = {"then", "elif", "else", "fi", "do", "done", "esac", "}", ")", ";;"}


class _Parser:
    """Reads tokens from the first to the last."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self.position = 0

    @property
    def at_end(self) -> bool:
        return self.position >= len(self._tokens)

    def _peek(self) -> str:
        return "" if self.at_end else self._tokens[self.position]

    def _next(self) -> str:
        token = self._peek()
        self.position += 1
        return token

    def until(self, closing: tuple[str, ...]) -> list[Node]:
        """Commands up to one of some keywords, or any that closes something."""
        commands: list[Node] = []
        while not self.at_end and self._peek() not in (*closing, *_CLOSING):
            if self._peek() in (*_SEPARATORS, *_OPERATORS):
                self.position += 1
                continue
            commands.append(self._chain())
        return commands

    def _chain(self) -> Node:
        first = self._command()
        following: list[tuple[str, Node]] = []
        while self._peek() in _OPERATORS:
            operator = self._next()
            while self._peek() == END:
                self.position += 1
            if self.at_end or self._peek() in _CLOSING:
                break
            following.append((operator, self._command()))
        return nodes.Chain(first, following) if following else first

    def _command(self) -> Node:
        match self._peek():
            case "if" | "while" | "until":
                return self._if(self._next())
            case "case":
                self.position += 1
                return self._case()
            case "for" | "select":
                self.position += 1
                return self._for()
            case "{" | "(":
                return self._group()
            case "function":
                self.position += 1
        name = self._peek()
        if _FUNCTION.fullmatch(name) and self._tokens[self.position + 1 : self.position + 3] == [
            "(",
            ")",
        ]:
            self.position += 3
            return self._function(name)
        if self.position and self._tokens[self.position - 1] == "function":
            self.position += 1
            return self._function(name)
        return self._simple()

    def _function(self, name: str) -> nodes.Function:
        while self._peek() == END:
            self.position += 1
        body = self._group().body if self._peek() in ("{", "(") else []
        return nodes.Function(name, body)

    def _group(self) -> nodes.Group:
        closing = "}" if self._next() == "{" else ")"
        body = self.until((closing,))
        self._close(closing)
        return nodes.Group(body)

    def _close(self, keyword: str) -> None:
        if self._peek() == keyword:
            self.position += 1

    def _if(self, keyword: str) -> nodes.If:
        node = nodes.If([], keyword=keyword)
        opening, closing = ("then", "fi") if keyword == "if" else ("do", "done")
        while True:
            condition = self.until((opening,))
            self._close(opening)
            node.branches.append((condition, self.until(("elif", "else", closing))))
            if self._peek() != "elif":
                break
            self.position += 1
        if self._peek() == "else":
            self.position += 1
            node.otherwise = self.until((closing,))
        self._close(closing)
        return node

    def _case(self) -> nodes.Case:
        node = nodes.Case(self._next())
        while self._peek() in (END, "in"):
            self.position += 1
        while not self.at_end and self._peek() != "esac":
            patterns = []
            while not self.at_end and self._peek() not in (")", "esac"):
                if (word := self._next()) not in (END, "|", "("):
                    patterns.append(word)
            self._close(")")
            node.branches.append((patterns, self.until((";;",))))
            if self._peek() not in (";;", "esac"):
                self.position += 1
            while self._peek() in (";;", END):
                self.position += 1
        self._close("esac")
        return node

    def _for(self) -> nodes.For:
        variable, words = self._next(), []
        while self._peek() == END:
            self.position += 1
        if self._peek() == "in":
            self.position += 1
            while not self.at_end and self._peek() != END:
                words.append(self._next())
        else:
            words = ['"$@"']
        while self._peek() == END:
            self.position += 1
        self._close("do")
        body = self.until(("done",))
        self._close("done")
        return nodes.For(variable, words, body)

    def _simple(self) -> nodes.Command:
        """A command without its redirections; `[[` has its operators as words."""
        words: list[str] = []
        is_redirected = False
        is_test = self._peek() == "[["
        while not self.at_end:
            token = self._peek()
            if token in _SEPARATORS or (not is_test and token in (*_OPERATORS, ")")):
                break
            self.position += 1
            redirection = None if is_test else _REDIRECTION.fullmatch(token)
            is_redirected |= bool(redirection) and ">" in token and not token.startswith("2")
            if not redirection:
                words.append(token)
            elif "&" not in token[1:] and self._peek() not in _SEPARATORS:
                self.position += 1  # the file
            if is_test and token == "]]":
                break
        return nodes.Command(words, is_redirected)
