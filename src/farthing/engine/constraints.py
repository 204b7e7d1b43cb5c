"""Constrained decoding: a form compiled for a vocabulary, and how far one text has come in it.

The grammars are llguidance's. A mask of the tokens that may come next costs it some ten
microseconds, so it is made between two steps, when the token before it is taken in. What strangers
send is bounded: the size of a source, the work of compiling it, the work and the memory of a mask;
where a bound is met, that one request fails.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from farthing.core import RequestError
from farthing.engine.grammar_source import grammar_source

if TYPE_CHECKING:
    from collections.abc import Iterable

    from llguidance import LLMatcher
    from numpy.typing import NDArray

    from farthing.core import Constraint
    from farthing.text.tokenizer import Tokenizer

_MOST_KEPT = 32
_LONGEST_REASON = 400

_SLOW_SECONDS = 0.1
"""What takes longer to compile is not compiled while others wait for a step."""

# llguidance's own limits allow for seconds and hundreds of megabytes. A state has about 1 KB.
_LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 300_000,
    "step_lexer_fuel": 20_000,
    "step_max_items": 10_000,
    "max_items_in_row": 500,
    "max_lexer_states": 20_000,
    "max_grammar_size": 100_000,
}


class Grammars:
    """Compiles constraints for one vocabulary, and keeps the 32 that were used last.

    For several threads. Nothing is imported or made before the first constraint.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary_size: int) -> None:
        self._tokenizer = tokenizer
        self._size = vocabulary_size
        self._kept: OrderedDict[Constraint, Grammar] = OrderedDict()
        self._lock = Lock()
        self._vocabulary: GrammarVocabulary | None = None
        self._preparing = Lock()

    def prepare(self) -> GrammarVocabulary:
        """Makes the vocabulary ready for constraints, unless it is.

        For 50,000 tokens that takes a tenth of a second, in which no other thread of Python runs.
        """
        with self._preparing:
            if self._vocabulary is None:
                self._vocabulary = GrammarVocabulary(self._tokenizer, self._size)
            return self._vocabulary

    def compile(self, constraint: Constraint) -> Grammar:
        """The grammar of a constraint, compiled now unless it is kept.

        Takes a millisecond or, for what is large, a second. Raises `RequestError`, with what
        llguidance says, for a constraint that is malformed, too large, or met by no text.
        """
        with self._lock:
            if constraint in self._kept:
                self._kept.move_to_end(constraint)
                return self._kept[constraint]
        grammar = Grammar(constraint, self.prepare())
        with self._lock:
            self._kept[constraint] = grammar
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        return grammar


class Grammar:
    """A constraint compiled for a vocabulary. `first_mask` has the tokens a text may begin with.

    `master` is at the beginning of a text, and only ever copied. Its copies share what has been
    learnt of the grammar, which is bounded: where it is full, `renew` makes another master.
    Raises `RequestError` as `Grammars.compile` does.
    """

    def __init__(self, constraint: Constraint, vocabulary: GrammarVocabulary) -> None:
        self.vocabulary = vocabulary
        self._kind = constraint.kind
        self._source = grammar_source(constraint)
        started = perf_counter()
        self.master = self._build()
        machine = self.master.deep_copy()
        self.first_mask = vocabulary.mask_of(machine)
        self._seconds = perf_counter() - started
        if machine.is_error() or not self.first_mask.any():
            raise self.error(machine)

    def renew(self, master: LLMatcher) -> bool:
        """Has another master instead of this one; False where making it would take too long."""
        if master is self.master:
            if self._seconds > _SLOW_SECONDS:
                return False
            self.master = self._build()
        return True

    def error(self, machine: LLMatcher) -> RequestError:
        """Why a copy of the master can go no further."""
        reason = machine.get_error().removesuffix("<non-verbose/>").strip()
        return RequestError(
            f"the text cannot follow its constraint ({self._kind}): "
            f"{reason[:_LONGEST_REASON] or 'no token is allowed'}; correct or simplify it"
        )

    def _build(self) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(verbose_errors=False, **_LIMITS)
        return LLMatcher(self.vocabulary.tokenizer, self._source, log_level=0, limits=limits)


