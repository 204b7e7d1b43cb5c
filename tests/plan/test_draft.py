"""A model that guesses beside another is part of the sum: planned, refused, allocated."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tiny
from farthing.cli import main
from farthing.core import BLOCK_TOKENS, ActivationMode, DoesNotFitError, KVDtype, SamplingParams
from farthing.engine.draft_copy import copy_in
from farthing.engine.engine import Engine
from farthing.engine.leviathan import decide
from farthing.engine.rows import FixedRows
from farthing.engine.sampler import log_probabilities, probabilities
from farthing.plan.memory import CATCH_UP_TOKENS, plan_memory, require_room
from farthing.plan.precision import AS_STORED, precision
from farthing.plan.process import leviathan_bytes
from farthing.plan.subject import ModelSubject
from farthing.plan.sum import plan_sum
from farthing.serve.sizing import choose_sizes
from native_steps import model_at

if TYPE_CHECKING:
    from farthing.models.load import Model
    from farthing.plan.memory import MemoryPlan

NO_SPEED = ["--ceilings", "none"]


@pytest.fixture(scope="module")
def model() -> Model:
    return model_at(tiny.shared("llama", "gguf", "BF16"))


def planned(model: Model, draft: Model | None, **settings: Any) -> MemoryPlan:
    asked = {"slots": 3, "cache_tokens": 4096, "threads": 1, **settings}
    return plan_memory(model, draft=draft, **asked)


def test_a_draft_has_a_cache_of_as_many_positions_and_steps_of_its_own(model: Model) -> None:
    draft = model_at(tiny.shared("llama", "gguf", "Q4_0"))
    settings = {"kv_dtype": KVDtype.INT8, "activations": ActivationMode.BF16}
    plan = planned(model, draft, context_length=512, **settings)
    guessing = plan.draft
    assert guessing is not None
    assert (guessing.cache_tokens, guessing.slots) == (plan.cache_tokens, plan.slots)
    assert (guessing.kv_dtype, guessing.activations) == (KVDtype.INT8, ActivationMode.BF16)
    assert guessing.step_tokens == CATCH_UP_TOKENS
    many = planned(model, draft, slots=200).draft
    assert many is not None
    assert many.step_tokens == 400  # two tokens of each
    alone = planned(model, None, context_length=512, **settings)
    assert plan.total_bytes == alone.total_bytes
    assert plan.needed_bytes == alone.needed_bytes + guessing.total_bytes
    assert guessing.process_bytes == 0  # one process holds both


@pytest.mark.parametrize("kv_dtype", list(KVDtype))
def test_the_parts_are_all_of_both_plans_and_nothing_twice(model: Model, kv_dtype: KVDtype) -> None:
    plan = planned(model, copy_in(model, "int4-g64"), kv_dtype=kv_dtype)
    memory = plan_sum(plan, model.program, file_bytes=10, reserve=64)
    draft = plan.draft
    assert draft is not None
    assert memory.total == plan.needed_bytes + 64
    assert memory.group("weights") == plan.weight_bytes
    assert memory.group("draft") == draft.weight_bytes + draft.arena.total_bytes
    assert memory.group("cache") == plan.cache_bytes + draft.cache_bytes
    told = {part.name: part for part in memory.parts if part.name.startswith("draft")}
    assert "INT4" in told["draft: weights"].detail
    assert told["draft: cache"].bytes == draft.cache_bytes


def test_what_does_not_fit_with_a_draft_is_told_the_cache_that_does(model: Model) -> None:
    draft = copy_in(model, "q8_0")
    plan = planned(model, draft)
    room = plan.needed_bytes - 1
    require_room(planned(model, None), room)
    with pytest.raises(DoesNotFitError, match=r"draft \d+, process \d+") as refusal:
        require_room(plan, room)
    found = re.search(r"--cache-tokens (\d+)", str(refusal.value))
    assert found is not None
    tokens = int(found[1])
    require_room(planned(model, draft, cache_tokens=tokens), room)
    with pytest.raises(DoesNotFitError):
        require_room(planned(model, draft, cache_tokens=tokens + BLOCK_TOKENS), room)
    with pytest.raises(DoesNotFitError, match=r"or no draft \(--speculate ngram\)"):
        require_room(plan, 1 << 20)


def test_a_server_halves_its_cache_for_a_draft_too(model: Model) -> None:
    draft = copy_in(model, "q8_0")
    alone = choose_sizes(model, room=1 << 40, threads=1)
    both = choose_sizes(model, room=1 << 40, threads=1, draft=draft)
    assert both.needed == both.plan.needed_bytes == alone.needed + both.plan.draft_bytes
    assert both.plan.draft is not None
    # Room for all but the draft's cache.
    room = both.needed - both.plan.draft.cache_bytes
    tight = choose_sizes(model, room=room, threads=1, draft=draft)
    assert tight.fits
    assert tight.plan.cache_tokens == alone.plan.cache_tokens // 2
    assert tight.plan.draft is not None
    assert tight.plan.draft.cache_tokens == tight.plan.cache_tokens


def _mapped_bytes() -> int:
    found = re.search(r"VmSize:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.parametrize("speculate", ["self=int4-g64", "draft"])
def test_an_engine_allocates_what_the_plan_says_of_its_draft(speculate: str) -> None:
    path = tiny.shared("llama", "gguf", "BF16")
    other = tiny.shared("llama", "gguf", "Q4_0")
    asked = f"draft={other}" if speculate == "draft" else speculate
    plans = []

    def planner(model: Model, *, sequences: int, **settings: Any) -> MemoryPlan:
        plans.append(plan_memory(model, **settings))
        return plans[0]

    from farthing.engine.load import load

    before = _mapped_bytes()
    with load(
        path, speculate=asked, slots=2, cache_tokens=1 << 20, threads=1, planner=planner
    ) as engine:
        grown = _mapped_bytes() - before
        (plan,) = plans
        assert plan.draft is not None
        assert plan.draft.total_bytes > 100 << 20
        planned_bytes = plan.total_bytes + plan.draft_bytes
        # Stacks of two threads come on top, and what the allocator of the interpreter takes.
        assert planned_bytes <= grown < planned_bytes + (96 << 20)
        assert engine.report is not None
        assert engine.report.memory["draft"] == plan.draft_bytes
        speculation = engine._loop.scheduler.speculation
        assert speculation is not None
        backend = speculation._costly._backend
        assert backend.cache_bytes().nbytes == plan.draft.cache_bytes
        assert backend._program.weight_bytes().nbytes == plan.draft.weight_bytes


def test_a_plan_and_a_server_say_the_same_of_a_draft(capsys: pytest.CaptureFixture[str]) -> None:
    path, draft = (str(tiny.shared("llama", "gguf", quant)) for quant in ("BF16", "Q4_0"))
    for speculate in (f"draft={draft}", "self=int4-g64", "off"):
        flags = ["--context", "512", "--threads", "1", "--speculate", speculate]
        assert main(["plan", path, *flags, "--users", "5", *NO_SPEED, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert main(["plan", path, *flags, "--users", "5", *NO_SPEED]) == 0
        line = capsys.readouterr().out.rstrip().splitlines()[-1].split()
        assert line[-2:] == ["--speculate", speculate]
        assert main([*line[1:], "--check", "--json"]) == 0
        checked = json.loads(capsys.readouterr().out)
        assert checked["needed_bytes"] == shown["cells"][0]["needed_bytes"]
        assert checked["sum"] == {name: shown["sum"][name] for name in checked["sum"]}
        assert ("draft" in checked["memory_bytes"]) == (speculate != "off")


def test_users_that_fit_are_fewer_with_a_draft(model: Model) -> None:
    alone = ModelSubject(model, AS_STORED, KVDtype.BF16, threads=1)
    both = ModelSubject(
        model, AS_STORED, KVDtype.BF16, threads=1, draft=lambda target: copy_in(target, "int4-g64")
    )
    assert both.bytes_per_token == 2 * alone.bytes_per_token
    assert both.block_bytes == alone.block_bytes + alone.plan.block_bytes
    wide = ModelSubject(
        model, precision("fp16"), KVDtype.BF16, draft=lambda target: copy_in(target, "q8-0")
    )
    assert wide.plan.draft is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--speculate", "fast"], "draft=MODEL or self=SCHEME"),
        (["--speculate", "self=int3"], "no such scheme"),
        (["--speculate", "draft=missing.gguf"], "there is no file missing.gguf"),
        (["--speculate", "self=q4_0", "--weights", "int8"], "for models of 16 bits"),
    ],
)
def test_a_draft_that_cannot_be_is_one_clear_error(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tiny.shared("llama", "gguf", "BF16"))
    assert main(["plan", path, *arguments, *NO_SPEED]) == 2
    assert message in capsys.readouterr().err


def test_a_shape_has_no_draft(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ["--params", "7e9", "--layers", "32", "--kv-heads", "8", "--head-dim", "128"]
    assert main(["plan", *shape, "--speculate", "self=int4", *NO_SPEED]) == 2
    assert "--speculate adds a second model to MODEL" in capsys.readouterr().err


def test_a_larger_draft_is_refused(
    smollm2_path: Path, gemma3_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["plan", str(smollm2_path), "--speculate", f"draft={gemma3_path}", *NO_SPEED]
    assert main(asked) == 2
    assert "more than the" in capsys.readouterr().err


def test_a_draft_of_other_tokens_is_refused_by_the_plan_as_by_the_server(
    smollm2_path: Path, gemma3_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [str(gemma3_path), "--context", "512", "--speculate", f"draft={smollm2_path}"]
    refused = []
    for command in (["plan", *asked, *NO_SPEED], ["serve", *asked, "--check"]):
        assert main(command) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        refused.append(captured.err)
    assert refused[0] == refused[1]
    assert "the draft has another tokenizer than its target" in refused[0]


def test_an_engine_with_a_draft_that_does_not_fit_is_refused_before_anything_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tiny.shared("llama", "gguf", "BF16")
    plan = planned(model_at(path), copy_in(model_at(path), "int4-g64"), slots=32)
    monkeypatch.setattr("farthing.plan.memory.available_memory", lambda: plan.needed_bytes - 1)
    with pytest.raises(DoesNotFitError, match="draft"):
        Engine.load(path, speculate="self=int4-g64", cache_tokens=4096, threads=1)


def test_leviathans_rule_takes_no_more_than_is_counted(model: Model) -> None:
    """Measured where nothing is small: a vocabulary of 20,000, and nothing certain."""
    vocabulary, random = 20_000, np.random.default_rng(0)
    logits = random.normal(0, 1, (2, vocabulary)).astype(np.float32)
    sampling = SamplingParams(temperature=1.0, top_p=0.999, logprobs=5)
    rows = FixedRows([(sampling, 3, 0)] * 2).at(range(2), [None] * 2)
    kept = [probabilities(logits[row], rows, row) for row in range(2)]
    counted = leviathan_bytes(vocabulary, 2, 2, 2)
    tracemalloc.start()
    try:
        target = logits.copy()  # as the backend gives them: the draft's and the target's
        both = [target, logits.copy(), *(each.copy() for each in kept)]
        for guess in range(3):
            decide(probabilities(target[0], rows, 0), both[2], guess, 3, 0, 7)
        log_probabilities(target[0])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0.5 * counted < peak < counted


def test_the_logits_of_leviathans_rule_are_part_of_the_sum(model: Model) -> None:
    size = model.config.vocabulary_size
    draft = model_at(tiny.shared("llama", "gguf", "Q4_0"))
    for guesser, more in ((None, (0, 0)), (draft, (3, 5))):
        exact = planned(model, guesser, draft_rows=5)
        plan = planned(model, guesser, draft_rows=5, leviathan=True)
        assert plan.needed_bytes == exact.needed_bytes + leviathan_bytes(size, 3 + 5, *more)
        assert plan_sum(plan, model.program).total == plan.needed_bytes
