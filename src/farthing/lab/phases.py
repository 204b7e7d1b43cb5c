"""The two phases: a prompt is read in one pass, and then one token at a time is made.

Reading a prompt multiplies much for each byte it reads, decoding multiplies little; so a token of a
prompt is cheap, and a decoded one costs a pass over all weights.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from farthing.lab.bench import buffer_bytes
from farthing.lab.bench_steps import Steps
from farthing.lab.drift import drift_of
from farthing.lab.samples import Samples, interleaved
from farthing.lab.step_split import split_steps, split_table, usual_points
from farthing.lab.table import Column, Expectation, Plot, Table, judged
from farthing.plan.cost import decode_costs, total
from farthing.plan.machine import available_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from farthing.lab.drift import Drift
    from farthing.lab.step_split import Ceiling
    from farthing.lab.subject import Subject
    from farthing.models.program import Program
    from farthing.plan.memory import MemoryPlan

PROMPTS = (16, 64, 256, 1024)
CONTEXTS = (16, 64, 256, 1024, 4096)
DECODE_STEPS = 16
"""Of one token each, at each context in each round, at least."""

_DECODE_SECONDS = 0.05
"""How long so many steps take at least: a small model's are repeated until they do."""

_MOST_STEPS = 512

_FILLED_TOKENS = 512
_WITHIN = 0.15
"""By what share a step may miss its prediction: other work on the machine moves steps as much."""


