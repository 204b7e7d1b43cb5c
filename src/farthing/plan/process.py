"""What a process takes besides the plan: interpreter, libraries, tokenizer, and texts on their way.

Measured on Linux x86-64 with CPython 3.11: peaks of anonymous memory (RssAnon) of `farthing serve`
while every slot writes at once until the cache is full, less the plan's regions. Loads of models
with vocabularies of 49,152 and 262,144 entries and 4 to 32 slots lie 0.5 to 4.5 MiB below this sum.
"""

from __future__ import annotations

_MIB = 1 << 20

BASE_BYTES = 50 * _MIB
"""The interpreter, numpy, the server's libraries and the stacks of its threads."""

ENTRY_BYTES = 172
"""An entry of the vocabulary: tokenizer, merges, what turns ids into text."""

SLOT_BYTES = _MIB // 4
"""A text that runs: its connection, its ids, its rows."""

SLOT_ENTRY_BYTES = 1
"""An entry of the vocabulary for a text that runs: masks and counts as wide as the vocabulary."""


def process_bytes(vocabulary: int, slots: int) -> int:
    """Anonymous memory of a server that runs `slots` texts, without weights, cache and arena."""
    text = SLOT_BYTES + SLOT_ENTRY_BYTES * vocabulary
    return BASE_BYTES + ENTRY_BYTES * vocabulary + slots * text
