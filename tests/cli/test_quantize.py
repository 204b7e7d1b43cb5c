"""farthing quantize: what a person types, reads and gets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import tiny
from farthing.cli import main
from farthing.files.checkpoint import open_checkpoint
from farthing.lab.facts import model_hash
from farthing.quant.formats import WRITABLE_FORMATS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def source() -> str:
    return str(tiny.shared("qwen2", "safetensors", "BF16"))


def test_the_help_lists_every_scheme_with_its_bits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", "--help"]) == 0
    told = capsys.readouterr().out
    listed = dict(
        line.split(maxsplit=1)
        for line in told.partition("row):\n")[2].partition("\n\n")[0].splitlines()
    )
    assert {scheme.upper().replace("-", "_") for scheme in listed} == set(WRITABLE_FORMATS)
    assert listed["int4-g128"] == "4.125"
    assert listed["int4-g128-asym"] == "4.15625"
    assert listed["nf4-b64"] == "4.25"
    assert listed["int8-row"] == "8 + 32/K"
    assert listed["q5_1"] == "6"
    assert "examples:" in told
    assert max(map(len, told.splitlines())) <= 100


def test_it_tells_what_the_matrices_took_and_take(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "small"
    assert main(["quantize", source, str(out), "--scheme", "int4-g128"]) == 0
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert lines[0].startswith("source")
    assert lines[1].split()[:2] == ["BF16", "16.0000"]
    assert str(out) in lines[2]
    assert lines[3].split()[0] == "INT4_G128"
    assert told.err == ""
    assert {t.format for t in open_checkpoint(out).tensors.values()} >= {"INT4_G128"}


def test_it_warns_that_rounded_weights_are_rounded_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rounded = str(tiny.shared("llama", "gguf", "Q4_1"))
    assert main(["quantize", rounded, str(tmp_path / "m.gguf"), "--scheme", "q8_0"]) == 0
    assert "warning: the source has 5 bits a weight" in capsys.readouterr().err


def test_json_has_the_same_facts(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "small"
    arguments = ["--scheme", "nf4-b64", "--embedding", "int8-row", "--json"]
    assert main(["quantize", source, str(out), *arguments]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told.keys() >= {"version", "model", "machine", "threads", "isa", "seed"}
    assert (told["scheme"], told["embedding"]) == ("nf4-b64", "int8-row")
    assert told["source"]["bits_per_weight"] == 16
    assert told["source"]["rounded_before"] is False
    result = told["result"]
    assert result["path"] == str(out)
    assert result["container"] == "safetensors"
    assert result["sha256"] == model_hash(out)
    by_format = {share["format"]: share for share in result["matrices"]}
    assert by_format.keys() == {"NF4_B64", "INT8_ROW"}
    assert by_format["INT8_ROW"]["tensors"] == 1
    # Rows of 64 under one scale.
    assert by_format["INT8_ROW"]["bits_per_weight"] == 8.5
    everything = [*result["matrices"], *result["others"]]
    assert sum(share["bytes"] for share in everything) == result["bytes"]


def test_the_result_runs(source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "small")
    assert main(["quantize", source, out, "--scheme", "int4-g32-asym"]) == 0
    assert main(["run", out, "Hello", "--max-tokens", "4", "--json", "--raw"]) == 0
    told = capsys.readouterr().out
    assert len(json.loads(told[told.index("{") :])["token_ids"]) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scheme", "int3"], "invalid choice: 'int3'"),
        (["--scheme", "q4_0", "--embedding", "q9"], "invalid choice: 'q9'"),
        ([], "required: --scheme"),
    ],
)
def test_a_usage_error_ends_with_2_and_names_it(
    arguments: list[str],
    message: str,
    source: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["quantize", source, str(tmp_path / "out"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_place_that_is_taken_ends_with_2_unless_forced(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert main(["quantize", source, out, "--scheme", "int8-row"]) == 0
    assert main(["quantize", source, out, "--scheme", "int4-row"]) == 2
    assert "replace it with --force" in capsys.readouterr().err
    assert main(["quantize", source, out, "--scheme", "int4-row", "--force"]) == 0


def test_a_model_that_is_not_there_ends_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = str(tmp_path / "absent.gguf")
    assert main(["quantize", absent, str(tmp_path / "out"), "--scheme", "int8-row"]) == 2
    assert "absent.gguf" in capsys.readouterr().err
