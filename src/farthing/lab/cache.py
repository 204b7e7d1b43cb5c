"""The key-value cache: what it saves in time, in multiply-accumulates and in memory.

Feeding one token a step must give what feeding the whole text each time gives, bit for bit: that is
checked here before any of its speed is told.
"""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import Request, SamplingParams
from farthing.lab.cache_counts import count_products, score_bytes
from farthing.lab.samples import Samples
from farthing.lab.subject import has_torch
from farthing.lab.table import Column, Expectation, Plot, Skipped, Table
from farthing.lab.verify import SEQUENCES, difference, made, recomputed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from farthing.lab.subject import Subject

PROMPT_TOKENS, MADE_TOKENS = 16, 48
HEAD_CONTEXTS = (256, 1024, 4096)
COUNTED_TOKENS = (16, 64, 256, 1024, 4096, 16384)
PEAK_TOKENS = 288
"""A prompt of 32 and 256 more."""

_MIB = 1 << 20


def measure(subject: Subject) -> Iterator[Table | Skipped]:
    """One table each: a text both ways, one head both ways, what is counted, peak memory."""
    yield text_both_ways(subject)
    yield head_both_ways(subject)
    yield counted(subject)
    yield (
        peak_memory(subject)
        if has_torch()
        else Skipped(
            "peak memory by tensor",
            "it is measured on the torch backend, and torch is not installed here: pip install "
            "'farthing[torch]'",
        )
    )


def text_both_ways(subject: Subject) -> Table:
    """Makes a text with the cache and by computing everything anew, in turns."""
    prompt = tuple(subject.tokens(PROMPT_TOKENS))
    request = Request("text", prompt, SamplingParams(max_tokens=MADE_TOKENS, ignore_eos=True))
    fast, slow, differences = [], [], []
    with subject.native(PROMPT_TOKENS + MADE_TOKENS, SEQUENCES) as backend:
        made(backend, [request])
        for number in range(1, subject.rounds + 1):
            subject.progress.phase(f"a text both ways, round {number} of {subject.rounds}")
            subject.gauge.look()
            cached, anew = made(backend, [request])[0], recomputed(backend, request)
            fast.append(cached.seconds)
            slow.append(anew.seconds)
            differences.append(difference(anew, cached))
    cached_seconds, anew_seconds = Samples(tuple(fast)), Samples(tuple(slow))
    gain = anew_seconds.over(cached_seconds)
    different = next(filter(None, differences), "")
    told = different or "the same tokens and the same bits of logits"
    return Table(
        "text",
        f"A text of {MADE_TOKENS} tokens after {PROMPT_TOKENS}, with the cache and without",
        (
            Column("way"),
            Column("time", "ms", ",.1f"),
            Column("a token", "ms", ",.2f"),
            Column("slower", "times", ".2f"),
            Column("output"),
        ),
        (
            (
                "cached",
                cached_seconds.scaled(1e3),
                cached_seconds.scaled(1e3 / MADE_TOKENS),
                None,
                "",
            ),
            (
                "recomputed each step",
                anew_seconds.scaled(1e3),
                anew_seconds.scaled(1e3 / MADE_TOKENS),
                gain,
                told,
            ),
        ),
        f"With the cache the text is made {gain.median:.1f} times faster, and the output is "
        + ("NOT the same: " + different if different else "the same to the last bit of its logits")
        + ".",
        Expectation("identical output, faster", not different and gain.low > 1),
    )


def head_both_ways(subject: Subject) -> Table:
    """One attention head in numpy, one step at each context: all rows, or the newest alone."""
    head_dim = subject.model.program.cache[0].head_dim
    random = np.random.default_rng(subject.seed)
    heads = {
        context: random.standard_normal((3, context, head_dim), np.float32)
        for context in HEAD_CONTEXTS
    }
    slow: dict[int, list[float]] = {context: [] for context in heads}
    fast: dict[int, list[float]] = {context: [] for context in heads}
    apart = 0.0
    _attend(*heads[HEAD_CONTEXTS[0]])
    for number in range(1, subject.rounds + 1):
        for context, (query, key, value) in heads.items():
            subject.progress.phase(f"one head at {context:,}, round {number} of {subject.rounds}")
            subject.gauge.look()
            started = perf_counter()
            whole = _attend(query, key, value)
            between = perf_counter()
            newest = _attend(query[-1:], key, value)
            fast[context].append(perf_counter() - between)
            slow[context].append(between - started)
            apart = max(apart, float(np.abs(whole[-1] - newest[0]).max()))
    rows = []
    for context in heads:
        anew, cached = Samples(tuple(slow[context])), Samples(tuple(fast[context]))
        rows.append(
            (
                context,
                anew.scaled(1e3),
                cached.scaled(1e3),
                anew.over(cached),
                score_bytes(context, recomputed=True),
                score_bytes(context, recomputed=False),
            )
        )
    context, *_, whole_bytes, newest_bytes = rows[-1]
    return Table(
        "head",
        f"One attention head of {head_dim} dimensions, one step at each context, in numpy",
        (
            Column("context", "tokens"),
            Column("recomputed", "ms", ",.2f"),
            Column("cached", "ms", ",.3f"),
            Column("slower", "times", ",.0f"),
            Column("scores recomputed", "bytes"),
            Column("scores cached", "bytes"),
        ),
        tuple(rows),
        f"At {context:,} tokens of context recomputing holds {whole_bytes / 1e6:.0f} MB of scores "
        f"for one head where the cache's step holds {newest_bytes / 1024:.0f} KB; the newest row "
        f"is the same within {apart:.1e}.",
        Expectation(
            "the same output; recomputing is slower at every context, and its scores grow with the "
            "square of it",
            apart < 1e-5 and all(row[3].low > 1 for row in rows),
        ),
        plots=(Plot("lines", "context", ("recomputed", "cached"), "log", "log"),),
    )


