"""A hub's model by its headers: little is fetched, and what it says is doubted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

import tiny
from cli.serve_process import known_port
from farthing.core import DownloadError, FarthingError, FileFormatError
from farthing.files import hub_headers
from farthing.files.checkpoint import open_checkpoint
from farthing.files.gguf import GGUFFile
from farthing.files.gguf_header import read_header
from farthing.files.hub_headers import headers, remote_id
from farthing.models.load import load_model
from files.hub_server import COMMIT, Hub, Repository, running_hub

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from farthing.models.load import Model


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    monkeypatch.setenv("FARTHING_CACHE", str(tmp_path))
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    with running_hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        yield running


def folder_files(family: str) -> dict[str, bytes]:
    folder = tiny.shared(family, "safetensors")
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def model_of(name: str) -> tuple[Model, int]:
    hub_id = remote_id(name)
    assert hub_id is not None
    with headers(hub_id) as found:
        assert found.licence == "mit"
        assert COMMIT in found.source
        return load_model(open_checkpoint(found.path)), found.fetched


@pytest.mark.parametrize("family", ["llama3", "gemma3"])
@pytest.mark.parametrize("form", ["gguf", "safetensors"])
def test_headers_describe_the_model_as_its_files_do(
    family: str, form: str, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_headers, "_FIRST_BYTES", 256)  # of less than a header
    path = tiny.shared(family, form)
    files = folder_files(family) if form == "safetensors" else {"m.gguf": path.read_bytes()}
    hub.repositories["someone/tiny"] = Repository(files)
    remote, fetched = model_of("someone/tiny")
    local = load_model(open_checkpoint(path))
    assert remote.program == local.program
    assert remote.config == local.config
    assert dict(remote.formats) == dict(local.formats)
    whole = sum(len(content) for content in files.values())
    assert fetched < whole / 2
    assert not any("tokenizer" in request for request in hub.requests)


def test_shards_are_described_together(hub: Hub) -> None:
    files = folder_files("llama")
    content = files.pop("model.safetensors")
    size = 8 + int.from_bytes(content[:8], "little")
    entries = json.loads(content[8:size])
    entries.pop("__metadata__", None)
    names = sorted(entries)
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        name = f"model-{number:05d}-of-00002.safetensors"
        weight_map |= dict.fromkeys(part, name)
        placed, end = {}, 0
        data = b""
        for each in part:
            first, last = entries[each]["data_offsets"]
            data += content[size + first : size + last]
            placed[each] = entries[each] | {"data_offsets": [end, end + last - first]}
            end += last - first
        header = json.dumps(placed).encode()
        files[name] = len(header).to_bytes(8, "little") + header + data
    files["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map}).encode()
    hub.repositories["someone/tiny"] = Repository(files)
    remote, _ = model_of("someone/tiny")
    local = load_model(open_checkpoint(tiny.shared("llama", "safetensors")))
    assert remote.program == local.program


@pytest.mark.parametrize("name", ["m.gguf", "no/such.gguf", "smollm2-135m", "x", "a/b/c", ""])
def test_what_is_no_hub_id_is_none(name: str, hub: Hub) -> None:
    assert remote_id(name) is None


def test_a_folder_here_comes_before_a_hub(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "someone" / "tiny").mkdir(parents=True)
    assert remote_id("someone/tiny") is None
    assert remote_id("someone/tiny:Q4_0") is not None


def test_a_tag_chooses_one_gguf(hub: Hub) -> None:
    files = {
        f"m-{quant}.gguf": tiny.shared("llama", "gguf", quant).read_bytes()
        for quant in ("Q4_0", "Q8_0")
    }
    hub.repositories["someone/tiny"] = Repository(files)
    assert "Q8_0" in model_of("someone/tiny:Q8_0")[0].formats.values()
    with pytest.raises(DownloadError, match="name one by its tag"):
        model_of("someone/tiny")


def test_a_token_is_needed_where_the_hub_asks_for_one(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"m.gguf": tiny.shared("llama").read_bytes()}
    hub.repositories["someone/tiny"] = Repository(files, token="secret", gated=True)
    with pytest.raises(DownloadError, match="is gated"):
        model_of("someone/tiny")
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert model_of("someone/tiny")[0].program.cache


def _gguf_with_a_lie(change: str) -> bytes:
    content = bytearray(tiny.shared("llama").read_bytes())
    header = read_header(np.frombuffer(bytes(content), np.uint8), tiny.shared("llama"))
    if change == "magic":
        content[:4] = b"GGML"
    elif change == "truncated":
        del content[-1000:]
    elif change == "cut within the header":
        del content[header.end // 2 :]
    elif change == "keys":
        content[16:24] = (1 << 60).to_bytes(8, "little")
    elif change == "tensors":
        content[8:16] = (1 << 60).to_bytes(8, "little")
    elif change == "layers":
        field = header.fields["llama.block_count"]
        content[field.stop - 4 : field.stop] = (1000).to_bytes(4, "little")
    return bytes(content)


@pytest.mark.parametrize(
    "change", ["magic", "truncated", "cut within the header", "keys", "tensors", "layers"]
)
def test_a_gguf_header_that_lies_is_refused(change: str, hub: Hub) -> None:
    hub.repositories["someone/tiny"] = Repository({"m.gguf": _gguf_with_a_lie(change)})
    with pytest.raises(FileFormatError):
        model_of("someone/tiny")


@pytest.mark.parametrize("size", [0, 1 << 40, 2**64 - 1, 64])
def test_a_safetensors_header_that_lies_is_refused(size: int, hub: Hub) -> None:
    files = folder_files("llama")
    files["model.safetensors"] = size.to_bytes(8, "little") + files["model.safetensors"][8:]
    hub.repositories["someone/tiny"] = Repository(files)
    with pytest.raises(FarthingError):
        model_of("someone/tiny")


def test_a_hub_that_claims_an_impossible_size_is_refused(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_headers, "_MOST_FILE", 1000)
    hub.repositories["someone/tiny"] = Repository({"m.gguf": tiny.shared("llama").read_bytes()})
    with pytest.raises(DownloadError, match="which no model has"):
        model_of("someone/tiny")


def test_without_a_network_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FARTHING_CACHE", str(tmp_path))
    with known_port() as port:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
        with pytest.raises(DownloadError, match="the hub cannot be reached for someone/tiny"):
            model_of("someone/tiny")


def test_rotary_divisors_beyond_the_header_are_fetched(hub: Hub) -> None:
    """Llama 3's GGUF files say how positions are scaled by a tensor, not by the header."""
    path = tiny.shared("llama3")
    assert "rope_freqs.weight" in GGUFFile(path).tensors
    content = path.read_bytes()
    hub.repositories["someone/tiny"] = Repository({"m.gguf": content})
    local = load_model(open_checkpoint(path))
    assert model_of("someone/tiny")[0].config.frequencies == local.config.frequencies
