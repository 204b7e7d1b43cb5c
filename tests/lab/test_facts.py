from __future__ import annotations

import hashlib
import subprocess
from typing import TYPE_CHECKING

from farthing.lab.facts import machine, model_files, model_hash

if TYPE_CHECKING:
    from pathlib import Path


def test_a_files_hash_is_its_sha256(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"x" * 3_000_000)
    assert model_hash(path) == hashlib.sha256(b"x" * 3_000_000).hexdigest()


def test_a_folders_hash_is_that_of_sha256sums_listing(tmp_path: Path) -> None:
    names = ["chat_template.jinja", "config.json", "description.gguf", "model.safetensors"]
    for name in (*names, "notes.md", "another.gguf"):
        (tmp_path / name).write_text(name)
    listing = subprocess.run(
        ["sha256sum", *names], cwd=tmp_path, capture_output=True, check=True
    ).stdout
    assert model_hash(tmp_path) == hashlib.sha256(listing).hexdigest()
    (tmp_path / "notes.md").write_text("other notes")
    assert model_hash(tmp_path) == hashlib.sha256(listing).hexdigest()
    (tmp_path / "config.json").write_text("other settings")
    assert model_hash(tmp_path) != hashlib.sha256(listing).hexdigest()


def test_what_quantising_cost_is_no_part_of_a_models_hash(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    before = model_hash(tmp_path)
    (tmp_path / "farthing_receipt.json").write_text('{"measured": "again"}')
    assert model_hash(tmp_path) == before


def test_all_shards_of_a_split_model_count(tmp_path: Path) -> None:
    shards = [tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    for shard in shards:
        shard.write_bytes(shard.name.encode())
    assert model_files(shards[1]) == shards
    assert model_hash(shards[0]) == model_hash(shards[1])


def test_the_machine_is_described() -> None:
    found = machine()
    assert found["processor"]
    assert found["cores"] >= 1
    assert found["memory_bytes"] > 1 << 28
