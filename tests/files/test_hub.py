"""Fetching from a hub, against a server of our own that speaks its API."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

import pytest

from farthing.core import DownloadError, FarthingError
from farthing.files import catalog
from farthing.files.progress import Fetch, Progress
from files.hub_server import COMMIT, Hub, Repository, running_hub

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOLDER = {
    "README.md": b"# A model",
    "config.json": b"{}",
    "tokenizer.json": b"{ }",
    "tokenizer_config.json": b"{  }",
    "chat_template.jinja": b"{{ messages }}",
    "pytorch_model.bin": b"a pickle",
    "onnx/model.onnx": b"something else",
}
SINGLE = {**FOLDER, "model.safetensors": b"weights" * 1000, "model.fp32.safetensors": b"more"}
SHARDED = {
    **FOLDER,
    "model-00001-of-00002.safetensors": b"first",
    "model-00002-of-00002.safetensors": b"second",
    "model.safetensors.index.json": b"{   }",
    "consolidated.safetensors": b"the same again",
}
GGUFS = {
    "README.md": b"# GGUFs",
    "toy.Q4_K_M.gguf": b"four",
    "toy.Q4_K_S.gguf": b"four, small",
    "toy.Q8_0.gguf": b"eight",
    "mmproj-toy-Q8_0.gguf": b"eyes",
    "F16/toy-F16-00001-of-00002.gguf": b"sixteen, first",
    "F16/toy-F16-00002-of-00002.gguf": b"sixteen, second",
}


class Recorder(Progress):
    def __init__(self) -> None:
        self.fetches: list[Fetch] = []
        self.done: list[int] = []
        self.ended = 0

    def begin(self, fetch: Fetch) -> None:
        self.fetches.append(fetch)

    def advance(self, done: int) -> None:
        self.done.append(done)

    def end(self) -> None:
        self.ended += 1


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("FARTHING_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        hub.repositories["someone/toy"] = Repository(SINGLE)
        hub.repositories["someone/toy-sharded"] = Repository(SHARDED)
        hub.repositories["someone/toy-GGUF"] = Repository(GGUFS)
        yield hub


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"farthing.json"}


def nothing_left(tmp_path: Path) -> bool:
    models = tmp_path / "cache" / "models"
    return [
        path for path in models.rglob("*") if path.is_file() and ".locks" not in path.parts
    ] == []


def test_a_repository_is_its_weights_and_the_files_that_describe_it(hub: Hub) -> None:
    folder = catalog.resolve("someone/toy")
    assert names_in(folder) == {
        *("config.json", "tokenizer.json", "tokenizer_config.json"),
        *("chat_template.jinja", "model.safetensors"),
    }
    assert (folder / "model.safetensors").read_bytes() == SINGLE["model.safetensors"]


def test_a_sharded_repository_comes_with_its_index_and_every_shard(hub: Hub) -> None:
    folder = catalog.resolve("someone/toy-sharded")
    assert names_in(folder) == {
        *("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
        *("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
        "model.safetensors.index.json",
    }


@pytest.mark.parametrize("tag", ["Q4_K_M", "q4_k_m", "toy.Q4_K_M", "toy.Q4_K_M.gguf"])
def test_a_tag_chooses_one_gguf_of_a_repository(tag: str, hub: Hub) -> None:
    path = catalog.resolve(f"someone/toy-GGUF:{tag}")
    assert path.name == "toy.Q4_K_M.gguf"
    assert path.read_bytes() == b"four"
    assert names_in(path.parent) == {"toy.Q4_K_M.gguf"}


def test_a_split_gguf_comes_whole_and_its_first_shard_is_opened(hub: Hub) -> None:
    path = catalog.resolve("someone/toy-GGUF:F16")
    assert path.name == "toy-F16-00001-of-00002.gguf"
    assert (path.parent / "toy-F16-00002-of-00002.gguf").read_bytes() == b"sixteen, second"


def test_a_projector_is_not_taken_for_the_model(hub: Hub) -> None:
    assert catalog.resolve("someone/toy-GGUF:Q8_0").read_bytes() == b"eight"


@pytest.mark.parametrize("tag", ["Q4_K", "4_K_M", "Q2_K", "oy", "mmproj-toy-Q8_0"])
def test_a_tag_that_no_file_has_lists_what_there_is(tag: str, hub: Hub) -> None:
    with pytest.raises(DownloadError, match=rf"no GGUF tagged {tag}; it has .*toy\.Q8_0"):
        catalog.resolve(f"someone/toy-GGUF:{tag}")


def test_several_ggufs_and_no_tag_is_an_error_that_lists_them(hub: Hub) -> None:
    with pytest.raises(DownloadError, match=r"toy-F16, toy\.Q4_K_M, .*name one by its tag"):
        catalog.resolve("someone/toy-GGUF")


def test_a_tag_that_two_files_have_is_an_error_that_lists_them(hub: Hub) -> None:
    hub.repositories["someone/two"] = Repository({"a-Q8_0.gguf": b"a", "b-Q8_0.gguf": b"b"})
    with pytest.raises(DownloadError, match=r"a-Q8_0, b-Q8_0.*someone/two:a-Q8_0"):
        catalog.resolve("someone/two:Q8_0")
    assert catalog.resolve("someone/two:b-Q8_0").read_bytes() == b"b"


def test_the_only_gguf_of_a_repository_needs_no_tag(hub: Hub) -> None:
    hub.repositories["someone/one"] = Repository({"one.gguf": b"alone", "mmproj.gguf": b"eyes"})
    assert catalog.resolve("someone/one").read_bytes() == b"alone"


def test_progress_tells_source_licence_and_bytes(hub: Hub) -> None:
    recorder = Recorder()
    catalog.resolve("someone/toy-GGUF:Q8_0", recorder)
    (fetch,) = recorder.fetches
    assert fetch.name == "someone/toy-GGUF:Q8_0"
    assert fetch.source == f"{hub.endpoint}/someone/toy-GGUF at {COMMIT}"
    assert fetch.licence == "mit"
    assert fetch.bytes == len(b"eight")
    assert recorder.done == sorted(recorder.done)
    assert recorder.done[-1] == fetch.bytes
    assert recorder.ended == 1


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ({"license": "apache-2.0"}, "apache-2.0"),
        ({"license": "other", "license_name": "a-licence"}, "a-licence"),
        ({"license": ["mit", "gpl"]}, "mit, gpl"),
        ({"license": ["mit", 2]}, "mit, 2"),
        ({"license": {"name": "mit"}}, "{'name': 'mit'}"),
        ({}, "not stated"),
        (None, "not stated"),
    ],
)
def test_the_licence_is_the_model_cards(card: dict[str, object], licence: str, hub: Hub) -> None:
    hub.repositories["someone/toy"].card = card
    recorder = Recorder()
    catalog.resolve("someone/toy", recorder)
    assert recorder.fetches[0].licence.startswith(licence)


def test_what_was_fetched_once_needs_no_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    first = catalog.resolve("someone/toy")
    asked = len(hub.requests)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert catalog.resolve("someone/toy") == first
    assert len(hub.requests) == asked


def test_an_installed_model_is_listed_and_removed(hub: Hub, tmp_path: Path) -> None:
    path = catalog.resolve("someone/toy-GGUF:F16")
    (model,) = catalog.installed()
    assert (model.name, model.path, model.licence) == ("someone/toy-GGUF:F16", path, "mit")
    assert model.bytes == len(b"sixteen, firstsixteen, second")
    assert catalog.remove("someone/toy-GGUF:f16") >= model.bytes
    assert catalog.installed() == []
    assert nothing_left(tmp_path)


def test_a_token_is_sent_where_one_is_needed(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["someone/toy"].token = "hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert (catalog.resolve("someone/toy") / "config.json").exists()


@pytest.mark.parametrize("token", [None, "hf_wrong"])
def test_a_gated_repository_says_how_to_get_in(
    token: str | None, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories["someone/toy"].token = "hf_secret"
    hub.repositories["someone/toy"].gated = True
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(DownloadError, match=r"someone/toy is gated: accept its terms.*HF_TOKEN"):
        catalog.resolve("someone/toy")
    assert nothing_left(tmp_path)


@pytest.mark.parametrize("name", ["someone/absent", "someone/absent:Q8_0", "nobody/toy"])
def test_a_repository_that_does_not_exist_is_said_so(name: str, hub: Hub) -> None:
    with pytest.raises(DownloadError, match=r"no model \w+/\w+, or it is private"):
        catalog.resolve(name)


def test_a_repository_without_weights_is_said_so(hub: Hub) -> None:
    hub.repositories["someone/empty"] = Repository(FOLDER)
    with pytest.raises(DownloadError, match=r"neither model.safetensors nor a .gguf"):
        catalog.resolve("someone/empty")


def test_a_name_that_leads_out_of_the_folder_is_never_asked_for(hub: Hub, tmp_path: Path) -> None:
    hub.repositories["someone/evil"] = Repository({"../../evil-Q8_0.gguf": b"evil"})
    with pytest.raises(DownloadError, match="neither"):
        catalog.resolve("someone/evil:Q8_0")
    assert not any("resolve" in request for request in hub.requests)


def test_a_wrong_checksum_keeps_nothing(hub: Hub, tmp_path: Path) -> None:
    hub.repositories["someone/toy"].corrupt = "model.safetensors"
    recorder = Recorder()
    with pytest.raises(DownloadError, match=r"model\.safetensors came with the wrong content"):
        catalog.resolve("someone/toy", recorder)
    assert recorder.ended == 1
    assert nothing_left(tmp_path)
    hub.repositories["someone/toy"].corrupt = None
    assert (catalog.resolve("someone/toy") / "model.safetensors").exists()


def test_no_network_is_said_within_two_seconds(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.resolve("someone/toy")  # the client library is imported
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    began = time.monotonic()
    with pytest.raises(DownloadError, match=r"hub cannot be reached.*check the network"):
        catalog.resolve("someone/other")
    assert time.monotonic() - began < 2


def test_a_hub_that_never_answers_is_not_waited_for(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farthing.files.hub._ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(DownloadError, match=r"hub cannot be reached.*check the network"):
            catalog.resolve("someone/other")
    assert nothing_left(tmp_path)


def test_a_full_disk_is_seen_before_anything_is_fetched(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(DownloadError, match=r"someone/toy needs .*FARTHING_CACHE"):
        catalog.resolve("someone/toy")
    assert not any("resolve" in request for request in hub.requests)
    assert nothing_left(tmp_path)


def test_removing_what_is_not_there_is_an_error(hub: Hub) -> None:
    with pytest.raises(FarthingError, match="someone/toy is not on disk"):
        catalog.remove("someone/toy")
