"""farthing plan: the figures, the exit codes, what is told where something is wrong."""

from __future__ import annotations

import io
import json
import re
import struct
import sys
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import pytest

import tiny
from cli.serve_process import known_port
from farthing.backends.ceilings import Ceilings as Measurement
from farthing.cli import main
from farthing.core import ActivationMode, KVDtype
from farthing.files.checkpoint import open_checkpoint
from farthing.models.load import load_model
from farthing.plan.machine import processor, usable_cores
from farthing.plan.memory import plan_memory
from farthing.plan.profile import Ceilings, Profile, ProfilePoint, profile_key, store_profile
from files.hub_server import Repository, running_hub

if TYPE_CHECKING:
    from pathlib import Path

NO_SPEED = ["--ceilings", "none"]
RATES = ["--ceilings", "read=2e10,int8=2.4e11,bf16=1.3e11,fp32=5e10"]
THIRTEEN = ["--params", "13e9", "--layers", "40", "--kv-heads", "40", "--head-dim", "128"]
SEVEN = ["--params", "7e9", "--layers", "32", "--kv-heads", "8", "--head-dim", "128"]


@pytest.fixture(scope="module")
def model() -> str:
    return str(tiny.shared("llama"))


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setattr("farthing.plan.profile.profiles_folder", lambda: tmp_path / "profiles")
    monkeypatch.setattr("farthing.lab.bench._BUFFER_BYTES", 1 << 20)
    monkeypatch.chdir(tmp_path)


def says(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["plan", *arguments, "--json"])
    captured = capsys.readouterr()
    assert captured.err == ""
    return code, json.loads(captured.out)


