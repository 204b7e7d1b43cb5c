"""A distillation from the first word to the finished draft, ended in between in every way."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import tiny
from farthing.core import DoesNotFitError, FarthingError, RequestError, SamplingParams
from farthing.engine.engine import Engine
from farthing.files.checkpoint import open_checkpoint
from farthing.files.receipt import read_receipt
from farthing.forge import distill as distilling
from farthing.forge.distill import distill
from farthing.forge.distill_receipt import CURVE_FILE, RECEIPT_FILE
from farthing.forge.distill_wish import DistillWish
from farthing.forge.gain import measure_gain
from farthing.forge.workplace import folder_of
from farthing.models.load import load_model
from farthing.quality.texts import Text

if TYPE_CHECKING:
    from pathlib import Path

    from farthing.forge.distill_receipt import Distilled

PROMPTS = Text("prompts", "one two\nthe third\nthe fourth of them\n", "0" * 64)
WISH = DistillWish("draft", (0,), 100, tokens=1500, passes=4, prompts=(PROMPTS,), threads=1)


@pytest.fixture(autouse=True)
def _short_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distilling, "measure_gain", partial(measure_gain, tokens=8, rounds=1))


def run(out: Path, wish: DistillWish = WISH, family: str = "llama", **more: Any) -> Distilled:
    with open_checkpoint(tiny.shared(family)) as checkpoint:
        made = distill(checkpoint, out, wish, **more)
    assert made is not None
    return made


def weights(out: Path) -> bytes:
    return (out / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What comes of `WISH` when nobody interrupts."""
    out = tmp_path_factory.mktemp("drafts") / "draft"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distilling, "measure_gain", partial(measure_gain, tokens=8, rounds=1))
        run(out)
    return out


def killed(out: Path, stage: str, told: int) -> None:
    """Distils in a process that is killed when it tells how a stage goes for the `told`th time."""
    program = (
        "import os, signal, sys\n"
        "from farthing.files.checkpoint import open_checkpoint\n"
        "from farthing.forge import trainer\n"
        "from farthing.forge.distill import distill\n"
        "from farthing.forge.distill_wish import DistillWish\n"
        "from farthing.quality.texts import Text\n"
        "trainer.CHECKPOINT_SECONDS = 0.0\n"
        "times = []\n"
        "def told(stage, what, share):\n"
        "    times.append(stage)\n"
        f"    if times.count({stage!r}) == {told}:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        f"wish = {WISH!r}\n"
        "distill(open_checkpoint(sys.argv[1]), sys.argv[2], wish, told=told)"
    )
    arguments = [str(tiny.shared("llama")), str(out)]
    ended = subprocess.run([sys.executable, "-B", "-c", program, *arguments], check=False)
    assert ended.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("stage", "told"),
    # The text is told of token by token, training step by step.
    [("write", 1), ("write", 100), ("train", 1), ("train", 3), ("measure", 1)],
)
def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(
    tmp_path: Path, draft: Path, stage: str, told: int
) -> None:
    out = tmp_path / "draft"
    killed(out, stage, told)
    assert not out.exists()
    run(out)
    assert weights(out) == weights(draft)
    assert [each.name for each in tmp_path.iterdir()] == ["draft"]


def test_a_run_that_is_stopped_says_so_and_goes_on(tmp_path: Path, draft: Path) -> None:
    out = tmp_path / "draft"
    asked: list[str] = []
    for stage in ("write", "train"):
        now = ""

        def told(at: str, what: str, share: float) -> None:
            nonlocal now
            now = at

        with open_checkpoint(tiny.shared("llama")) as checkpoint:
            stop = lambda: asked.append(now) or now == stage  # noqa: B023, E731
            assert distill(checkpoint, out, WISH, told=told, stop=stop) is None
        assert not out.exists()
        assert folder_of(out).is_dir()
    run(out)
    assert weights(out) == weights(draft)


