"""Records how long steps of a model take, beside what they hold: the data of test_cost.py.

    python tests/data/steps/record_steps.py smollm2-135m > tests/data/steps/smollm2-135m.json

Steps of random kinds in random order, each timed once, as an engine would see them: sequences that
decode, chunks of prompts, and both together. A line has tokens, rows, context, reads and seconds.

What lies here is of two cores of Zen 5 that others used too: every step is as it came, and of the
first hundred, which touch their blocks for the first time, every fifth took half as long again or
longer.
"""

from __future__ import annotations

import json
import sys
from time import perf_counter

import numpy as np

from farthing.backends.native import NativeBackend
from farthing.core import SamplingParams, StepPlan
from farthing.engine.kv import blocks_for
from farthing.engine.rows import FixedRows
from farthing.files import catalog
from farthing.files.checkpoint import open_checkpoint
from farthing.models.load import load_model
from farthing.plan.memory import plan_memory

CONTEXT, SEQUENCES, STEPS = 1024, 64, 800


def spans(random: np.random.Generator, most_tokens: int) -> list[tuple[int, int, bool]]:
    """(first position, end, whether a row is wanted) of each sequence of a step."""
    kind = random.choice(["decode", "prompt", "both"], p=[0.5, 0.2, 0.3])
    found = []
    if kind != "prompt":
        typical = random.integers(8, CONTEXT // 2)
        for _ in range(int(2 ** random.uniform(0, np.log2(SEQUENCES - 1)))):
            context = int(np.clip(random.lognormal(np.log(typical), 0.5), 1, CONTEXT))
            found.append((context - 1, context, True))
    if kind != "decode":
        count = int(2 ** random.uniform(0, np.log2(most_tokens - SEQUENCES)))
        first = int(random.integers(0, CONTEXT - count)) if random.random() < 0.5 else 0
        found.append((first, first + count, bool(random.random() < 0.5)))
    return found


def plan_of(random: np.random.Generator, step: list[tuple[int, int, bool]], words: int) -> StepPlan:
    """Tokens at random, in blocks of their own."""
    widths = [blocks_for(end) for _, end, _ in step]
    tables = np.full((len(step), max(widths)), -1, np.int32)
    blocks = np.split(np.arange(sum(widths)), np.cumsum(widths)[:-1])
    for table, owned in zip(tables, blocks, strict=True):
        table[: len(owned)] = owned
    starts = np.cumsum([0, *(end - first for first, end, _ in step)]).astype(np.int32)
    rows = np.array(
        [last - 1 for last, (_, _, wanted) in zip(starts[1:], step, strict=True) if wanted],
        np.int32,
    )
    fixed = FixedRows([(SamplingParams(), 0, 0)] * len(rows))
    return StepPlan(
        token_ids=random.integers(0, words, int(starts[-1])).astype(np.int32),
        positions=np.concatenate([np.arange(a, b, dtype=np.int32) for a, b, _ in step]),
        starts=starts,
        block_tables=tables,
        rows=rows,
        sampling=fixed.at([end for _, end, wanted in step if wanted], [None] * len(rows))
        if len(rows)
        else None,
    )


def main() -> None:
    random = np.random.default_rng(4)
    with open_checkpoint(catalog.resolve(sys.argv[1])) as checkpoint:
        model = load_model(checkpoint)
        memory = plan_memory(model, context_length=CONTEXT, sequences=SEQUENCES, slots=SEQUENCES)
        backend = NativeBackend(model, memory)
    recorded = []
    for _ in range(STEPS):
        step = spans(random, backend.max_step_tokens)
        plan = plan_of(random, step, backend.vocabulary_size)
        started = perf_counter()
        backend.run(plan)
        seconds = perf_counter() - started
        shape = (
            len(plan.token_ids),
            len(plan.rows),
            int(plan.positions.sum()) + len(plan.token_ids),
            sum(end for _, end, _ in step),
        )
        recorded.append([*shape, round(seconds, 7)])
    print("[")
    print(",\n".join(map(json.dumps, recorded)))
    print("]")


if __name__ == "__main__":
    main()
