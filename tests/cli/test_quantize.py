"""farthing quantize: what a person types, reads and gets."""

from __future__ import annotations

import io
import json
import re
import shutil
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

import tiny
from farthing.cli import main, stages
from farthing.cli.stages import StageBar, bar_on
from farthing.files.checkpoint import open_checkpoint
from farthing.files.receipt import read_receipt
from farthing.forge.methods import Method
from farthing.forge.schemes import format_of
from farthing.lab.facts import model_hash
from farthing.models.load import load_model
from farthing.plan.memory import plan_memory
from farthing.quality.texts import calibration_text
from farthing.quant.formats import WRITABLE_FORMATS

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = "--no-receipt"


@pytest.fixture
def source() -> str:
    return str(tiny.shared("qwen2", "safetensors", "BF16"))


def told_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, object]:
    assert main(["quantize", *map(str, arguments), "--json"]) == 0
    told: dict[str, object] = json.loads(capsys.readouterr().out)
    return told


def test_the_help_lists_every_scheme_with_its_bits_every_method_and_the_patterns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["quantize", "--help"]) == 0
    told = capsys.readouterr().out
    *lines, short = told.partition("row):\n")[2].partition("\n\n")[0].splitlines()
    listed = dict(line.split(maxsplit=1) for line in lines)
    assert {format_of(scheme) for scheme in listed} == set(WRITABLE_FORMATS)
    assert listed["int4-g128"] == "4.125"
    assert listed["int4-g128-asym"] == "4.15625"
    assert listed["nf4-b64"] == "4.25"
    assert listed["int8-row"] == "8 + 32/K"
    assert listed["q5_1"] == "6"
    assert short.strip() == "int8 is int8-row, int4 is int4-g128, nf4 is nf4-b64"
    methods = told.partition("with a text:\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in methods] == [str(method) for method in Method]
    assert "patterns of --keep" in told
    assert "examples:" in told
    assert max(map(len, told.splitlines())) <= 100


def test_it_tells_what_the_matrices_took_and_take(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "small"
    assert main(["quantize", source, str(out), "--scheme", "int4-g128", PLAIN]) == 0
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert lines[0].startswith("source")
    assert "16.0000 bits a weight" in lines[0]
    assert lines[1].split()[:2] == ["BF16", "16.0000"]
    assert str(out) in lines[2]
    assert lines[3].split()[0] == "INT4_G128"
    assert len(lines) == 4
    assert told.err == ""
    assert {t.format for t in open_checkpoint(out).tensors.values()} >= {"INT4_G128"}


def test_a_folder_becomes_the_gguf_file_that_its_name_asks_for(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(source, tmp_path / "source")
    (folder / "LICENSE").write_text("free")
    out = tmp_path / "m.gguf"
    assert main(["quantize", str(folder), str(out), "--scheme", "q8_0", PLAIN]) == 0
    told = capsys.readouterr().out
    assert "note    a GGUF file has no place for LICENSE" in told
    found = told_of(capsys, folder, tmp_path / "n.gguf", "--scheme", "q8_0", PLAIN)
    assert found["result"]["container"] == "gguf"
    assert len(found["remarks"]) == 1
    assert (tmp_path / "n.gguf").read_bytes() == out.read_bytes()
    assert main(["run", str(out), "What is it?", "--max-tokens", "4"]) == 0


def test_a_folder_that_gguf_has_no_way_to_describe_is_refused_in_one_line(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(source, tmp_path / "source")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["pre_tokenizer"]["add_prefix_space"] = True
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    arguments = [str(folder), str(tmp_path / "m.gguf"), "--scheme", "q8_0", PLAIN]
    assert main(["quantize", *arguments]) == 2
    told = capsys.readouterr().err
    assert "llama.cpp has no name for" in told
    assert "Write a folder instead, by an OUT without .gguf" in told
    assert "Traceback" not in told
    assert [file.name for file in tmp_path.iterdir()] == ["source"]


def test_it_tells_what_every_rule_matched(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--scheme", "int4", PLAIN, "--keep", "layers.0=int8", "embedding=keep"]
    assert main(["quantize", source, str(tmp_path / "m"), *arguments]) == 0
    told = capsys.readouterr().out
    assert (
        "keep    layers.0=int8-row: 7 matrices, layers.0.query to layers.0.down\n"
        "keep    embedding=keep: embedding\n"
    ) in told
    formats = {name: t.format for name, t in open_checkpoint(tmp_path / "m").tensors.items()}
    assert formats["model.embed_tokens.weight"] == "BF16"
    assert formats["model.layers.0.mlp.down_proj.weight"] == "INT8_ROW"
    assert formats["model.layers.1.mlp.down_proj.weight"] == "INT4_G128"


def test_it_tells_which_rows_had_to_have_another_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(tiny.shared("llama")), str(tmp_path / "m.gguf"), "--scheme", "q4_k", PLAIN]
    assert main(["quantize", *arguments]) == 0
    told = capsys.readouterr().out
    assert "no whole blocks of 256 have llama.cpp's next format: 16 matrices, embedding" in told
    assert "Q5_0" in told


def test_it_calibrates_with_the_book_that_comes_with_it_unless_given_a_text(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--scheme", "int4-g32", "--method", "gptq", PLAIN]
    assert main(["quantize", source, str(tmp_path / "a"), *arguments]) == 0
    assert "text    opticks, 16,384 tokens, for gptq\n" in capsys.readouterr().out
    (tmp_path / "mine.txt").write_text(calibration_text().content[60_000:90_000])
    arguments += ["--calibrate", str(tmp_path / "mine.txt")]
    assert main(["quantize", source, str(tmp_path / "b"), *arguments]) == 0
    assert "text    mine.txt, " in capsys.readouterr().out
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert weights[0] != weights[1]


def test_a_receipt_is_told_and_stored(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--scheme", "int4", "--keep", "embedding=int8"]
    assert main(["quantize", source, str(tmp_path / "m"), *arguments]) == 0
    told = capsys.readouterr()
    receipt = read_receipt(open_checkpoint(tmp_path / "m"))
    assert receipt is not None
    assert f"receipt {receipt.summary()}\n" in told.out
    assert receipt.scheme == "int4-g128, embedding=int8-row"
    assert receipt.battery is not None
    assert receipt.battery.questions == 200
    assert told.err == ""


def test_a_receipt_may_be_measured_on_ones_own_text_against_another_model(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text(calibration_text().content[60_000:90_000])
    other = tiny.shared("qwen2", "safetensors")
    told = told_of(
        capsys,
        source,
        tmp_path / "m",
        "--scheme",
        "int8",
        "--text",
        tmp_path / "mine.txt",
        "--reference",
        other,
    )
    receipt = told["receipt"]
    assert isinstance(receipt, dict)
    assert receipt["text"]["name"] == "mine.txt"
    assert receipt["reference"]["name"] == other.name
    assert receipt["reference"]["bits_per_weight"] == 32


def test_it_warns_that_rounded_weights_are_rounded_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rounded = str(tiny.shared("llama", "gguf", "Q4_1"))
    assert main(["quantize", rounded, str(tmp_path / "m.gguf"), "--scheme", "q8_0", PLAIN]) == 0
    assert "warning: the source has 5 bits a weight" in capsys.readouterr().err


def test_json_has_the_same_facts(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "small"
    told = told_of(
        capsys, source, out, "--scheme", "nf4", "--keep", "embedding=int8", "--method", "rotate",
        "static-inputs", "gptq", PLAIN,
    )  # fmt: skip
    assert told.keys() >= {"version", "model", "machine", "threads", "isa", "seed"}
    assert told["scheme"] == "nf4-b64"
    assert told["methods"] == ["gptq", "rotate", "static-inputs"]
    assert told["seed"] == 0
    assert told["keep"] == [
        {"pattern": "embedding", "scheme": "int8-row", "matrices": ["embedding"]}
    ]
    text = calibration_text()
    assert told["calibration"] == {"text": text.name, "sha256": text.sha256, "tokens": 16384}
    assert told["fallbacks"] == []
    assert told["resumed_tensors"] == 0
    assert told["receipt"] is None
    before, result = told["source"], told["result"]
    assert isinstance(before, dict)
    assert isinstance(result, dict)
    assert before["bits_per_weight"] == 16
    assert before["rounded_before"] is False
    assert result["path"] == str(out)
    assert result["container"] == "safetensors"
    assert result["sha256"] == model_hash(out)
    by_format = {share["format"]: share for share in result["matrices"]}
    assert by_format.keys() == {"NF4_B64", "INT8_ROW"}
    assert by_format["INT8_ROW"]["tensors"] == 1
    # Rows of 64 under one scale.
    assert by_format["INT8_ROW"]["bits_per_weight"] == 8.5
    # A scale for the input of each of two layers' seven matrices.
    assert result["beside_matrices_bytes"] == 4 * 14
    everything = [*result["matrices"], *result["others"]]
    counted = sum(share["bytes"] for share in everything) + result["beside_matrices_bytes"]
    assert counted == result["bytes"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--scheme", "int4-g32-asym"],
        ["--scheme", "int4", "--method", "gptq"],
        ["--scheme", "int4", "--method", "awq"],
        ["--scheme", "int8", "--method", "llm.int8"],
        ["--scheme", "int8", "--method", "smoothquant", "static-inputs"],
        ["--scheme", "int4", "--method", "rotate", "gptq"],
    ],
)
def test_the_result_is_run_planned_and_served(
    arguments: list[str], source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "small")
    assert main(["quantize", source, out, *arguments, PLAIN]) == 0
    assert main(["run", out, "Hello", "--max-tokens", "4", "--json", "--raw"]) == 0
    told = capsys.readouterr().out
    assert len(json.loads(told[told.index("{") :])["token_ids"]) == 4
    assert main(["plan", out, "--json", "--ceilings", "none"]) == 0
    weights = {cell["weight_bytes"] for cell in json.loads(capsys.readouterr().out)["cells"]}
    assert plan_memory(load_model(open_checkpoint(out))).weight_bytes in weights
    assert main(["serve", out, "--check"]) == 0
    assert "it fits" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scheme", "int3"], "invalid choice: 'int3'"),
        (["--scheme", "q4_0", "--keep", "head=q9"], "no scheme .* 'q9'; there are"),
        (["--scheme", "q4_0", "--keep", "head"], "no PATTERN=SCHEME"),
        (["--scheme", "q4_0", "--keep", "haed=int8"], "no matrix of the model is called 'haed'"),
        (["--scheme", "q4_0", "--method", "gtpq"], "invalid choice: 'gtpq'"),
        (["--scheme", "f16", "--method", "gptq"], "f16 has none"),
        (["--scheme", "q4_0", "--method", "awq", "rotate"], "do not go together"),
        (["--scheme", "q8_0", "--calibrate", "default"], "nothing here is calibrated"),
        (["--scheme", "q6_k", "--calibrate", "default"], "nothing here is calibrated"),
        (["--scheme", "INT4", "--method", "LLM.int8"], "keeps columns beside int8 weights"),
        (["--scheme", "q4_k", "--calibrate", "absent.txt"], "no text file absent.txt"),
        (["--scheme", "q4_0", "--text", "absent.txt"], "no text file absent.txt"),
        (["--scheme", "q4_0", "--no-receipt", "--text", "a"], "--no-receipt that none is"),
        (["--scheme", "q4_0", "--reference", "absent.gguf"], "absent.gguf"),
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
    error = capsys.readouterr().err
    assert re.search(message, error), error
    assert "Traceback" not in error
    assert not list(tmp_path.iterdir())


def test_a_place_that_is_taken_ends_with_2_unless_forced(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert main(["quantize", source, out, "--scheme", "int8-row", PLAIN]) == 0
    assert main(["quantize", source, out, "--scheme", "int4-row", PLAIN]) == 2
    assert "replace it with --force" in capsys.readouterr().err
    assert main(["quantize", source, out, "--scheme", "int4-row", PLAIN, "--force"]) == 0


def test_a_model_that_is_not_there_ends_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = str(tmp_path / "absent.gguf")
    assert main(["quantize", absent, str(tmp_path / "out"), "--scheme", "int8-row"]) == 2
    assert "absent.gguf" in capsys.readouterr().err


# --- the bar


def test_a_bar_shows_each_stage_with_what_it_is_at_and_the_time_left() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, color_system=None)
    with bar_on(console) as bar:
        for stage, what in (("calibrate", ""), ("write", "blk.1[red].\x1b[31mdown")):
            for share in (0.0, 0.25, 0.5, 1.0):
                bar(stage, what, share)
        bar.refresh()
        told = screen.getvalue()
    assert "write" in told
    assert "100%" in told
    assert "blk.1[red]" in told
    assert "\x1b[31mdown" not in told
    assert "0:00:" in told


def test_without_a_terminal_a_line_tells_the_stage_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(stages, "monotonic", lambda: clock[0])
    monkeypatch.setattr(stages, "LINE_SECONDS", 30.0)
    told = StageBar(None)
    for second in range(0, 100, 10):
        clock[0] = float(second)
        told("write", f"tensor\x1b {second}", second / 100)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"write  {second}%  tensor^[ {second}" for second in (30, 60, 90)]


def test_a_scheme_is_one_however_it_is_typed(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for number, typed in enumerate(("q4_0", "q4-0", "Q4_0", "Q4-0")):
        out = tmp_path / f"{number}.gguf"
        told = told_of(capsys, source, out, "--scheme", typed, PLAIN, "--keep", f"head={typed}")
        found.append((told["scheme"], told["result"]["sha256"]))
    assert found == [("q4_0", found[0][1])] * 4