def test_the_result_is_a_model_with_its_receipt_and_its_curve(draft: Path) -> None:
    receipt = json.loads((draft / RECEIPT_FILE).read_text())
    assert receipt["version"] == 1
    assert receipt["teacher"]["name"] == "tiny llama"
    assert load_model(open_checkpoint(draft)).name == "draft of tiny llama"
    assert receipt["settings"]["layers"] == [0]
    assert receipt["head_tokens"] == 100
    assert len(receipt["text"]["sha256"]) == 64
    assert receipt["text"]["tokens"] >= 1500
    first, last = receipt["history"][0], receipt["history"][-1]
    assert first["loss"] is None
    assert last["step"] == receipt["steps"]
    assert last["divergence"] < first["divergence"]
    assert receipt["held_out"]["acceptance"] == last["acceptance"]
    assert len(receipt["gain"]["greedy"]) >= 1
    assert receipt["gain"]["used"] == (receipt["gain"]["guessed_share"] >= 0.05)
    assert (draft / CURVE_FILE).read_text().startswith("<svg")
    with Engine.load(draft, context_length=64) as engine:
        assert engine.generate("x", SamplingParams(max_tokens=4, ignore_eos=True)).token_ids
    assert set(load_model(open_checkpoint(draft)).formats.values()) == {"INT8_ROW", "F32"}


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(max_tokens=40, ignore_eos=True),
        SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.9, seed=3),
        SamplingParams(
            max_tokens=40,
            temperature=1.2,
            seed=4,
            ignore_eos=True,
            repetition_penalty=1.3,
            logit_bias={7: 5.0, 261: 2.0, 200: float("-inf")},
            logprobs=3,
        ),
    ],
)
def test_a_draft_with_some_of_the_vocabulary_changes_no_bit(
    draft: Path, sampling: SamplingParams
) -> None:
    teacher = tiny.shared("llama")
    prompts = [tiny.token_ids(9 + seed, seed) for seed in range(3)]
    made = []
    for speculate in ("off", f"draft={draft}"):
        with Engine.load(teacher, speculate=speculate, context_length=96, sequences=3) as engine:
            made.append(
                [(each.token_ids, each.logprobs) for each in engine.generate(prompts, sampling)]
            )
    assert made[0] == made[1]


def test_a_student_has_its_teachers_whole_head(tmp_path: Path) -> None:
    wish = replace(
        WISH,
        kind="student",
        layers=(0, 2),
        head_tokens=None,
        temperature=2.0,
        hard_share=0.1,
        scheme="BF16",
        passes=1,
    )
    made = run(tmp_path / "student", wish, "llama3")
    assert made.gain is None
    assert made.receipt is not None
    assert made.receipt.perplexity_ratio.value > 0
    with open_checkpoint(tmp_path / "student") as checkpoint:
        assert read_receipt(checkpoint) == made.receipt
    assert made.head_tokens == tiny.VOCABULARY
    student = load_model(open_checkpoint(tmp_path / "student"))
    assert student.config.tied
    assert student.config.layers == 2


# --- what is refused


