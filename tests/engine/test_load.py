"""Loading and running real files: tiny models on the native backend."""

from __future__ import annotations

import subprocess
import sys
from math import prod
from typing import TYPE_CHECKING, Any

import pytest

import tiny
from farthing import Engine, SamplingParams
from farthing.core import DoesNotFitError, FileFormatError, KVDtype, RequestError
from farthing.engine.load import LoadProgress
from farthing.files.checkpoint import open_checkpoint
from farthing.models.load import load_model

if TYPE_CHECKING:
    from pathlib import Path

PROMPTS = ["a", "some words", "t" * 300, "the fourth of them", "5"]


@pytest.mark.parametrize("form", ["gguf", "safetensors"])
def test_a_model_is_loaded_from_a_file_or_a_folder(form: str) -> None:
    path = tiny.shared("qwen2", form)
    with Engine.load(path) as engine:
        completion = engine.generate("hello", SamplingParams(max_tokens=5))
        assert completion.usage.completion_tokens == 5
        assert engine.tokenizer.decode(engine.tokenizer.encode("hello")) == "hello"
        assert engine.report is not None
        assert engine.report.path == path


def test_both_forms_of_a_model_say_the_same() -> None:
    texts = []
    for form in ("gguf", "safetensors"):
        with Engine.load(tiny.shared("llama3", form), kv_dtype="fp32") as engine:
            texts.append(engine.generate("hello", SamplingParams(max_tokens=24)).token_ids)
    assert texts[0] == texts[1]


def test_the_report_tells_what_was_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farthing.engine.load.usable_cores", lambda: 2)
    path = tiny.shared("llama", "gguf", "Q4_1")
    with Engine.load(path, context_length=100, sequences=3, threads=2, kv_dtype="int8") as engine:
        report = engine.report
    assert report is not None
    model = load_model(open_checkpoint(path))
    assert report.architecture == "llama"
    shapes = [weight.shape for weight in model.program.weights.values()]
    assert report.parameters == sum(map(prod, shapes))
    assert sum(report.formats.values()) == len(shapes)
    assert report.computed["Q4_1"] == "Q4_1 x int8"
    assert (report.context_length, report.model_context_length) == (100, 1024)
    assert (report.threads, report.threads_asked, report.kv_dtype) == (2, 2, "int8")
    assert (report.cache_tokens, report.slots) == (3 * 128, 32)
    # 3 sequences of 4 blocks; 2 layers of 4 heads of 16 dimensions, keys and values, with scales.
    assert report.memory["cache"] == 3 * 4 * 2 * 4 * 32 * 2 * (16 + 4)
    assert list(report.phases) == ["find", "open", "plan", "pack", "tokenizer"]
    assert all(seconds >= 0 for seconds in report.phases.values())
    assert sum(report.phases.values()) - report.phases["tokenizer"] <= report.seconds


def test_the_context_is_the_models_own_unless_a_shorter_one_is_asked_for() -> None:
    path = tiny.shared("llama")
    with Engine.load(path) as engine:
        assert engine.context_length == 1024
    with Engine.load(path, context_length=77) as engine:
        assert engine.context_length == 77
    with pytest.raises(RequestError, match="1024 positions"):
        Engine.load(path, context_length=1025)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 5}])
@pytest.mark.parametrize("kv_dtype", list(KVDtype))
def test_each_text_of_a_list_is_what_it_is_alone(
    kv_dtype: KVDtype, sampling: dict[str, Any]
) -> None:
    params = SamplingParams(max_tokens=12, logprobs=2, **sampling)
    with Engine.load(tiny.shared("llama", "gguf", "Q4_1"), kv_dtype=kv_dtype) as one:
        together = one.generate(PROMPTS, params)
        steps = one.steps
        alone = [one.generate(prompt, params) for prompt in PROMPTS]
    assert steps == 12
    for single, among in zip(alone, together, strict=True):
        assert single.token_ids == among.token_ids
        assert single.logprobs == among.logprobs