def counted(subject: Subject) -> Table:
    """Multiply-accumulates from a cold start, of the last step and of all."""
    program = subject.model.program
    longest = subject.model.config.context_length
    counts = [count_products(program, tokens) for tokens in COUNTED_TOKENS if tokens <= longest]
    first, last = counts[0], counts[-1]
    return Table(
        "products",
        "Multiply-accumulates to generate a text from its first token on, counted",
        (
            Column("text", "tokens"),
            Column("last step cached"),
            Column("last step recomputed"),
            Column("all steps cached"),
            Column("all steps recomputed"),
            Column("ratio", "times", ",.1f"),
        ),
        tuple(
            (c.tokens, c.cached_step, c.recomputed_step, c.cached, c.recomputed, c.ratio)
            for c in counts
        ),
        f"For {first.tokens} tokens recomputing multiplies {first.ratio:.1f} times as much, for "
        f"{last.tokens:,} tokens {last.ratio:,.0f} times.",
        Expectation(
            "the ratio grows without bound",
            all(a.ratio < b.ratio for a, b in pairwise(counts)),
        ),
        notes=_skipped(longest),
        plots=(Plot("lines", "text", ("all steps cached", "all steps recomputed"), "log", "log"),),
    )


def peak_memory(subject: Subject) -> Table:
    """Of the torch oracle's last step; torch must be there."""
    from farthing.lab.peak_memory import KEYS, LOGITS, OTHER, SCORES, generation_peak

    tokens = min(PEAK_TOKENS, subject.model.config.context_length)
    prompt = subject.tokens(32)
    subject.progress.phase("peak memory, cached")
    cached = generation_peak(subject.model, prompt, tokens, recompute=False)
    subject.progress.phase("peak memory, recomputed")
    subject.gauge.look()
    anew = generation_peak(subject.model, prompt, tokens, recompute=True)
    kinds = (LOGITS, SCORES, KEYS, OTHER)
    largest = max(kinds, key=lambda kind: anew.parts.get(kind, 0))
    ratio = anew.bytes / cached.bytes
    return Table(
        "memory",
        f"Peak memory above the weights of a text of {tokens} tokens, on the fp32 oracle",
        (
            Column("way"),
            *(Column(kind, "MiB", ",.2f") for kind in kinds),
            Column("peak", "MiB", ",.2f"),
        ),
        tuple(
            (f"{way}, {when}", *(parts.get(kind, 0) / _MIB for kind in kinds), whole)
            for way, peak in (("cached", cached), ("recomputed each step", anew))
            for when, parts, whole in (
                ("at its peak", peak.parts, peak.bytes / _MIB),
                ("most of each kind", peak.most, None),
            )
        ),
        f"Recomputing needs {ratio:.1f} times the memory, of which {largest} are "
        f"{anew.parts[largest] / anew.bytes:.0%}.",
        Expectation("recomputing needs over twice as much", ratio > 2),
        notes=(
            (
                "measured on the torch backend, which materialises all of these: the engine does "
                "not, and hides the difference"
            ),
            "recomputing takes the logits of every row, as a plain implementation does",
        ),
        plots=(Plot("stacked", "way", kinds, "names"),),
    )


def _attend(
    query: NDArray[np.float32], key: NDArray[np.float32], value: NDArray[np.float32]
) -> NDArray[np.float32]:
    """softmax(q k^T / sqrt(d)) v, causal, for the last len(query) positions."""
    scores = query @ key.T
    scores *= np.float32(key.shape[1] ** -0.5)
    if len(query) > 1:
        scores[~np.tri(len(key), dtype=bool)] = -np.inf
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    return np.asarray(scores @ value, np.float32)


def _skipped(longest: int) -> tuple[str, ...]:
    missing = [f"{tokens:,}" for tokens in COUNTED_TOKENS if tokens > longest]
    if not missing:
        return ()
    return (f"skipped: {', '.join(missing)} tokens; this model's context is {longest:,}",)
