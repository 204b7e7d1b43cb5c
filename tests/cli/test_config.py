"""Flags that nobody types: the environment, `farthing.toml`, and which of them wins."""

from __future__ import annotations

import argparse
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farthing.cli import COMMANDS, config, main
from farthing.cli.options import positive, whole
from farthing.core import FarthingError, RequestError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The current folder, without any configuration."""
    for name in ("FARTHING_CONFIG", "FARTHING_PORT", "FARTHING_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


def parser() -> argparse.ArgumentParser:
    """One flag of each kind."""
    made = argparse.ArgumentParser()
    made.add_argument("model", nargs="?")
    made.add_argument("--port", type=positive, default=8000)
    made.add_argument("--threads", type=whole)
    made.add_argument("--temperature", type=float, default=0.0)
    made.add_argument("--host", default="127.0.0.1")
    made.add_argument("--log-format", choices=("human", "json"), default="human")
    made.add_argument("--stop", action="append", default=[])
    made.add_argument("--seeds", action="append", type=whole, default=[])
    made.add_argument("--quiet", action="store_true")
    made.add_argument("--check", action="store_true")
    made.add_argument("--metrics", action=argparse.BooleanOptionalAction, default=True)
    return made


def parsed(*arguments: str) -> tuple[argparse.Namespace, dict[str, str]]:
    made = parser()
    sources = config.apply(made, "serve", list(arguments), COMMANDS)
    return made.parse_intermixed_args(list(arguments)), sources


def test_what_is_typed_wins_over_the_environment_that_over_the_file_that_over_the_default(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, sources = parsed()
    assert (values.port, sources["port"]) == (8000, "default")
    (folder / "farthing.toml").write_text("port = 1\n")
    values, sources = parsed()
    assert (values.port, sources["port"]) == (1, "farthing.toml, line 1")
    monkeypatch.setenv("FARTHING_PORT", "2")
    values, sources = parsed()
    assert (values.port, sources["port"]) == (2, "FARTHING_PORT")
    for typed in (["--port", "3"], ["--port=3"]):
        values, sources = parsed(*typed)
        assert (values.port, sources["port"]) == (3, "--port")


def test_the_table_of_a_command_wins_over_what_stands_above_all_tables(folder: Path) -> None:
    (folder / "farthing.toml").write_text(
        'port = 1\nhost = "::1"\n\n[bench]\nport = 7\n# a comment\n[serve]\nport = 2\n'
    )
    values, sources = parsed()
    assert (values.port, values.host) == (2, "::1")
    assert sources["port"] == "farthing.toml, line 8"
    assert sources["host"] == "farthing.toml, line 2"


def test_the_file_is_the_first_of_those_that_may_be_meant(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "home" / "farthing" / "farthing.toml"
    own.parent.mkdir(parents=True)
    own.write_text("port = 4\n")
    assert parsed()[0].port == 4
    (folder / "farthing.toml").write_text("port = 3\n")
    assert parsed()[0].port == 3
    (folder / "variable.toml").write_text("port = 2\n")
    monkeypatch.setenv("FARTHING_CONFIG", "variable.toml")
    assert parsed()[0].port == 2
    (folder / "flag.toml").write_text("port = 1\n")
    assert parsed("--config", "flag.toml")[0].port == 1
    assert parsed("--config=flag.toml")[0].port == 1


def test_a_file_that_is_named_and_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="--config names gone.toml, and there is no such file"):
        parsed("--config", "gone.toml")
    monkeypatch.setenv("FARTHING_CONFIG", "gone.toml")
    with pytest.raises(RequestError, match="FARTHING_CONFIG names gone.toml"):
        parsed()


def test_flags_of_every_kind_can_stand_in_the_file(folder: Path) -> None:
    (folder / "farthing.toml").write_text(
        'model = "m.gguf"\nport = 80\ntemperature = 1\nhost = "::1"\nlog-format = "json"\n'
        'stop = ["a", "[b]"]\nseeds = [1, 2]\nquiet = true\nmetrics = false\n'
    )
    values, _ = parsed()
    assert values.model == "m.gguf"
    assert (values.port, values.temperature, values.host) == (80, 1.0, "::1")
    assert isinstance(values.temperature, float)
    assert (values.log_format, values.stop, values.seeds) == ("json", ["a", "[b]"], [1, 2])
    assert (values.quiet, values.metrics) == (True, False)
    values, _ = parsed("other.gguf", "--stop", "c", "--metrics")
    assert (values.model, values.stop, values.metrics) == ("other.gguf", ["c"], True)


def test_flags_of_every_kind_can_stand_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "MODEL": "m.gguf",
        "PORT": "80",
        "TEMPERATURE": "0.5",
        "LOG_FORMAT": "json",
        "STOP": "a, b",
        "SEEDS": "[1, 2]",
        "QUIET": "true",
        "METRICS": "0",
    }.items():
        monkeypatch.setenv(f"FARTHING_{name}", text)
    values, _ = parsed()
    assert (values.model, values.port, values.temperature) == ("m.gguf", 80, 0.5)
    assert (values.log_format, values.stop, values.seeds) == ("json", ["a, b"], [1, 2])
    assert (values.quiet, values.metrics) == (True, False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('\nport = "80"', "farthing.toml, line 2: port must be a whole number, not '80'"),
        ("port = 1.5", "farthing.toml, line 1: port must be a whole number, not '1.5'"),
        ("port = true", "farthing.toml, line 1: port must be a whole number, not True"),
        ("port = 0", "farthing.toml, line 1: port must be at least 1, not 0"),
        ("port = [1]", "farthing.toml, line 1: port must be a whole number"),
        ("[serve]\nport = {a = 1}", "farthing.toml, line 2: port must be a whole number"),
        ("host = 5", "farthing.toml, line 1: host must be text in quotes, not 5"),
        ("temperature = 'hot'", "farthing.toml, line 1: temperature must be a number, not 'hot'"),
        ("temperature = '1'", "farthing.toml, line 1: temperature must be a number, not '1'"),
        ("quiet = 1", "farthing.toml, line 1: quiet must be true or false, not 1"),
        ("metrics = 'no'", "farthing.toml, line 1: metrics must be true or false, not 'no'"),
        ("stop = 'a'", "farthing.toml, line 1: stop must be an array, not 'a'"),
        ("stop = [1]", "farthing.toml, line 1: stop must be text in quotes, not 1"),
        (
            "log-format = 'jsn'",
            "line 1: log-format must be one of human, json, not 'jsn'; did you mean json?",
        ),
        (
            "\n\n[serve]\nprot = 1",
            "farthing.toml, line 4: farthing serve has no flag --prot; did you mean port?",
        ),
        (
            "log_format = 'json'",
            "farthing.toml, line 1: no command has a flag --log_format; did you mean log-format?",
        ),
        ("config = 'x'", "farthing.toml, line 1: no command has a flag --config"),
        ("[sreve]\nport = 1", "line 1: there is no command 'sreve'; did you mean serve?"),
        ("port = = 1", "farthing.toml is not TOML: Invalid value (at line 1"),
        ("port = 1\nport = 2", "farthing.toml is not TOML: Cannot overwrite a value"),
    ],
)
def test_what_is_wrong_in_the_file_is_told_with_its_line(
    text: str, message: str, folder: Path
) -> None:
    (folder / "farthing.toml").write_text(text + "\n")
    with pytest.raises(RequestError) as caught:
        parsed()
    assert message in str(caught.value)


def test_a_wrong_value_is_told_even_where_another_one_is_typed(folder: Path) -> None:
    (folder / "farthing.toml").write_text("port = 'eighty'\n")
    with pytest.raises(RequestError, match="line 1: port must be a whole number"):
        parsed("--port", "80")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("FARTHING_PORT", "eighty", "FARTHING_PORT must be a whole number, not 'eighty'"),
        ("FARTHING_PORT", "", "FARTHING_PORT must be a whole number, not ''"),
        ("FARTHING_QUIET", "maybe", "FARTHING_QUIET must be true or false, not 'maybe'"),
        ("FARTHING_STOP", '["a"', "FARTHING_STOP is not TOML"),
        ("FARTHING_SEEDS", '["a"]', "FARTHING_SEEDS must be a whole number, not 'a'"),
        ("FARTHING_LOG_FORMAT", "xml", "FARTHING_LOG_FORMAT must be one of human, json"),
        ("FARTHING_LOG_FORMATS", "json", "did you mean FARTHING_LOG_FORMAT?"),
        ("FARTHING_TREADS", "1", "did you mean FARTHING_THREADS?"),
    ],
)
def test_what_is_wrong_in_the_environment_is_told(
    name: str, text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(RequestError) as caught:
        parsed()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("FARTHING_PORT", "tcp://10.0.0.1:8000"),
        ("FARTHING_PORT_8000_TCP_ADDR", "10.0.0.1"),
        ("FARTHING_SERVICE_HOST", "10.0.0.1"),
        ("FARTHING_HOME", "/opt/farthing"),
        ("FARTHING_SYSTEM", "a flag of another command"),
        ("FARTHING_CHECK", "1"),
    ],
)
def test_variables_that_mean_something_else_are_left_alone(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, text)
    values, sources = parsed()
    assert (values.port, values.check) == (8000, False)
    assert set(sources.values()) == {"default"}


def test_a_flag_of_another_command_may_stand_above_all_tables(folder: Path) -> None:
    (folder / "farthing.toml").write_text('scheme = "q4_0"\nport = 5\n')
    assert parsed()[0].port == 5


def test_what_follows_two_dashes_is_no_flag(folder: Path) -> None:
    (folder / "farthing.toml").write_text("port = 5\n")
    made, arguments = parser(), ["--", "--port=6"]
    sources = config.apply(made, "serve", arguments, COMMANDS)
    # Python 3.11's intermixed parsing would forget the dashes.
    values = made.parse_args(arguments)
    assert (values.model, values.port, sources["port"]) == (
        "--port=6",
        5,
        "farthing.toml, line 1",
    )


def test_a_file_that_is_no_text_or_too_large_is_refused(folder: Path) -> None:
    path = folder / "farthing.toml"
    path.write_bytes(b"port = \xff")
    with pytest.raises(RequestError, match="farthing.toml is not UTF-8 text"):
        parsed()
    path.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(RequestError, match="has more than the 1,048,576 bytes that it may have"):
        parsed()
    path.write_text("a = " + "[" * 100_000)
    with pytest.raises(RequestError, match="farthing.toml is not TOML"):
        parsed()


@given(st.text(st.characters(codec="utf-8"), max_size=200) | st.binary(max_size=200))
def test_any_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: str | bytes
) -> None:
    path = tmp_path_factory.mktemp("config") / "any.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with suppress(FarthingError):
        parsed("--config", str(path))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_its_flags_from_the_file(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "farthing.toml").write_text(f"[{command}]\nno-such-flag = 1\n")
    assert main([command, "smollm2-135m"]) == 2
    error = capsys.readouterr().err
    assert f"farthing.toml, line 2: farthing {command} has no flag --no-such-flag" in error


def test_a_required_flag_may_stand_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", "missing.gguf", "out.gguf"]) == 2
    assert "--scheme" in capsys.readouterr().err
    monkeypatch.setenv("FARTHING_SCHEME", "q4_0")
    assert main(["quantize", "missing.gguf", "out.gguf"]) == 2
    assert "there is no file missing.gguf" in capsys.readouterr().err


def test_help_is_there_whatever_the_configuration_looks_like(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "farthing.toml").write_text("= nonsense")
    assert main(["serve", "--help"]) == 0
    assert "--config FILE" in capsys.readouterr().out
    assert main(["serve"]) == 2
    assert "farthing.toml is not TOML" in capsys.readouterr().err
