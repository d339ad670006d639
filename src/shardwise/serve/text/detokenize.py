"""Tokens to text as they come: no half characters, and nothing of a stop string.

The text of a token depends on its neighbours: a character may be several tokens, and a tokenizer
may treat the space before the first word apart. So a short window of tokens is decoded again with
each token, and what it adds is sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.serve.text.vocabulary import REPLACEMENT, Vocabulary

CONTEXT = 6  # tokens before the output that are decoded with it
CHARACTER = 4  # bytes of the longest character: as many tokens at most
WINDOW = 64  # tokens, after which what is no text is cut anywhere


class Detokenizer:
    """The text of one output.

    Args:
        vocabulary: of the model.
        prompt: tokens that the output continues; empty if the output is a text of its own.
        special: whether special tokens are written out.
    """

    def __init__(
        self, vocabulary: Vocabulary, prompt: Sequence[int] = (), *, special: bool = False
    ) -> None:
        self._vocabulary = vocabulary
        self._special = special
        self._window = list(prompt[-CONTEXT:])
        self._settled = len(self._window)  # tokens of the window whose text is sent
        self._sent = len(self._decode(self._window))  # characters of the window's text

    def push(self, token: int) -> str:
        """The text that a token completes; empty in the middle of a character."""
        self._window.append(token)
        text = self._decode(self._window)
        unsettled = len(self._window) - self._settled
        if not text.endswith(REPLACEMENT) or unsettled >= WINDOW:
            return self._settle(text)
        if unsettled < CHARACTER:
            return ""
        # No character is this long: all but the last of the bytes are no text, whatever follows.
        return self._send(text, len(text) - 1)

    def finish(self) -> str:
        """The rest: half a character, if the output ended in one."""
        return self._settle(self._decode(self._window))

    def _settle(self, text: str) -> str:
        new = self._send(text, len(text))
        # Tokens without text, as special ones, are no context: those before them stay.
        if new or len(self._window) >= WINDOW:
            self._window = self._window[self._settled :]
            self._sent = len(self._decode(self._window))
        self._settled = len(self._window)
        return new

    def _send(self, text: str, end: int) -> str:
        new = text[self._sent : end]
        self._sent = max(self._sent, end)
        return new

    def _decode(self, tokens: list[int]) -> str:
        if not tokens:
            return ""
        return self._vocabulary.decode(tokens, special=self._special)


class StopStrings:
    """Ends a text at the first complete stop string.

    Text that may turn out to be the beginning of one is held back. The result does not depend on
    the pieces in which the text comes.

    >>> stops = StopStrings(["END"])
    >>> stops.push("the E"), stops.push("Nd, E"), stops.push("ND."), stops.stopped
    ('the ', 'ENd, ', '', True)
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = stops
        self._include = include
        self._held = ""
        self.stopped = False
        self.after = ""  # text after the stop string, of the piece that completed it

    def push(self, text: str) -> str:
        """The text that can be sent."""
        if self.stopped:
            return ""
        text = self._held + text
        first = self._first(text)
        if first is not None:
            self.stopped = True
            self._held = ""
            start, end = first
            self.after = text[end:]
            if self._include:
                return text[:end]
            return text[:start]
        keep = self._beginning(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """The text that was held back for a stop string that did not come."""
        text = self._held
        self._held = ""
        return text

    def _first(self, text: str) -> tuple[int, int] | None:
        """Start and end of the stop string that ends first; of several, of the longest."""
        first = None
        for stop in self._stops:
            start = text.find(stop)
            if start >= 0:
                match = (start, start + len(stop))
                if first is None or (match[1], match[0]) < (first[1], first[0]):
                    first = match
        return first

    def _beginning(self, text: str) -> int:
        """Length of the longest end of the text that begins a stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
