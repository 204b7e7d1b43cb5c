"""The model of a plan, as its headers describe it: a file or folder here, or a hub's."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farthing.cli.progress import terminal_progress
from farthing.core import FarthingError
from farthing.files.catalog import resolve
from farthing.files.checkpoint import open_checkpoint
from farthing.files.hub_headers import headers, remote_id
from farthing.files.receipt import stored_receipt
from farthing.models.load import load_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from farthing.files.receipt import Receipt
    from farthing.models.load import Model


@dataclass(frozen=True)
class Described:
    """A model whose weights need not be here; `bytes` is what its weights' files have.

    `path` is where all of it is, None where only headers are. `receipt` is what lies with it, or
    why that is none: not held against the weights, which are not read.
    """

    model: Model
    where: str
    bytes: int
    path: Path | None
    receipt: Receipt | str | None


@contextmanager
def described(model: str, *, quiet: bool) -> Iterator[Described]:
    """The model that a person means, for planning only.

    A hub's model that is not on disk is described by its headers; one of the catalog is fetched.
    Raises what `resolve`, `open_checkpoint` and `load_model` raise.
    """
    hub_id = remote_id(model)
    if hub_id is None:
        with terminal_progress(quiet=quiet) as progress:
            path = resolve(model, progress)
        yield _read(path, str(path), path)
        return
    with headers(hub_id) as found:
        yield _read(found.path, found.source, None)


def _read(path: Path, where: str, whole: Path | None) -> Described:
    with open_checkpoint(path) as checkpoint:
        loaded = load_model(checkpoint)
        size = sum(tensor.data.nbytes for tensor in checkpoint.tensors.values())
        try:
            receipt: Receipt | str | None = stored_receipt(checkpoint)
        except FarthingError as error:
            receipt = str(error)
        return Described(loaded, where, size, whole, receipt)
