"""A model stored again in another format: the plain form, one scheme for all matrices.

Tensors are read, encoded and written in pieces, so a model of any size takes little memory.
Vectors (norms, biases) stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from farthing.core import FarthingError, UnsupportedModelError
from farthing.files.formats import GGUF_FORMATS, stored_bytes
from farthing.files.gguf import GGUFFile
from farthing.files.writing import TensorPlan
from farthing.forge.container import write_folder_model, write_gguf_model
from farthing.forge.output import check_output, check_room, written_whole
from farthing.forge.pieces import EncodedPieces
from farthing.models.load import load_model
from farthing.quant.formats import WRITABLE_FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from farthing.core import StoredTensor
    from farthing.files.checkpoint import Checkpoint
    from farthing.models.load import Model

KEEP = "keep"
"""In place of a scheme: as the tensor stands in the source."""


@dataclass(frozen=True)
class Share:
    """Tensors of one format: how many, their weights, and the bytes these take."""

    tensors: int
    weights: int
    bytes: int

    @property
    def bits_per_weight(self) -> float:
        """Stored bits for one weight, scales and zeros included."""
        return 8 * self.bytes / self.weights


@dataclass(frozen=True)
class QuantizeReport:
    """What was written.

    `container` is "gguf" or "safetensors". `source_matrices` and `matrices` are the model's
    matrices by format, before and after, and `others` what was kept besides them; `source_bytes`
    and `bytes` count all tensors.
    """

    model: str
    path: Path
    container: str
    source_matrices: Mapping[str, Share]
    matrices: Mapping[str, Share]
    others: Mapping[str, Share]
    source_bytes: int
    bytes: int

    @property
    def source_bits_per_weight(self) -> float:
        """Over all matrices of the source: its native precision."""
        return _bits_per_weight(self.source_matrices.values())

    @property
    def bits_per_weight(self) -> float:
        """Over all matrices of the result."""
        return _bits_per_weight(self.matrices.values())

    @property
    def source_was_rounded(self) -> bool:
        """Whether the source holds a matrix in fewer than 16 bits a weight."""
        return any(share.bits_per_weight < 16 for share in self.source_matrices.values())


def quantize(
    checkpoint: Checkpoint,
    out: Path | str,
    scheme: str,
    *,
    embedding: str | None = None,
    force: bool = False,
    progress: Callable[[str, float], None] | None = None,
) -> QuantizeReport:
    """Writes the model with every matrix in the format `scheme`: all of it, or nothing.

    `embedding` is another format for the embedding (and the head, where that is a matrix of its
    own), or "keep". A matrix that has its format already is copied bit for bit. A GGUF file becomes
    a GGUF file where GGUF has the formats; otherwise `out` becomes a folder of safetensors with the
    source's settings and tokenizer: its files, or a description.gguf with its metadata.
    `force` replaces a model at `out`. `progress` is told a tensor's name and the share of the work
    that is done.
    Raises `FarthingError`: for a scheme that cannot be written, does not divide a row or cannot
    hold a weight, an architecture not known here, a place that is taken or cannot be written to, a
    disk without room.
    """
    out = Path(out)
    _check_scheme(scheme, WRITABLE_FORMATS)
    _check_scheme(scheme if embedding is None else embedding, (*WRITABLE_FORMATS, KEEP))
    model = load_model(checkpoint)
    wanted = _wanted_formats(model, scheme, scheme if embedding is None else embedding)
    sources = {
        name: tensor
        for name, tensor in checkpoint.tensors.items()
        if not _is_second_copy(tensor, model, wanted)
    }
    plans = [_plan(tensor, wanted.get(name, KEEP)) for name, tensor in sources.items()]
    as_gguf = isinstance(checkpoint, GGUFFile) and all(p.format in GGUF_FORMATS for p in plans)
    _check_name(out, checkpoint, as_gguf)
    check_output(out, not as_gguf, force)
    size = sum(plan.bytes for plan in plans)
    check_room(out, size)
    pieces = EncodedPieces(sources, progress)
    with written_whole(out) as partial:
        if isinstance(checkpoint, GGUFFile) and as_gguf:
            write_gguf_model(partial, checkpoint, scheme, plans, pieces)
        else:
            write_folder_model(partial, checkpoint, plans, pieces)
    return QuantizeReport(
        model=model.name,
        path=out,
        container="gguf" if as_gguf else "safetensors",
        source_matrices=_shares(
            (tensor.format, tensor.shape, tensor.data.nbytes)
            for name, tensor in sources.items()
            if name in wanted
        ),
        matrices=_shares((p.format, p.shape, p.bytes) for p in plans if p.name in wanted),
        others=_shares((p.format, p.shape, p.bytes) for p in plans if p.name not in wanted),
        source_bytes=sum(tensor.data.nbytes for tensor in checkpoint.tensors.values()),
        bytes=size,
    )


def _check_scheme(scheme: str, known: Sequence[str]) -> None:
    if scheme not in known:
        raise UnsupportedModelError(
            f"no scheme that can be written is called {scheme!r:.40}; there are {', '.join(known)}"
        )


def _wanted_formats(model: Model, scheme: str, embedding: str) -> dict[str, str]:
    """What each matrix of the model is to be stored as, under the file's names."""
    wide = {op.weights[0] for op in model.program.ops if op.kind in ("embed", "logits")}
    return {
        model.tensors[name].name: embedding if name in wide else scheme
        for name, weight in model.program.weights.items()
        if len(weight.shape) == 2
    }


