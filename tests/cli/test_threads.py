"""More threads than cores: told before anything is done, by every command that would run fewer."""

from __future__ import annotations

import pytest

from farthing.cli import main
from farthing.plan.machine import usable_cores


@pytest.mark.parametrize(
    "command",
    [
        ["bench", "absent.gguf"],
        ["lab", "cache", "absent.gguf"],
        ["distill", "absent.gguf", "out", "--draft"],
    ],
    ids=lambda command: command[0],
)
def test_more_threads_than_cores_are_warned_of(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    usable = usable_cores()
    for asked, warned in ((usable, False), (usable + 1, True)):
        assert main([*command, "--threads", str(asked)]) == 2
        told = capsys.readouterr().err
        assert "absent.gguf" in told
        assert (f"warning: {asked} threads are asked for, and {usable} will run" in told) == warned
