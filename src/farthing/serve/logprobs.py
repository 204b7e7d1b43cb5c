"""Log-probabilities in the shapes of the API, in step with the text that is sent."""

from __future__ import annotations

from codecs import getincrementaldecoder
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farthing.serve.wire.chat import ChatLogprobs, TokenLogprobs, TopLogprob
from farthing.serve.wire.completions import CompletionLogprobs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from farthing.engine.prompt_rows import TokenLogprob
    from farthing.text.tokenizer import Tokenizer

_LEAST = -9999.0
"""Stands for minus infinity, which JSON has not."""

_Utf8Decoder = getincrementaldecoder("utf-8")


@dataclass(frozen=True)
class Placed:
    """A token's entry, and the character of the answer's text that it begins at."""

    entry: TokenLogprob
    start: int
    end: int


class Aligner:
    """Gives out the entries of one answer's tokens once their text has been sent.

    So what is held back of the text, because it may become a stop string, is held back here too;
    and no entry is given for what the stop string or the ending token was.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = _Utf8Decoder("replace")
        self._waiting: list[Placed] = []
        self._decoded = 0
        self._sent = 0

    def push(
        self, entries: Iterable[TokenLogprob], text: str, finish_reason: str | None
    ) -> list[Placed]:
        """The entries that belong to what has been sent, with `text`, the newest part of it."""
        for entry in entries:
            start = self._decoded
            if not self._tokenizer.is_special(entry.token_id):
                data = self._tokenizer.token_bytes(entry.token_id)
                self._decoded += len(self._decoder.decode(data))
            self._waiting.append(Placed(entry, start, self._decoded))
        self._sent += len(text)
        if finish_reason is None:
            ready = [each for each in self._waiting if each.end <= self._sent]
        elif finish_reason == "stop":
            ready = [each for each in self._waiting if each.start < self._sent]
        else:
            ready = self._waiting
        self._waiting = self._waiting[len(ready) :]
        return ready


def chat_logprobs(tokenizer: Tokenizer, placed: Sequence[Placed]) -> ChatLogprobs:
    """As the chat API has them."""
    content = []
    for each in placed:
        data = tokenizer.token_bytes(each.entry.token_id)
        top = [
            TopLogprob(*_described(tokenizer.token_bytes(token), logprob))
            for token, logprob in each.entry.top
        ]
        content.append(TokenLogprobs(*_described(data, each.entry.logprob), top))
    return ChatLogprobs(content)


def _described(data: bytes, logprob: float) -> tuple[str, float, list[int]]:
    return data.decode("utf-8", "replace"), max(logprob, _LEAST), list(data)


def completion_logprobs(
    tokenizer: Tokenizer, placed: Sequence[Placed], offset: int = 0
) -> CompletionLogprobs:
    """As plain completions have them; `offset` characters of text stand before the answer."""
    return CompletionLogprobs(
        tokens=[_name(tokenizer, each.entry.token_id) for each in placed],
        token_logprobs=[max(each.entry.logprob, _LEAST) for each in placed],
        top_logprobs=[
            {_name(tokenizer, token): max(logprob, _LEAST) for token, logprob in each.entry.top}
            for each in placed
        ],
        text_offset=[offset + each.start for each in placed],
    )


def prompt_logprobs(
    tokenizer: Tokenizer, prompt: Sequence[int], scores: Sequence[TokenLogprob | None]
) -> CompletionLogprobs:
    """Those of a prompt's tokens, as plain completions have them; the first has none.

    Offsets are into the text of the prompt, of which special tokens are no part.
    """
    decoder = _Utf8Decoder("replace")
    plain = [token for token in prompt if not tokenizer.is_special(token)]
    # The space that some vocabularies put before a text is no part of it.
    spaced = bool(plain) and tokenizer.token_bytes(plain[0]).startswith(b" ")
    decoded = -1 if tokenizer.strips_leading_space and spaced else 0
    offsets: list[int] = []
    for token in prompt:
        offsets.append(max(decoded, 0))
        if not tokenizer.is_special(token):
            decoded += len(decoder.decode(tokenizer.token_bytes(token)))
    return CompletionLogprobs(
        tokens=[_name(tokenizer, token) for token in prompt],
        token_logprobs=[None if each is None else max(each.logprob, _LEAST) for each in scores],
        top_logprobs=[
            None
            if each is None
            else {_name(tokenizer, token): max(logprob, _LEAST) for token, logprob in each.top}
            for each in scores
        ],
        text_offset=offsets,
    )


def joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    """A prompt's and its answer's."""
    return CompletionLogprobs(
        tokens=first.tokens + second.tokens,
        token_logprobs=first.token_logprobs + second.token_logprobs,
        top_logprobs=first.top_logprobs + second.top_logprobs,
        text_offset=first.text_offset + second.text_offset,
    )


def _name(tokenizer: Tokenizer, token: int) -> str:
    """The token's text; its bytes, as OpenAI spells them, where they are no text."""
    data = tokenizer.token_bytes(token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