def test_min_tokens_holds_back_an_end_that_is_all_but_certain() -> None:
    certain = SamplingParams(logit_bias={tiny.EOS: 1000.0}, min_tokens=5, max_tokens=9)
    with Engine.load(tiny.shared("llama")) as engine:
        completion = engine.generate("hello", certain)
    assert completion.finish_reason == "stop"
    assert tiny.EOS not in completion.token_ids[:5]
    assert completion.token_ids[5:] == (tiny.EOS,)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"kv_dtype": "int3"},
            "kv_dtype must be one of fp32, fp16, bf16, int8, int4-keys, not 'int3'",
        ),
        ({"activations": "fp8"}, "activations must be one of int8, bf16, fp32, not 'fp8'"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"sequences": 0}, "sequences must be at least 1"),
        ({"context_length": 0}, "the context must be from 1"),
        ({"threads": "2"}, "threads must be a whole number, not '2'"),
        ({"threads": True}, "threads must be a whole number, not True"),
        ({"sequences": 1.0}, "sequences must be a whole number, not 1.0"),
        ({"context_length": 64.5}, "context_length must be a whole number, not 64.5"),
        ({"cache_tokens": 0}, "cache_tokens must be at least 1"),
        ({"cache_tokens": "4k"}, "cache_tokens must be a whole number, not '4k'"),
        ({"slots": 0}, "slots must be above 0"),
        ({"slots": 2.0}, "slots must be a whole number, not 2.0"),
        ({"latency_target": 0}, "latency_target must be above 0, not 0"),
        ({"latency_target": "0.1"}, "latency_target must be above 0, not '0.1'"),
        ({"latency_target": float("nan")}, "latency_target must be above 0, not nan"),
        ({"sharing": "yes"}, "sharing must be True or False, not 'yes'"),
        ({"weights": {"a": 0}}, "weights must be numbers above 0, by key"),
        ({"weights": {"a": "2"}}, "weights must be numbers above 0, by key"),
        ({"weights": [1]}, "weights must be numbers above 0, by key"),
    ],
    ids=str,
)
def test_a_setting_out_of_range_is_one_clear_error(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Engine.load(tiny.shared("llama"), **wrong)


@pytest.mark.parametrize(("asked", "run"), [(None, 2), (1, 1), (2, 2), (3, 2), (8, 2), (10**9, 2)])
def test_no_more_threads_run_than_there_are_cores(
    asked: int | None, run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farthing.engine.load.usable_cores", lambda: 2)
    with Engine.load(tiny.shared("llama"), threads=asked) as engine:
        assert engine.report is not None
        assert engine.report.threads == run
        assert engine.report.threads_asked == (2 if asked is None else asked)


def test_a_cache_smaller_than_a_context_serves_what_fits_and_refuses_the_rest() -> None:
    params = SamplingParams(max_tokens=30)
    with Engine.load(tiny.shared("llama")) as roomy:
        alone = roomy.generate(PROMPTS[:2], params)
    with Engine.load(tiny.shared("llama"), cache_tokens=64, slots=2) as engine:
        assert engine.report is not None
        assert (engine.report.cache_tokens, engine.slots, engine.context_length) == (64, 2, 1024)
        assert engine.most_tokens == 65
        found = engine.generate(PROMPTS[:2], params)
        assert [each.token_ids for each in found] == [each.token_ids for each in alone]
        with pytest.raises(RequestError, match="load with a larger cache"):
            engine.generate([5] * 60, params)


def test_the_policy_reaches_the_engine() -> None:
    prompts = [[5] * 100, [5] * 100]
    with Engine.load(tiny.shared("llama"), sharing=False, weights={"a": 2.0}) as engine:
        first, second = (engine.generate(each, SamplingParams(max_tokens=2)) for each in prompts)
        assert first.usage.cached_tokens == second.usage.cached_tokens == 0
    with Engine.load(tiny.shared("llama"), latency_target=None, slots=1) as engine:
        first, second = (engine.generate(each, SamplingParams(max_tokens=2)) for each in prompts)
        assert first.usage.cached_tokens == 0
        assert second.usage.cached_tokens >= 96
        steps = engine.steps
        engine.generate(PROMPTS[:3], SamplingParams(max_tokens=4))
        assert engine.steps == steps + 3 * 4


def test_a_model_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farthing.plan.memory.available_memory", lambda: 10 << 20)
    with pytest.raises(DoesNotFitError, match="10 MiB are available"):
        Engine.load(tiny.shared("llama"))


LIMITED = """
import resource, sys
import farthing.backends.native, farthing.text.load, farthing.text.sandbox
from farthing import Engine
from farthing.core import DoesNotFitError
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
most = taken + (64 << 20)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
try:
    Engine.load(sys.argv[1], threads=1, sequences=256)
except DoesNotFitError as error:
    print(error)
"""


def test_a_process_that_may_not_take_the_memory_is_told_so() -> None:
    command = [sys.executable, "-c", LIMITED, str(tiny.shared("llama"))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "this process may not take the memory that the machine has" in done.stdout


def test_a_model_whose_tokenizer_is_damaged_is_one_clear_error(tmp_path: Path) -> None:
    path = tiny.build("llama", tmp_path / "model", "safetensors")
    (path / "tokenizer.json").write_text("{")
    with pytest.raises(FileFormatError, match=r"tokenizer\.json"):
        Engine.load(path)


def test_progress_hears_of_every_phase() -> None:
    class Watching(LoadProgress):
        def __init__(self) -> None:
            self.phases: list[str] = []

        def phase(self, name: str) -> None:
            self.phases.append(name)

    watching = Watching()
    Engine.load(tiny.shared("llama"), progress=watching).close()
    assert watching.phases == ["find", "open", "plan", "pack"]