class Matcher:
    """How far one text has come in its form.

    `mask` has the tokens that may come next, as `SamplingRows` lists them: an ending token is among
    them where the text may end; with `ignore_eos` only where nothing else is. `finished`: the form
    is complete, and nothing can follow.
    """

    def __init__(self, grammar: Grammar, *, ignore_eos: bool = False) -> None:
        self.finished = False
        self._grammar = grammar
        self._vocabulary = grammar.vocabulary
        self._ignore_eos = ignore_eos
        self._tokens: list[int] = []
        self._master = grammar.master
        self._machine = self._master.deep_copy()
        self.mask = self._without_ends(grammar.first_mask)

    def advance(self, token: int) -> None:
        """Takes in the text's next token.

        Raises `RequestError` for one that was not allowed, or where the form costs too much.
        """
        self._tokens.append(token)
        if self._follow([token]):
            return
        # All texts of the grammar together may have filled what can be learnt of it.
        renewed = self._grammar.renew(self._master)
        self._master = self._grammar.master
        if renewed:
            self._machine = self._master.deep_copy()
        if not renewed or not self._follow(self._tokens):
            raise self._grammar.error(self._machine)

    def masks_ahead(self, tokens: Iterable[int]) -> list[NDArray[np.uint32]]:
        """What `mask` would be after each of these tokens, up to where the form lets none follow.

        Nothing is taken in. A token that is not allowed, or completes the form, has no mask.
        """
        machine = self._machine.deep_copy()
        masks: list[NDArray[np.uint32]] = []
        for token in tokens:
            if not machine.consume_token(token) or machine.is_stopped():
                break
            mask = self._vocabulary.mask_of(machine)
            if machine.is_error() or not self._vocabulary.goes_on(mask):
                break
            masks.append(self._without_ends(mask))
        return masks

    def _follow(self, tokens: list[int]) -> bool:
        machine = self._machine
        machine.consume_tokens(tokens)
        self.finished = machine.is_stopped()
        if not self.finished:
            mask = self._vocabulary.mask_of(machine)
            if not self._vocabulary.goes_on(mask):
                self.finished = machine.is_accepting()
                return self.finished
            self.mask = self._without_ends(mask)
        return not machine.is_error()

    def _without_ends(self, mask: NDArray[np.uint32]) -> NDArray[np.uint32]:
        if not self._ignore_eos or not self._vocabulary.goes_on(mask):
            return mask
        without: NDArray[np.uint32] = mask & ~self._vocabulary.ends
        return without


class GrammarVocabulary:
    """A model's vocabulary as llguidance knows it. `ends` is a mask of its ending tokens."""

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        """`size` is the model's, which may have more tokens than the tokenizer, or fewer."""
        from llguidance import LLTokenizer, TokenizerWrapper

        ends = sorted(each for each in tokenizer.eos_ids if each < size)
        words = _Words(tokenizer, size, ends)
        self.tokenizer = LLTokenizer(TokenizerWrapper(words), eos_token=ends or [size])
        self._words = -(-size // 32)
        self._all_words = -(-len(words.tokens) // 32)
        self.ends = np.zeros(self._words, np.uint32)
        for each in ends:
            self.ends[each // 32] |= np.uint32(1 << each % 32)

    def mask_of(self, machine: LLMatcher) -> NDArray[np.uint32]:
        """The tokens that may come next, one bit each; nothing sensible where it is in error."""
        mask = np.zeros(self._all_words, np.uint32)
        machine.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        return mask[: self._words]

    def goes_on(self, mask: NDArray[np.uint32]) -> bool:
        """Whether another token than an ending one is allowed."""
        return bool((mask & ~self.ends).any())


class _Words:
    """What `LLTokenizer` asks of a tokenizer. A model without an ending token gets one here."""

    def __init__(self, tokenizer: Tokenizer, size: int, ends: list[int]) -> None:
        known = min(size, tokenizer.vocabulary_size)
        self.tokens = [tokenizer.token_bytes(each) for each in range(known)]
        self.tokens += [b""] * (size - known)
        self.special_token_ids = [each for each in range(known) if tokenizer.is_special(each)]
        if not ends:
            self.tokens.append(b"<end>")
            self.special_token_ids.append(size)
        self.bos_token_id = tokenizer.bos_id
        self.eos_token_id = ends[0] if ends else size
        self._tokenizer = tokenizer
        self._size = size

    def __call__(self, text: bytes) -> list[int]:
        """The tokens of a text that a form leaves no choice in; none where there are none."""
        try:
            ids = self._encode(text.decode())
        except RequestError:
            return []
        return ids if all(each < self._size for each in ids) else []

    def _encode(self, text: str) -> list[int]:
        tokenizer = self._tokenizer
        if not tokenizer.strips_leading_space:
            return tokenizer.encode(text, add_special_tokens=False)
        # The vocabulary begins every text with a space: with a line break before it, the text
        # itself has none, if the line break is a token by itself.
        ids = tokenizer.encode(f"\n{text}", add_special_tokens=False)
        before = b""
        for count, each in enumerate(ids, 1):
            before += self.tokens[each]
            if before.endswith(b"\n"):
                return ids[count:] if before.strip(b" ") == b"\n" else []
        return []