def test_other_settings_are_named_and_a_restart_begins_anew(tmp_path: Path, draft: Path) -> None:
    out = tmp_path / "draft"
    with open_checkpoint(tiny.shared("llama")) as checkpoint:
        assert distill(checkpoint, out, WISH, stop=lambda: True) is None
    other = replace(WISH, passes=2, head_tokens=50)
    message = r"--head-tokens was 100 and is 50; --passes was 4 and is 2\. Give the same to go on"
    with pytest.raises(FarthingError, match=message):
        run(out, other)
    with pytest.raises(FarthingError, match="the teacher's files were others"):
        run(out, family="llama_bias")
    run(out, restart=True)
    assert weights(out) == weights(draft)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"tokens": None, "hours": 1.0},
            "--hours was not given and is 1; --tokens was 1500 and is",
        ),
        ({"layers": (1,)}, "--layers was 0, and is 1,"),
        ({"kind": "student"}, "it was --draft and is --student"),
        ({"prompts": (replace(PROMPTS, sha256="1" * 64),)}, "--prompts had other text"),
        ({"scheme": "INT4_G128"}, "--scheme was int8-row and is int4-g128"),
        ({"reverse": True}, "--reverse-kl was not given and is given"),
        ({"temperature": 2.5}, "--temperature was 1 and is 2.5"),
        ({"head_tokens": None}, "--head-tokens was 100 and is not given"),
    ],
)
def test_a_clash_is_told_in_the_flags_that_a_person_gives(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    from farthing.forge.workplace import workplace

    with workplace(tmp_path / "draft", WISH.facts(), restart=False):
        pass
    with (
        pytest.raises(FarthingError, match=re.escape(told)) as refusal,
        workplace(tmp_path / "draft", replace(WISH, **changes).facts(), restart=False),
    ):
        pass
    assert str(folder_of(tmp_path / "draft")) in str(refusal.value)
    assert not re.search(r"null|true|[\[\]]", str(refusal.value))


@pytest.mark.parametrize("passes", [1, 3])
def test_all_of_the_text_is_read_as_often_as_was_asked(tmp_path: Path, passes: int) -> None:
    made = run(tmp_path / "draft", replace(WISH, tokens=6000, passes=passes))
    assert made.last.tokens == passes * made.text_tokens


def test_a_result_that_is_there_stays_unless_it_is_to_be_replaced(
    tmp_path: Path, draft: Path
) -> None:
    out = tmp_path / "draft"
    out.mkdir()
    with pytest.raises(FarthingError, match="exists: choose another name"):
        run(out)
    with pytest.raises(FarthingError, match="holds a model and nothing else"):
        run(out, force=True)
    with pytest.raises(FarthingError, match="there is no folder"):
        run(tmp_path / "nowhere" / "draft")
    with pytest.raises(FarthingError, match="float is the name of a model"):
        run(tmp_path / "float")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"layers": ()}, "layers 0 to 1"),
        ({"layers": (1, 0)}, "in ascending order, not 1, 0"),
        ({"layers": (2,)}, "layers 0 to 1"),
        ({"layers": (0, 1)}, "must have fewer to be cheaper"),
        ({"head_tokens": 263}, "from 1 to 262 tokens"),
        ({"tokens": None}, "either how many tokens"),
        ({"hours": 1.0}, "either how many tokens"),
        ({"tokens": None, "hours": 0.0}, "hours are a number above 0"),
        ({"tokens": None, "hours": float("nan")}, "hours are a number above 0"),
        ({"temperature": 0.0}, "a temperature is above 0"),
        ({"hard_share": 1.5}, "a share is from 0 to 1"),
        ({"passes": 0}, "read at least once"),
        ({"passes": 10**9}, "at most 10,000 times"),
        ({"tokens": None, "hours": 1e5}, "at most 10,000"),
        ({"prompts": (Text("none", " \n", "1" * 64),)}, "there are 0 prompts"),
    ],
)
def test_a_wish_that_cannot_be_had_is_refused(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(RequestError, match=complaint):
        run(tmp_path / "draft", replace(WISH, **changes))
    assert not (tmp_path / "draft").exists()


def test_more_than_the_disk_or_the_memory_has_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FarthingError, match="MB free: make room"):
        run(tmp_path / "draft", replace(WISH, tokens=10**13))
    monkeypatch.setattr(distilling, "available_memory", lambda: 1000)
    with pytest.raises(DoesNotFitError, match="take fewer layers or tokens"):
        run(tmp_path / "draft")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["settings.json", "schedule.json"])
def test_what_is_damaged_of_an_unfinished_run_is_thrown_away_by_a_restart(
    name: str, tmp_path: Path
) -> None:
    from farthing.forge.workplace import workplace

    out = tmp_path / "draft"
    with workplace(out, {}, restart=False) as place:
        place.decide({"steps": 1})
        (place.folder / name).write_text("torn")
    with (
        pytest.raises(FarthingError, match=rf"{name} is not sound JSON .*: --restart"),
        workplace(out, {}, restart=False) as place,
    ):
        place.schedule()
    with workplace(out, {}, restart=True) as place:
        assert place.schedule() is None


def test_two_processes_do_not_work_at_one_place(tmp_path: Path) -> None:
    from farthing.forge.workplace import workplace

    with (
        workplace(tmp_path / "draft", {}, restart=False),
        pytest.raises(FarthingError, match="another process is distilling"),
    ):
        run(tmp_path / "draft")