def test_the_examples_are_the_figures_that_everybody_can_check(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, shown = planned(capsys, "--examples")
    assert code == 0
    cells = {(c["memory_bytes"] >> 30, c["model"], c["weights"]): c for c in shown["cells"]}
    assert len(cells) == 27
    assert cells[8, "13B", "int4"]["tokens"] == 337
    assert cells[16, "7B", "int8"]["tokens"] == 65_378
    assert cells[16, "13B", "int8"]["tokens"] == 3_136
    assert round(cells[8, "7B", "int8"]["missing_bytes"] / 2**20, 1) == 19.7
    assert round(cells[24, "70B", "int4"]["missing_bytes"] / 2**30, 1) == 11.1
    assert all(cells[gib, "70B", w]["missing_bytes"] for gib in (8, 16, 24) for w in ("int4",))
    assert main(["plan", "--examples"]) == 0
    text = capsys.readouterr().out
    for figure in ("337", "65,378", "3,136", "misses by 19.7 MiB", "misses by 11.1 GiB"):
        assert figure in text
    assert text.count("70B") == 3


def test_a_shape_is_solved_as_the_formula_says(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*THIRTEEN, "--memory", "8GiB", "--weights", "int4", *NO_SPEED]
    code, shown = planned(capsys, *asked, "--context", "320", "--users", "1")
    (cell,) = shown["cells"]
    assert code == 0
    assert (cell["tokens"], cell["allocated_tokens"]) == (337, 320)
    assert cell["bytes_per_token"] == 819_200
    assert cell["weight_bytes"] == 6_703_125_000
    assert shown["reserve_bytes"] == 1.5 * 2**30
    assert planned(capsys, *asked, "--context", "337", "--users", "1")[0] == 1
    code, shown = planned(capsys, *asked, "--reserve", "1GiB", "--context", "320", "--users", "1")
    assert shown["cells"][0]["tokens"] == (8 * 2**30 - 2**30 - 6_703_125_000) // 819_200


def test_json_has_the_stable_names(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = planned(
        capsys, model, "--memory", "1GiB", *RATES, "--price-per-hour", "2", "--users", "1,3"
    )
    assert code == 0
    assert shown.keys() >= {"version", "model", "machine", "threads", "isa", "seed", "sum"}
    assert shown["fits"] is True
    for cell in shown["cells"]:
        assert cell.keys() >= {
            *("weights", "kv_dtype", "memory_bytes", "weight_bytes", "bytes_per_token"),
            *("tokens", "allocated_tokens", "users", "binding", "context", "fits"),
            *("tokens_left", "most_users", "time_to_first_token_seconds", "step_seconds"),
            *("tokens_per_second_per_user", "tokens_per_second", "price_per_million"),
        }
        assert cell["memory_bytes"] == 2**30
        assert cell["binding"] in ("bandwidth", "arithmetic")
        assert cell["price_per_million"].keys() == {"prompt", "cached", "generated"}
        assert cell["speed_basis"] == "the machine's ceilings"
    parts = shown["sum"]["parts"]
    assert {part["basis"] for part in parts} == {"derived", "measured"}
    assert shown["sum"]["total_bytes"] == shown["cells"][0]["needed_bytes"]
    assert sum(shown["sum"]["groups"].values()) == shown["sum"]["total_bytes"]


@pytest.mark.parametrize(
    "flags",
    [
        ["--kv-dtype", "int8", "--threads", "1"],
        ["--activations", "fp32"],
        ["--speculate", "off", "--threads", "1", "--activations", "bf16"],
    ],
)
def test_a_model_is_planned_as_it_would_be_served(
    model: str, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The same sum as serve --check's, and the flags that ask for it."""
    flags = ["--context", "512", *flags]
    _, shown = planned(capsys, model, *flags, "--users", "9", *NO_SPEED)
    assert main(["plan", model, *flags, "--users", "9", *NO_SPEED]) == 0
    line = capsys.readouterr().out.rstrip().splitlines()[-1].split()
    assert line[:3] == ["farthing", "serve", model]
    assert main([*line[1:], "--check", "--json"]) == 0
    checked = json.loads(capsys.readouterr().out)
    (cell,) = shown["cells"]
    assert checked["needed_bytes"] == cell["needed_bytes"]
    assert checked["plan"]["cache_tokens"] == cell["needed_tokens"]
    assert checked["sum"] == {name: shown["sum"][name] for name in checked["sum"]}


def test_what_the_plan_refuses_the_server_refuses_with_the_same_numbers(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--context", "1024", "--threads", "1"]
    _, shown = planned(capsys, model, *asked, "--users", "50", *NO_SPEED)
    needed = shown["cells"][0]["needed_bytes"]
    room = needed - 1
    code, shown = planned(capsys, model, *asked, "--users", "50", "--memory", str(room), *NO_SPEED)
    assert code == 1
    assert not shown["fits"]
    assert shown["cells"][0]["missing_bytes"] == 1
    monkeypatch.setattr("farthing.serve.sizing.available_memory", lambda: room)
    serve = [model, *asked, "--slots", "50", "--cache-tokens", "51200", "--kv-dtype", "bf16"]
    assert main(["serve", *serve, "--check", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["needed_bytes"] == needed
    for nearest in shown["nearest"]:
        flag, value = nearest["flags"].split()
        changed = [model, *asked, "--users", "50", "--memory", str(room), *NO_SPEED, flag, value]
        assert planned(capsys, *changed)[0] == 0


def test_what_does_not_fit_is_told_with_the_nearest_that_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = [*SEVEN, "--memory", "8GiB", "--weights", "int8", "--context", "4096", *NO_SPEED]
    assert main(["plan", *asked, "--users", "1"]) == 1
    text = capsys.readouterr().out
    assert "misses by 19.7 MiB before any cache" in text
    assert "it does not fit; what would:" in text
    assert "weights in int4 (--weights int4)" in text
    assert "of memory" in text
    assert main(["plan", *asked, "--users", "1", "--weights", "int4"]) == 0


def test_a_grid_with_one_cell_that_fits_is_a_yes(capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = planned(
        capsys, *SEVEN, "--memory", "16GiB", "--context", "1024,65536", "--users", "1,64", *NO_SPEED
    )
    assert code == 0
    assert [c["weights"] for c in shown["cells"]] == ["fp16"] * 4 + ["int8"] * 4 + ["int4"] * 4
    assert {c["fits"] for c in shown["cells"]} == {True, False}


def test_precisions_and_caches_make_a_row_each(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, shown = planned(
        capsys,
        *(model, "--weights", "stored,int8,INT4", "--kv-dtype", "bf16,int8"),
        *("--context", "512", "--users", "1", *NO_SPEED),
    )
    cells = shown["cells"]
    assert len(cells) == 6
    sizes = [cell["weight_bytes"] for cell in cells if cell["kv_dtype"] == "bf16"]
    assert sizes == sorted(sizes, reverse=True)
    weights, cache = load_model(open_checkpoint(model)), KVDtype.INT8
    plan = plan_memory(weights, context_length=512, slots=1, cache_tokens=512, kv_dtype=cache)
    assert cells[1]["needed_bytes"] == plan.needed_bytes


def test_an_slo_out_of_reach_says_what_is_reachable(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [model, *RATES, "--context", "512", "--users", "4"]
    code, shown = planned(capsys, *asked, "--slo", "ttft=2s,tpot=100ms")
    assert (code, shown["cells"][0]["meets_objective"]) == (0, True)
    code, shown = planned(capsys, *asked, "--slo", "ttft=1ms,tpot=0.001ms")
    assert code == 1
    assert shown["cells"][0]["fits"]
    found = re.search(r"its first token after (\S+) ms and one every (\S+) ms", shown["reachable"])
    assert found is not None
    first, step = (float(number) / 1000 for number in found.groups())
    cell = shown["cells"][0]
    assert first == pytest.approx(cell["time_to_first_token_seconds"], rel=0.01)
    assert step == pytest.approx(cell["step_seconds"], rel=0.01)


def test_an_slo_that_fewer_keep_says_how_many(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [model, *RATES, "--context", "512"]
    _, shown = planned(capsys, *asked, "--users", "20")
    step = shown["cells"][0]["step_seconds"] * 1000
    slo = ["--slo", f"tpot={step:.6f}ms"]
    code, shown = planned(capsys, *asked, "--users", "100", *slo)
    assert code == 1
    found = re.search(r"--users (\d+)\)", shown["reachable"])
    assert found is not None
    assert planned(capsys, *asked, "--users", found[1], *slo)[0] == 0
    assert planned(capsys, *asked, "--users", str(int(found[1]) + 1), *slo)[0] == 1


def test_real_lengths_stand_for_a_context(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lengths.txt").write_text("100 50\n600 200\n100 10\n")
    code, shown = planned(capsys, model, "--lengths", "lengths.txt", *RATES)
    assert code == 0
    assert [cell["context"] for cell in shown["cells"]] == [800, 800]
    (tmp_path / "lengths.txt").write_text("1000 500\n")
    assert main(["plan", model, "--lengths", "lengths.txt"]) == 2
    assert "has a request of 1,500 tokens, and the model's context is 1,024" in says(capsys)


def test_a_stored_profile_corrects_what_the_ceilings_say(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [model, "--context", "512", "--users", "2", "--threads", "1"]
    _, shown = planned(capsys, *asked)
    assert "no profile of it is stored" in shown["speed"]["notes"][0]
    assert shown["cells"][0]["speed_basis"] == "the machine's ceilings"
    measurement = Measurement(1, 4096)
    loaded = load_model(open_checkpoint(model))
    key = profile_key(
        loaded,
        plan_memory(loaded, threads=1),
        cpu=processor(),
        isa=measurement.tier,
        kernels=measurement.kernels,
    )
    measurement.close()
    ceilings = Ceilings(1e10, dict.fromkeys(ActivationMode, 1e11))
    mean = 512 - 256 // 2 // 2  # halfway through an answer of a quarter of the context
    point = ProfilePoint(2, mean - 1, 1, 0.125, 0.1, 0.2)
    store_profile(Profile(key, ceilings, 512, (point,), "2030-01-02T03:04:05+00:00"))
    _, shown = planned(capsys, *asked)
    (cell,) = shown["cells"]
    assert cell["step_seconds"] == pytest.approx(0.125)
    assert "2030-01-02" in cell["speed_basis"]
    assert shown["speed"]["notes"] == []
    assert main(["plan", *asked]) == 0
    assert "corrected by the profile of 2030-01-02" in capsys.readouterr().out
    # Another kind of cache is another key.
    assert planned(capsys, *asked, "--kv-dtype", "int8")[1]["speed"]["notes"] != []


def test_a_hubs_model_is_planned_by_its_headers(
    model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FARTHING_CACHE", str(tmp_path / "cache"))
    asked = ["--context", "512", "--users", "3", "--threads", "1", "--memory", "1GiB", *NO_SPEED]
    with open(model, "rb") as file:  # noqa: PTH123
        content = file.read()
    with running_hub() as hub:
        hub.repositories["someone/tiny"] = Repository({"m.gguf": content})
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        code, remote = planned(capsys, "someone/tiny", *asked)
        assert main(["plan", "someone/missing", *asked]) == 2
        assert "the hub has no model someone/missing" in says(capsys)
    assert code == 0
    assert remote["model"]["path"].startswith(f"{hub.endpoint}/someone/tiny at ")
    _, local = planned(capsys, model, *asked)
    assert remote["cells"] == local["cells"]
    assert remote["sum"] == local["sum"]
    assert not (tmp_path / "cache" / "models" / "someone--tiny").exists()


def test_a_hub_id_without_a_network_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FARTHING_CACHE", str(tmp_path))
    with known_port() as port:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
        assert main(["plan", "someone/tiny"]) == 2
    assert "the hub cannot be reached for someone/tiny" in says(capsys)


def test_the_plot_is_a_picture_with_a_line_for_each_precision(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*SEVEN, "--memory", "16GiB", "--weights", "fp16,int4", *RATES, "--slo", "tpot=1s"]
    assert main(["plan", *asked, "--plot", "frontier.svg"]) == 0
    root = ET.fromstring((tmp_path / "frontier.svg").read_text())
    texts = ["".join(each.itertext()) for each in root.iter() if each.tag.endswith("text")]
    for label in ("fp16, bf16 cache", "int4, bf16 cache", "int4, bf16 cache, slo kept"):
        assert label in texts
    lines = [each for each in root.iter() if each.tag.endswith("polyline")]
    assert len(lines) == 8  # each with its sample in the legend
    points = [tuple(map(float, pair.split(","))) for pair in lines[4].attrib["points"].split()]
    assert all(70 <= x <= 560 and 50 <= y <= 390 for x, y in points)
    assert [y for _, y in points] == sorted(y for _, y in points)  # longer texts, fewer users
    capsys.readouterr()
    assert main(["plan", *asked, "--plot", "frontier.png"]) == 2
    assert "--plot writes SVG" in says(capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "MODEL is missing"),
        (["MODEL", *SEVEN], "MODEL says its own sizes: leave out --params"),
        (["MODEL", "--heads", "4"], "leave out --heads"),
        (["--params", "7e9", "--layers", "32"], "a shape needs --kv-heads, --head-dim as well"),
        (["--examples", "--memory", "8GiB"], "which --memory has no part in"),
        (["MODEL", "--examples"], "which MODEL has no part in"),
        (["MODEL", "--lengths", "x", "--context", "5"], "leave out --context"),
        (["MODEL", "--slo", "ttft=2s", *NO_SPEED], "--slo needs speeds"),
        (["MODEL", "--price-per-hour", "2", *NO_SPEED], "--price-per-hour needs speeds"),
        (["MODEL", "--slo", "soon"], "'soon' is no limit"),
        (["MODEL", "--slo", "ttft=500us"], "(times in s or ms)"),
        (["MODEL", "--price-per-hour", "2e9"], "must be a price from 0 to 1,000,000,000, not"),
        (["MODEL", "--plot", "none/p.svg"], "--plot none/p.svg: there is no folder none: make it"),
        (["MODEL", "--plot", "."], "--plot . is no file"),
        (["--params", "13", *THIRTEEN[2:]], "--params 13 is less than the 52,428,800 that make"),
        (["MODEL", "--context", "2048"], "--context 2048 is more than the 1024 positions"),
        (["MODEL", "--context", "0"], "argument --context: must be at least 1"),
        (["MODEL", "--context", "1,,2"], "argument --context: must be up to 32 values"),
        (["MODEL", "--users", "many"], "argument --users: must be a whole number"),
        (["MODEL", "--memory", "8 gigs"], "argument --memory: must be a size such as 8GiB"),
        (["MODEL", "--memory", "-1"], "argument --memory: must be a size such as 8GiB, not '-1'"),
        (["MODEL", "--memory", "9999999TiB"], "argument --memory: must be at most"),
        (["MODEL", "--weights", "int3"], "no weights are called 'int3'"),
        (["MODEL", "--kv-dtype", "int3"], "--kv-dtype 'int3' is none of fp32"),
        (["MODEL", "--answer", "600", "--context", "512"], "leave nothing of a context of 512"),
        (["MODEL", "--lengths", "missing.txt"], "--lengths missing.txt cannot be read"),
        (["MODEL", "--price-per-hour", "free"], "argument --price-per-hour: must be a price"),
        (["MODEL", "--ceilings", "read=1"], "argument --ceilings: leaves out int8, bf16, fp32"),
        (["MODEL", "--ceilings", "read=-1"], "argument --ceilings: must look like"),
        ([*SEVEN[:1], "7.5", *SEVEN[2:]], "argument --params: must be a whole number such as"),
        ([*SEVEN[:1], "1e400", *SEVEN[2:]], "argument --params: must be a whole number such as"),
        ([*SEVEN[:1], "nan", *SEVEN[2:]], "argument --params: must be a whole number such as"),
        ([*SEVEN, "--weights", "stored"], "--weights stored needs the model itself"),
        ([*SEVEN, "--heads", "12"], "cannot share --kv-heads 8 evenly"),
        (
            [*SEVEN[:-1], "100", "--kv-dtype", "int4-keys"],
            "a cache of int4-keys cannot hold this model's heads of 100 dimensions: use --kv-dtype",
        ),
        ([*SEVEN[:-1], "65"], "a cache of bf16 cannot hold this model's heads of 65 dimensions"),
        (["no-such-model"], "no model of the catalog"),
        (["missing.gguf"], "there is no file missing.gguf"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_a_bad_flag_is_one_clear_error(
    arguments: list[str], message: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *(model if word == "MODEL" else word for word in arguments)]) == 2
    assert message in says(capsys)


def test_a_header_that_lies_is_one_clear_error(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open(model, "rb") as file:  # noqa: PTH123
        content = file.read()
    path = tmp_path / "short.gguf"
    path.write_bytes(content[:-1000])
    assert main(["plan", str(path)]) == 2
    assert "is truncated" in says(capsys)


@pytest.mark.parametrize(
    ("key", "claim", "message"),
    [
        ("llama.block_count", 10**6, "llama.block_count must be a whole number from 1 to 1024"),
        ("llama.embedding_length", 2**31, "llama.embedding_length must be a whole number"),
        ("llama.context_length", 2**32 - 1, "llama.context_length must be a whole number"),
        ("llama.attention.head_count", 0, "llama.attention.head_count must be a whole number"),
        ("llama.attention.head_count_kv", 3, "4 query heads cannot share 3 key-value heads"),
        ("llama.block_count", 3, "the tensor blk.2.attn_norm.weight is missing"),
    ],
)
def test_a_header_that_claims_what_cannot_be_is_one_clear_error(
    key: str,
    claim: int,
    message: str,
    model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with open(model, "rb") as file:  # noqa: PTH123
        content = file.read()
    value = content.index(key.encode() + struct.pack("<I", 4)) + len(key) + 4
    path = tmp_path / "lies.gguf"
    path.write_bytes(content[:value] + struct.pack("<I", claim) + content[value + 4 :])
    assert main(["plan", str(path), *NO_SPEED]) == 2
    assert message in says(capsys)


def test_what_is_configured_for_every_command_is_taken(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "farthing.toml").write_text(
        f'model = "{model}"\ncontext = 256\nkv-dtype = "int8"\nthreads = 1\n[plan]\nusers = 3\n'
    )
    _, shown = planned(capsys, *NO_SPEED)
    (cell,) = shown["cells"]
    assert (cell["context"], cell["kv_dtype"], cell["users"]) == (256, "int8", 3)
    # A configured model is no contradiction to a shape.
    assert planned(capsys, *SEVEN, "--memory", "64GiB", *NO_SPEED)[0] == 0


def test_on_a_terminal_of_80_columns_every_figure_is_whole(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    asked = [*RATES, "--context", "512,1024", "--users", "2,4", "--slo", "server"]
    pipe, terminal = io.StringIO(), Terminal()
    for stream in (pipe, terminal):
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setenv("TERM", "xterm")
        command = ["plan", model, "--memory", "1GiB", *asked, "--price-per-hour", "2"]
        assert main([*command, "--threads", "1"]) == 0
    whole = pipe.getvalue()
    seen = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    assert "…" not in seen
    start = next(at for at, line in enumerate(whole.splitlines()) if "most users" in line)
    for row in whole.splitlines()[start + 2 : start + 6]:
        for figure in re.split(r" {2,}", row.strip()):
            assert figure in seen
    tables = seen[seen.index("room for") :].splitlines()
    assert all(len(line) <= 80 for line in tables if "farthing serve" not in line)
    for heading in ("most", "first", "tokens/s", "limit", "slo", "cached"):
        assert any(heading in line.split() for line in tables)


def test_a_format_that_quantize_falls_back_from_is_planned_with_a_remark(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [model, "--context", "512", "--users", "1", *NO_SPEED]
    code, shown = planned(capsys, *asked, "--weights", "Q4_K,q5-0")
    assert code == 0
    assert [cell["weights"] for cell in shown["cells"]] == ["q4_k", "q5_0"]
    assert shown["cells"][0]["weight_bytes"] == shown["cells"][1]["weight_bytes"]
    (remark,) = shown["remarks"]
    assert re.fullmatch(r"q4_k: \d+ matrices with rows .* would be q5_0, as farthing .*", remark)
    assert main(["plan", *asked, "--weights", "q4_k"]) == 0
    assert remark in capsys.readouterr().out


def test_one_format_that_cannot_be_leaves_the_plan_of_the_others(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("farthing.files.formats.FALLBACKS", {})
    asked = [model, "--context", "512", "--users", "1", *NO_SPEED]
    for order in ("q4_k,int8", "int8,q4_k"):
        code, shown = planned(capsys, *asked, "--weights", order)
        assert code == 0
        assert [cell["weights"] for cell in shown["cells"]] == ["int8"]
        assert shown["remarks"][0].startswith("q4_k is left out: ")
    assert main(["plan", *asked, "--weights", "q4_k,q6_k"]) == 2
    assert "cannot be stored as Q6_K" in says(capsys)


def test_a_context_alone_is_a_dot_in_the_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*SEVEN, "--memory", "16GiB", "--weights", "int8,int4", *RATES, "--slo", "tpot=1s"]
    assert main(["plan", *asked, "--context", "2048", "--plot", "dot.svg"]) == 0
    dots = [
        each
        for each in ET.fromstring((tmp_path / "dot.svg").read_text()).iter()
        if each.tag.endswith("circle")
    ]
    assert len(dots) == 4  # what fits, and the ring of what keeps the SLO, for each precision
    assert len({each.attrib["stroke"] for each in dots}) == 2
    for each in dots:
        assert 70 <= float(each.attrib["cx"]) <= 560
        assert 50 <= float(each.attrib["cy"]) <= 390
    assert main(["plan", *asked, "--context", "2048,4096", "--plot", "line.svg"]) == 0
    assert "<circle" not in (tmp_path / "line.svg").read_text()


@pytest.mark.parametrize("flags", [[], ["--answer", "1500"], ["--shared-prefix", "1024"]])
def test_the_plot_shows_the_users_that_the_table_has(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*SEVEN, "--memory", "16GiB", "--weights", "int4", *RATES, "--context", "2048", *flags]
    limits = ["--slo", "ttft=95s,tpot=2s"]
    _, free = planned(capsys, *asked)
    _, kept = planned(capsys, *asked, *limits)
    most, judged = (shown["cells"][0]["most_users"] for shown in (free, kept))
    main(["plan", *asked, *limits, "--plot", "dot.svg"])
    heights = [
        390 - float(each.attrib["cy"])
        for each in ET.fromstring((tmp_path / "dot.svg").read_text()).iter()
        if each.tag.endswith("circle")
    ]
    assert [round(most ** (height / 340)) for height in heights] == [most, judged]


def test_more_threads_than_cores_are_warned_of_unless_the_machine_is_another(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["plan", model, "--context", "512", "--users", "1", "--threads", "10000"]
    assert main([*asked, *NO_SPEED]) == 0
    captured = capsys.readouterr()
    assert "warning: 10000 threads are asked for, and" in captured.err
    assert f"{usable_cores()} thread" in captured.out
    assert main([*asked, *RATES, "--memory", "1TiB"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert re.search(r"10,?000 threads", captured.out)


def test_silly_numbers_end_in_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    huge = ["--params", "1e14", "--layers", "1000000", "--kv-heads", "500000"]
    asked = [*huge, "--head-dim", "8", "--memory", "1B", *RATES, "--context", "2000000000"]
    assert main(["plan", *asked, "--users", "1000000000"]) == 1
    assert "it does not fit" in capsys.readouterr().out
