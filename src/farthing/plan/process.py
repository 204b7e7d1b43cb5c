"""What a process takes besides the plan: interpreter, libraries, tokenizer, and texts on their way.

Measured on Linux x86-64 with CPython 3.11: peaks of anonymous memory (RssAnon) of `farthing serve`
while every prompt is read at once, then every slot writes until the cache is full, follows a
grammar, and tells the log-probabilities of each token and of others, less the plan's regions.
`tests/cli/test_plan_peak.py` prints how far the sum lies from them, 3 % at most when set;
from run to run they differ by 1 %, as memory is given back sooner or later.
"""

from __future__ import annotations

_MIB = 1 << 20

BASE_BYTES = 39 * _MIB
"""The interpreter, numpy, the server's libraries with that of grammars, its threads' stacks."""

ENTRY_BYTES, MERGE_BYTES = 235, 190
"""An entry of the vocabulary, and a merge of the tokenizer, with what reading them leaves."""

GRAMMAR_ENTRY_BYTES = 475
"""An entry of the vocabulary as grammars know it, from the first answer on that has to follow one:
llguidance keeps several trees of them."""

SLOT_BYTES = 3 * _MIB // 32
"""A text that runs: its connection, its rows, masks as wide as the vocabulary; two thirds for the
matcher of its grammar."""

TOKEN_BYTES = 600
"""A token of a text: a third for its id and text, the rest for the log-probabilities that are told
with it, its own and up to twenty others'."""

LOOKUP_TOKEN_BYTES = 160
"""A token of recent texts that guesses are looked up in: 4 of its own, 4 in the chain of its pair's
occurrences, the rest an entry of a dictionary, where no pair is like another."""


_DISTRIBUTIONS = 8
"""As wide as the vocabulary, while one guess is decided by leviathan's rule."""


def leviathan_bytes(vocabulary: int, rows: int, draft_rows: int, guesses: int) -> int:
    """Of a step whose guesses are taken by leviathan's rule: logits of `rows` in float32, and of
    `draft_rows` of a draft model, if any, whose distributions of `guesses` are kept in float64.
    """
    return vocabulary * (4 * (rows + draft_rows) + 8 * (guesses + _DISTRIBUTIONS))


def process_bytes(vocabulary: int, merges: int, slots: int, tokens: int) -> int:
    """Anonymous memory of a server that runs `slots` texts of `tokens` tokens in all, without
    weights, cache and arena.
    """
    tokenizer = (ENTRY_BYTES + GRAMMAR_ENTRY_BYTES) * vocabulary + MERGE_BYTES * merges
    return BASE_BYTES + tokenizer + SLOT_BYTES * slots + TOKEN_BYTES * tokens
