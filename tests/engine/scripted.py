"""An engine without arithmetic: a byte tokenizer, and a null backend that follows a script."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from farthing.backends.null import NullBackend
from farthing.engine.engine import Engine
from farthing.text.chat import ChatTemplate
from farthing.text.special_tokens import SpecialToken
from farthing.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from farthing.backends import Backend
    from farthing.backends.null import Script
    from farthing.engine.limits import Policy
    from farthing.engine.speculate import Speculation

BOS, EOS, TURN = 256, 257, 258
VOCABULARY = 259
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "<turn>{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


class Bytes:
    """A vocabulary of the 256 bytes."""

    size = 256

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        return list(text.encode())

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])

    def longest_token(self) -> int:
        return 1


class _Vocabulary(Bytes):
    size = VOCABULARY


def tokenizer() -> Tokenizer:
    specials = [
        SpecialToken(BOS, "<bos>", True),
        SpecialToken(EOS, "<eos>", True),
        SpecialToken(TURN, "<turn>", True),
    ]
    return Tokenizer(
        _Vocabulary(),
        specials,
        bos_id=BOS,
        adds_bos=True,
        eos_ids=[EOS],
        named_tokens={"bos_token": "<bos>", "eos_token": "<eos>"},
    )


def saying(answer: str | bytes, after: str = ">") -> Script:
    """What follows the last `after` of a prefix is `answer`, then the end of the text."""
    script = [*(answer.encode() if isinstance(answer, str) else answer), EOS]

    def next_token(prefix: NDArray[np.int32]) -> int:
        said = len(prefix) - 1 - int(np.flatnonzero(prefix == ord(after))[-1])
        return script[min(said, len(script) - 1)]

    return next_token


def rambling(prefix: NDArray[np.int32]) -> NDArray[np.float32]:
    """Logits that depend on every token of the prefix, and never favour an end."""
    digest = hashlib.sha256(prefix.tobytes()).digest()
    logits = np.random.default_rng(int.from_bytes(digest[:8], "little")).normal(0, 2, VOCABULARY)
    logits[256:] = -30
    return logits.astype(np.float32)


def engine(
    script: Script | Callable[..., Any] = rambling,
    *,
    policy: Policy | None = None,
    queue_tokens: int | None = None,
    speculation: Speculation | None = None,
    **sizes: Any,
) -> Engine:
    return engine_over(
        NullBackend(script, VOCABULARY, **sizes),
        policy=policy,
        queue_tokens=queue_tokens,
        speculation=speculation,
    )


def engine_over(backend: Backend, **settings: Any) -> Engine:
    words = tokenizer()
    return Engine(backend, words, ChatTemplate(TEMPLATE, words), **settings)
