from __future__ import annotations

import json

import pytest

import tiny
from farthing.backends.native import NativeBackend
from farthing.cli import main
from farthing.core import KVDtype


@pytest.fixture(scope="module")
def model() -> str:
    return str(tiny.shared("llama", "gguf", "Q4_1"))


def test_every_check_passes_on_this_machine(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", model, "--json", "--tokens", "5"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["passed"] is True
    assert found["prompt_tokens"] == 600
    assert found["tokens"] == 5
    assert found.keys() >= {"version", "model", "machine", "threads", "isa", "seed"}
    assert {check["kv_dtype"] for check in found["checks"]} == {each.value for each in KVDtype}
    assert sum(check["fault"] for check in found["checks"]) == 2 * len(KVDtype)


def test_the_table_has_a_row_for_every_check_with_both_times(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", model, "--tokens", "3", "--threads", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if line.count(" s ") >= 2]
    assert len(rows) == 9 * len(KVDtype)
    assert all(line.rstrip().endswith(("identical", "noticed")) for line in rows)
    assert max(map(len, rows)) <= 80


@pytest.mark.parametrize(
    ("broken", "verdict"),
    [
        ("set_fault", "NOT NOTICED"),
        ("run", "DIFFERENT"),
    ],
)
def test_a_check_that_fails_ends_with_1(
    broken: str,
    verdict: str,
    model: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = NativeBackend.run

    def drifting(self: NativeBackend, *arguments: object) -> object:
        result = run(self, *arguments, want_logits=True)  # type: ignore[arg-type]
        assert result.logits is not None
        # As an engine does that forgets to clear something between steps.
        drifting.steps += 1  # type: ignore[attr-defined]
        result.logits[:, 0] += drifting.steps * 1e-3  # type: ignore[attr-defined]
        return result

    drifting.steps = 0  # type: ignore[attr-defined]
    replacement = (lambda *_: None) if broken == "set_fault" else (lambda s, p, **_: drifting(s, p))
    monkeypatch.setattr(NativeBackend, broken, replacement)
    assert main(["verify", model, "--tokens", "3"]) == 1
    captured = capsys.readouterr()
    assert verdict in captured.out
    assert "checks failed on this machine" in captured.err


@pytest.mark.parametrize("tokens", ["2", "0", "x", "5000"])
def test_a_bad_number_of_tokens_is_wrong_usage(
    tokens: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", model, "--tokens", tokens]) == 2
    assert "--tokens" in capsys.readouterr().err