def measure(subject: Subject) -> Iterator[Table]:
    """Measures prompts and decode steps in turns, gives a table of each, and takes steps apart."""
    from farthing.backends.ceilings import Ceilings

    longest = subject.model.config.context_length
    prompts, contexts = points(PROMPTS, longest), points(CONTEXTS, longest)
    room = max(*prompts, *contexts)
    program = subject.model.program
    with subject.native(room) as backend:
        steps = Steps(backend, subject.seed)
        steps.fill_cache(min(_FILLED_TOKENS, room))
        tasks: dict[str, Callable[[], float]] = {
            f"prompt of {tokens:,}": partial(steps.prefill, tokens) for tokens in prompts
        }
        count = steps_for(_decode(steps, contexts[0], DECODE_STEPS))
        tasks |= {
            f"decode at {tokens:,}": partial(_decode, steps, tokens, count) for tokens in contexts
        }
        for task in tasks.values():
            task()
        seconds = interleaved(tasks, subject.rounds, subject.progress.phase, subject.gauge.look)
        plan = backend.plan
        ceilings = Ceilings(subject.threads, buffer_bytes(available_memory()))
        try:
            splits, found = split_steps(
                steps,
                ceilings,
                program,
                plan,
                usual_points(prompts, contexts, room),
                max(1, count // 2),
                subject.rounds,
                subject.progress.phase,
                subject.gauge.look,
            )
        finally:
            ceilings.close()
    read = [seconds[f"prompt of {p:,}"] for p in prompts]
    decoded = [seconds[f"decode at {c:,}"] for c in contexts]
    skipped = [f"{tokens:,}" for tokens in sorted({*PROMPTS, *CONTEXTS}) if tokens > longest]
    notes = (
        (f"skipped: {', '.join(skipped)} tokens; this model's context is {longest:,}",)
        if skipped
        else ()
    )
    yield prefill_table(prompts, read, decoded[0], program, plan, notes)
    drift = drift_of(subject.gauge.taken)
    yield decode_table(contexts, decoded, program, plan, found, notes, drift)
    yield split_table(splits)


def points(usual: Sequence[int], longest: int) -> list[int]:
    """The usual ones that the model's context holds, and all of it where that is not all."""
    found = [tokens for tokens in usual if tokens < longest]
    return found if len(found) == len(usual) else [*found, longest]


def steps_for(seconds: float) -> int:
    """How many steps are run for one figure, where one takes so long."""
    return min(max(DECODE_STEPS, round(_DECODE_SECONDS / seconds)), _MOST_STEPS)


def _decode(steps: Steps, context: int, count: int) -> float:
    """Seconds of one token, over `count` of them."""
    return steps.decode([context], count) / count


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
        f"and a decoded one {1e3 * decode.median:.2f} ms: {apart.median:.1f} times apart within a "
        f"round. Time to first token grows from {1e3 * first.median:.0f} ms for {prompts[0]} "
        f"tokens to {1e3 * last.median:,.0f} ms for {prompts[-1]:,}.",
        Expectation(
            "a token of a prompt is cheaper than a decoded one, and time to first token grows with "
            "the prompt",
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


def predicted_step(
    program: Program, plan: MemoryPlan, context: int, shortest: int, seconds: float, most: Ceiling
) -> float:
    """Seconds of a step at `context`, where one at `shortest` takes `seconds`.

    What the longer context adds is read at the ceiling, and then multiplied at the ceiling of its
    mode: attention's kernel does not do both at once, where it does them less.
    """
    more = total(decode_costs(program, plan, [context])) - total(
        decode_costs(program, plan, [shortest])
    )
    return seconds + more.memory_seconds(most.read) + more.arithmetic_seconds(most.multiply)


def decode_table(
    contexts: list[int],
    seconds: list[Samples],
    program: Program,
    plan: MemoryPlan,
    ceilings: Sequence[Ceiling],
    notes: tuple[str, ...],
    drift: Drift,
) -> Table:
    """Each context's step beside two predictions, from the shortest context on.

    One knows the bytes alone; the other adds attention's multiply-accumulates, and takes the
    shortest step as it was measured. `ceilings` are of the same rounds as `seconds`. Beyond both
    predictions is what stays there however far the machine moves by `drift`.
    """
    rows = []
    missed: list[float] = []
    surely: list[float] = []
    shortest = seconds[0]
    base = predicted_slowdown(program, plan, contexts[0])
    for context, each in zip(contexts, seconds, strict=True):
        bytes_alone = (1 + predicted_slowdown(program, plan, context)) / (1 + base) - 1
        both = Samples(
            tuple(
                predicted_step(program, plan, context, contexts[0], first, ceiling) / first - 1
                for first, ceiling in zip(shortest.values, ceilings, strict=True)
            ),
            level=1.0,
            paired=True,
            least=-1.0,
        )
        found = each.over(shortest).shifted(-1)
        low, high = min(bytes_alone, both.median), max(bytes_alone, both.median)
        for misses, measured in ((missed, found), (surely, found.widened(drift))):
            misses.append(max(low - measured.high, measured.low - high) / (1 + high))
        rows.append(
            (
                context,
                each.scaled(1e3),
                each.per(1),
                100 * bytes_alone,
                both.scaled(100),
                found.scaled(100),
            )
        )
    last = rows[-1]
    slower = last[5].median
    return Table(
        "decode",
        "Decoding: one token against each context",
        (
            Column("context", "tokens"),
            Column("a token", "ms", ",.2f"),
            Column("speed", "tokens/s", ",.0f"),
            Column("slower, by bytes", "%", "+.1f"),
            Column("slower, by bytes and arithmetic", "%", "+.1f"),
            Column("slower, measured", "%", "+.1f"),
        ),
        tuple(rows),
        f"From {contexts[0]} to {contexts[-1]:,} tokens of context a step becomes "
        f"{abs(slower):.1f} % {'slower' if slower >= 0 else 'faster'}; the bytes of cache over "
        f"those of the weights say {last[3]:.1f} %, and what attention reads and multiplies more, "
        f"at this machine's ceilings, {last[4].median:.1f} %.",
        Expectation(
            "flat to within the context's bytes of cache by the bytes of weights, and what "
            "attention multiplies more",
            judged(max(missed) <= _WITHIN, max(surely) > _WITHIN),
        ),
        notes=(
            (
                "by bytes: all bytes take the same time; where a processor's caches keep a part of "
                "the weights, those of the cache, which grows past them, take longer"
            ),
            *notes,
        ),
        plots=(
            Plot(
                "lines",
                "context",
                ("slower, by bytes", "slower, by bytes and arithmetic", "slower, measured"),
                "log",
            ),
        ),
    )
