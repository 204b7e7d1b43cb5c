"""Token ids to text as they come: never half a character, never half of a stop string."""

from __future__ import annotations

from codecs import getincrementaldecoder
from typing import TYPE_CHECKING

from farthing.core import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from farthing.text.tokenizer import Tokenizer

_Utf8Decoder = getincrementaldecoder("utf-8")


class StreamDecoder:
    """Turns one answer's token ids into pieces of text.

    Joined, the pieces are `tokenizer.decode` of all the ids, cut before the stop string that is
    complete first (of several that end at one character, the longest); how the text falls into
    tokens makes no difference. Bytes that can still become a character, and text that can still
    become a stop string, are held back until that is decided. Time is linear in the text.

    `continuation` is what an answer is of its prompt: its leading space is its own. For a text that
    stands alone, False leaves out the space that the vocabulary put there.
    Raises `RequestError` when a stop string is empty.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Iterable[str] = (),
        skip_special_tokens: bool = True,
        continuation: bool = True,
    ) -> None:
        self.stopped: str | None = None
        """The stop string that ended the text, or None."""
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._strips_space = tokenizer.strips_leading_space and not continuation
        self._utf8 = _Utf8Decoder("replace")
        self._stops = [_StopString(text) for text in stop]
        self._held = ""

    def watch(self, stop: Iterable[str]) -> None:
        """Ends the text at these stop strings too, from what is pushed from now on."""
        self._stops += [_StopString(text) for text in stop]

    def push(self, token_id: int) -> str:
        """The text that this token settles; empty once `stopped`.

        Raises `RequestError` for an id outside the vocabulary.
        """
        if self.stopped is not None:
            return ""
        if self._skip_special_tokens and self._tokenizer.is_special(token_id):
            return ""
        data = self._tokenizer.token_bytes(token_id)
        if self._strips_space and data:
            data = data.removeprefix(b" ")
            self._strips_space = False
        return self._settle(self._utf8.decode(data))

    def finish(self) -> str:
        """The text that was held back, when no more tokens come; empty once `stopped`."""
        if self.stopped is not None:
            return ""
        text = self._settle(self._utf8.decode(b"", final=True))
        text, self._held = text + self._held, ""
        return text

    def _settle(self, text: str) -> str:
        pending = self._held + text
        for end, character in enumerate(text, len(self._held) + 1):
            # Every automaton must see every character, so no short cut.
            complete = [stop.text for stop in self._stops if stop.advance(character)]
            if complete:
                self.stopped = max(complete, key=len)
                self._held = ""
                return pending[: end - len(self.stopped)]
        kept = len(pending) - max((stop.matched for stop in self._stops), default=0)
        self._held = pending[kept:]
        return pending[:kept]


class _StopString:
    """How much of a stop string the text now ends in, kept character by character.

    Knuth, Morris and Pratt 1977: `_shorter[n]` is the longest proper prefix of the string that its
    first n characters end in.
    """

    def __init__(self, text: str) -> None:
        if not text:
            raise RequestError("a stop string must not be empty: leave it out")
        self.text = text
        self.matched = 0
        self._shorter = [0, 0]
        length = 0
        for character in text[1:]:
            while length and text[length] != character:
                length = self._shorter[length]
            length += text[length] == character
            self._shorter.append(length)

    def advance(self, character: str) -> bool:
        """Takes the next character of the text; whether the string is now complete."""
        while self.matched and self.text[self.matched] != character:
            self.matched = self._shorter[self.matched]
        self.matched += self.text[self.matched] == character
        return self.matched == len(self.text)
