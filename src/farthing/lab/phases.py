"""The two phases: a prompt is read in one pass, and then one token at a time is made.

Reading a prompt multiplies much for each byte it reads, decoding multiplies little; so a token of a
prompt is cheap, and a decoded one costs a pass over all weights.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from farthing.lab.bench_steps import Steps
from farthing.lab.samples import interleaved
from farthing.lab.table import Column, Expectation, Plot, Table
from farthing.plan.cost import decode_costs, total

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from farthing.lab.samples import Samples
    from farthing.lab.subject import Subject
    from farthing.models.program import Program
    from farthing.plan.memory import MemoryPlan

PROMPTS = (16, 64, 256, 1024)
CONTEXTS = (16, 64, 256, 1024, 4096)
DECODE_STEPS = 16
"""Of one token each, at each context in each round."""

_FILLED_TOKENS = 512
_WITHIN = 0.15
"""By how much a slowdown may miss its prediction: other work on the machine moves steps as much."""


def measure(subject: Subject) -> Iterator[Table]:
    """Measures prompts and decode steps in turns, and gives a table of each."""
    longest = subject.model.config.context_length
    prompts, contexts = points(PROMPTS, longest), points(CONTEXTS, longest)
    room = max(*prompts, *contexts)
    with subject.native(room) as backend:
        steps = Steps(backend, subject.seed)
        steps.fill_cache(min(_FILLED_TOKENS, room))
        tasks: dict[str, Callable[[], float]] = {
            f"prompt of {tokens:,}": partial(steps.prefill, tokens) for tokens in prompts
        }
        tasks |= {f"decode at {tokens:,}": partial(_decode, steps, tokens) for tokens in contexts}
        for task in tasks.values():
            task()
        seconds = interleaved(tasks, subject.rounds, subject.progress.phase)
        plan = backend.plan
    read = [seconds[f"prompt of {p:,}"] for p in prompts]
    decoded = [seconds[f"decode at {c:,}"] for c in contexts]
    skipped = [f"{tokens:,}" for tokens in sorted({*PROMPTS, *CONTEXTS}) if tokens > longest]
    notes = (
        (f"skipped: {', '.join(skipped)} tokens; this model's context is {longest:,}",)
        if skipped
        else ()
    )
    yield prefill_table(prompts, read, decoded[0], subject.model.program, plan, notes)
    yield decode_table(contexts, decoded, subject.model.program, plan, notes)


def points(usual: Sequence[int], longest: int) -> list[int]:
    """The usual ones that the model's context holds, and all of it where that is not all."""
    found = [tokens for tokens in usual if tokens < longest]
    return found if len(found) == len(usual) else [*found, longest]


def _decode(steps: Steps, context: int) -> float:
    """Seconds of one token."""
    return steps.decode([context], DECODE_STEPS) / DECODE_STEPS


def prefill_table(
    prompts: list[int],
    seconds: list[Samples],
    decode: Samples,
    program: Program,
    plan: MemoryPlan,
    notes: tuple[str, ...],
) -> Table:
    """`decode` is of one token on a short context."""
    heads = max(op.attributes["heads"] for op in program.ops if op.kind == "attend")
    rows = tuple(
        (
            tokens,
            each.scaled(1e3),
            each.scaled(1e3 / tokens),
            each.per(tokens),
            4 * heads * tokens * tokens,
        )
        for tokens, each in zip(prompts, seconds, strict=True)
    )
    apart = decode.over(seconds[-1].scaled(1 / prompts[-1]))
    first, last = seconds[0], seconds[-1]
    scores = 4 * heads * prompts[-1] ** 2
    return Table(
        "prefill",
        "Prompts: the whole of each in one pass, to its first token",
        (
            Column("prompt", "tokens"),
            Column("time to first token", "ms", ",.1f"),
            Column("a token", "ms", ",.3f"),
            Column("speed", "tokens/s", ",.0f"),
            Column("one layer's scores, never held", "bytes"),
        ),
        rows,
        f"A token of a prompt of {prompts[-1]:,} takes {1e3 * last.median / prompts[-1]:.2f} ms "
        f"and a decoded one {1e3 * decode.median:.2f} ms: {apart.median:.1f} times apart. Time to "
        f"first token grows from {1e3 * first.median:.0f} ms for {prompts[0]} tokens to "
        f"{1e3 * last.median:,.0f} ms for {prompts[-1]:,}.",
        Expectation(
            "a token of a prompt is several times cheaper than a decoded one, and time to first "
            "token grows with the prompt",
            apart.low > 1 and last.low > first.high,
        ),
        notes=(
            (
                f"all working memory of the engine is {plan.arena.total_bytes:,} bytes, whatever "
                f"the prompt's length; one layer's scores of {prompts[-1]:,} tokens would be "
                f"{scores:,}"
            ),
            *notes,
        ),
        plots=(Plot("lines", "prompt", ("time to first token",), "log", "log"),),
    )


def predicted_slowdown(program: Program, plan: MemoryPlan, context: int) -> float:
    """How much longer a step at `context` reads than one without any: bytes of cache by weights."""
    cost = total(decode_costs(program, plan, [context]))
    return cost.cache_bytes / cost.weight_bytes


def decode_table(
    contexts: list[int],
    seconds: list[Samples],
    program: Program,
    plan: MemoryPlan,
    notes: tuple[str, ...],
) -> Table:
    """Each context's step beside what the bytes alone predict, from the shortest context on."""
    rows, missed = [], []
    base = predicted_slowdown(program, plan, contexts[0])
    for context, each in zip(contexts, seconds, strict=True):
        predicted = (1 + predicted_slowdown(program, plan, context)) / (1 + base) - 1
        found = each.over(seconds[0]).shifted(-1)
        missed.append(abs(found.median - predicted))
        rows.append((context, each.scaled(1e3), each.per(1), 100 * predicted, found.scaled(100)))
    last = rows[-1]
    measured = last[4].median
    return Table(
        "decode",
        "Decoding: one token against each context",
        (
            Column("context", "tokens"),
            Column("a token", "ms", ",.2f"),
            Column("speed", "tokens/s", ",.0f"),
            Column("slower, predicted", "%", "+.1f"),
            Column("slower, measured", "%", "+.1f"),
        ),
        tuple(rows),
        f"From {contexts[0]} to {contexts[-1]:,} tokens of context a step becomes "
        f"{abs(measured):.1f} % {'slower' if measured >= 0 else 'faster'}; the bytes of cache over "
        f"those of the weights say {last[3]:.1f} %.",
        Expectation(
            "flat to within the context's bytes of cache by the bytes of weights",
            max(missed) <= _WITHIN * (1 + last[3] / 100),
        ),
        notes=notes,
        plots=(Plot("lines", "context", ("slower, predicted", "slower, measured"), "log"),),
    )
