from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from farthing.cli import main
from farthing.files import cache, catalog


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FARTHING_CACHE", str(tmp_path))
    return tmp_path


def install(name: str, content: bytes, licence: str = "CC0-1.0") -> None:
    from farthing.files.progress import SILENT

    def fill(folder: Path) -> cache.Record:
        (folder / "model.gguf").write_bytes(content)
        return cache.Record(name, "a test", licence, "model.gguf", {"model.gguf": len(content)})

    cache.fetch(name, name, SILENT, fill)


@pytest.mark.usefixtures("empty_cache")
def test_the_table_has_the_catalog_and_what_is_on_disk(capsys: pytest.CaptureFixture[str]) -> None:
    install("smollm2-135m", bytes(1_500_000))
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    here = next(line for line in lines if line.startswith("smollm2-135m"))
    there = next(line for line in lines if line.startswith("gemma3-270m"))
    assert "1.5 MB" in here
    assert "CC0-1.0" in here
    assert "yes" in here
    assert "253.1 MB" in there
    assert "no" in there
    assert "Gemma" in there
    shipped = next(line for line in lines if line.startswith("float"))
    assert "comes with farthing" in shipped
    assert "yes" in shipped


@pytest.mark.usefixtures("empty_cache")
def test_the_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    install("smollm2-135m", b"1234")
    assert main(["models", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["installed"][0]["name"] == "smollm2-135m"
    assert found["installed"][0]["bytes"] == 4
    assert [each["name"] for each in found["installed"]] == ["smollm2-135m", "float"]
    assert [entry["name"] for entry in found["catalog"]] == list(catalog.CATALOG)
    assert all(len(entry["sha256"]) == 64 for entry in found["catalog"])


@pytest.mark.usefixtures("empty_cache")
def test_pull_prints_the_path_of_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    install("smollm2-135m", b"1234")
    assert main(["models", "pull", "smollm2-135m"]) == 0
    path = capsys.readouterr().out.strip()
    assert path.endswith("model.gguf")


@pytest.mark.usefixtures("empty_cache")
def test_rm_removes_a_model_and_tells_what_it_freed(capsys: pytest.CaptureFixture[str]) -> None:
    install("smollm2-135m", bytes(2_000_000))
    assert main(["models", "rm", "smollm2-135m"]) == 0
    assert "removed smollm2-135m, 2.0 MB" in capsys.readouterr().err
    assert catalog.installed() == []
    assert main(["models", "rm", "smollm2-135m"]) == 2
    assert "smollm2-135m is not on disk" in capsys.readouterr().err


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("action", ["pull", "rm"])
def test_an_unknown_name_is_one_clear_error(
    action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", action, "smolm2-135m"]) == 2
    assert "did you mean smollm2-135m?" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["models", "pull", "smollm2-135m"], ["run", "smollm2-135m"]])
def test_a_cache_that_cannot_be_written_is_one_clear_error(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FARTHING_CACHE", str(tmp_path / "file"))
    assert main([*command, "hello"][:3]) == 2
    error = capsys.readouterr().err
    assert str(tmp_path / "file") in error
    assert "Traceback" not in error


def test_a_cache_that_may_not_be_read_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FARTHING_CACHE", str(tmp_path))

    def refuse(*_: object) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", refuse)
    for command in (["models"], ["models", "--json"], ["models", "rm", "smollm2-135m"]):
        assert main(command) == 2
        assert "may not be used (Permission denied): set FARTHING_CACHE" in capsys.readouterr().err


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("licence", ["[red]MIT[/]", "[/closed]", "[link=x]y", "MIT\x1b[2J"])
def test_a_licence_is_shown_as_the_repository_wrote_it(
    licence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    install("owner--name", b"1234", licence)
    assert main(["models"]) == 0
    assert licence.replace("\x1b", "^[") in capsys.readouterr().out


@pytest.mark.usefixtures("empty_cache")
def test_the_list_in_a_pipe_has_one_line_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for entry in catalog.CATALOG.values():
        assert any(entry.name in line and entry.licence in line for line in lines)


@pytest.mark.parametrize("arguments", [["pull"], ["rm"], ["list", "smollm2-135m"], ["eat", "x"]])
def test_an_action_with_too_little_or_too_much_is_wrong_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", *arguments]) == 2
    assert "models" in capsys.readouterr().err