def _is_second_copy(tensor: StoredTensor, model: Model, wanted: Mapping[str, str]) -> bool:
    """Whether this is the embedding again: some checkpoints store a head that is tied to it."""
    is_head = tensor.name.endswith("lm_head.weight")
    return is_head and model.config.tied and tensor.name not in wanted


def _plan(tensor: StoredTensor, wanted: str) -> TensorPlan:
    if wanted == KEEP:
        return TensorPlan(tensor.name, tensor.format, tensor.shape, tensor.data.nbytes)
    try:
        size = stored_bytes(wanted, tensor.shape)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"the tensor {tensor.name}: {error}") from None
    return TensorPlan(tensor.name, wanted, tensor.shape, size)


def _check_name(out: Path, checkpoint: Checkpoint, as_gguf: bool) -> None:
    """Raises `FarthingError` for a name that belies what is written, or is the source's own."""
    if as_gguf and out.suffix != ".gguf":
        raise FarthingError(f"the result is a GGUF file: call it {out.name}.gguf")
    if not as_gguf and out.suffix == ".gguf":
        raise FarthingError(
            f"the result is a folder of safetensors, since GGUF does not have all of its formats: "
            f"call it {out.stem}"
        )
    if isinstance(checkpoint, GGUFFile):
        # A description.gguf has its tensors beside it, in its folder.
        taken = [*checkpoint.paths, checkpoint.path.parent]
    else:
        taken = [checkpoint.folder]
    if out.resolve() in [path.resolve() for path in taken]:
        raise FarthingError(f"{out} is the model that is being read: choose another name")


def _shares(stored: Iterable[tuple[str, tuple[int, ...], int]]) -> dict[str, Share]:
    """By format, the commonest first."""
    shares: dict[str, Share] = {}
    for format_name, shape, size in stored:
        share = shares.get(format_name, Share(0, 0, 0))
        shares[format_name] = Share(
            share.tensors + 1, share.weights + prod(shape), share.bytes + size
        )
    return dict(sorted(shares.items(), key=lambda item: -item[1].weights))


def _bits_per_weight(shares: Iterable[Share]) -> float:
    everything = list(shares)
    return 8 * sum(each.bytes for each in everything) / sum(each.weights for each in everything)
