"""A model stored again in other formats, whole or not at all.

Tensors are read, encoded and written in pieces, or one by one where a method needs the whole of
one, so a model of any size takes the memory of a few. What changes no matrix (norms, biases) stays
as it is.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from farthing.core import FarthingError
from farthing.files.formats import GGUF_FORMATS
from farthing.files.gguf import GGUFFile
from farthing.files.safetensors import SINGLE
from farthing.files.safetensors_writer import lay_safetensors
from farthing.forge.container import identity, lay_gguf_model, make_folder
from farthing.forge.conversion import conversion_of
from farthing.forge.methods import Method
from farthing.forge.outline import BESIDE, check_name, formats_of, outline
from farthing.forge.output import check_output, check_room
from farthing.forge.patterns import choose
from farthing.forge.preparation import Preparation, changed_form
from farthing.forge.receipt import check_measurable, measured_receipt, put_inside
from farthing.forge.report import QuantizeReport, shares, shares_of
from farthing.forge.unfinished import unfinished
from farthing.forge.write import write_model
from farthing.models.graph import HEAD
from farthing.models.load import load_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from farthing.files.checkpoint import Checkpoint
    from farthing.files.receipt import Receipt
    from farthing.forge.outline import Outline
    from farthing.forge.report import Share
    from farthing.forge.unfinished import Unfinished
    from farthing.forge.wish import Wish

    Progress = Callable[[str, str, float], None]


def quantize(
    checkpoint: Checkpoint,
    out: Path | str,
    wish: Wish,
    *,
    force: bool = False,
    progress: Progress = lambda stage, what, share: None,
) -> QuantizeReport:
    """Writes the model as wished: all of it, or nothing.

    A matrix that has its format already is copied bit for bit. One whose rows are no whole blocks
    of a K-quant gets the format that llama.cpp takes for it. A GGUF file becomes a GGUF file where
    GGUF has all that is written, and so does a folder where `out` ends in .gguf; otherwise `out`
    becomes a folder of safetensors with the source's settings and tokenizer: its files, or a
    description.gguf with its metadata.

    `force` replaces a model at `out`. Where the same call was killed before, it goes on.
    `progress` is told what is done ("calibrate", "write", "measure"), with what, and the share of
    it. Raises `FarthingError`: for a scheme that does not divide a row or cannot hold a weight,
    methods that do not go together or that the model cannot have, an architecture not known here, a
    model or a tokenizer that a GGUF file cannot describe, a place that is taken or cannot be
    written to, a disk or a memory without room.
    """
    wish.check()
    making = _Making(checkpoint, Path(out), wish, progress)
    check_output(making.out, not making.as_gguf, force)
    with unfinished(making.out, {**wish.facts(), **identity(checkpoint)}) as made:
        planned = making.planned()
        resumed = making.write(planned, made)
        report = making.report(planned, resumed)
        if wish.receipt is not None:
            receipt = making.measure(made, report.bits_per_weight)
            put_inside(receipt, made.model)
            report = replace(report, receipt=receipt)
    return report


class _Making:
    """One model on its way. `as_gguf`: into a GGUF file rather than a folder.

    Raises `FarthingError` where the wish does not fit the model or the name.
    """

    def __init__(self, checkpoint: Checkpoint, out: Path, wish: Wish, progress: Progress) -> None:
        _check_source(checkpoint)
        self.out = out
        self._checkpoint, self._wish, self._progress = checkpoint, wish, progress
        self._source = load_model(checkpoint)
        model, folding = changed_form(self._source, wish.methods)
        self._choice = choose(model.program, wish.scheme, wish.keep)
        self._formats, self._fallbacks = formats_of(
            model.program,
            self._choice.schemes,
            {
                name: self._source.formats[folding.made_from.get(name, name)]
                for name in self._choice.schemes
            },
        )
        self.as_gguf = (
            (isinstance(checkpoint, GGUFFile) or out.suffix == ".gguf")
            and Method.STATIC_INPUTS not in wish.methods
            and set(self._formats.values()) <= GGUF_FORMATS.keys()
        )
        check_name(out, checkpoint, self.as_gguf)
        self._model, self._own_head = model, HEAD in folding.made_from
        self._conversion = conversion_of(checkpoint, model, self.as_gguf)
        self._preparation = Preparation(
            model,
            folding,
            self._formats,
            wish.methods,
            wish.calibration,
            lambda share: progress("calibrate", "", share),
        )
        if wish.calibration is not None and not self._preparation.uses_text:
            raise FarthingError(
                "nothing here is calibrated: all matrices of layers are kept, or in formats that "
                "leave nothing to choose; leave the calibration text and the methods that use it "
                "out, or choose other schemes"
            )

    def planned(self) -> Outline:
        """All tensors that will be written. Calibrates where their sizes depend on it."""
        columns = self._preparation.columns()
        planned = outline(
            self._checkpoint,
            self._model,
            self._conversion.destination,
            self._formats,
            edited=self._preparation.edited,
            columns={name: len(found) for name, found in columns.items()},
            static_inputs=self._preparation.static_inputs,
        )
        check_room(self.out, planned.bytes)
        if self._wish.receipt is not None:
            check_measurable(self._wish.receipt, self._checkpoint, planned.bytes)
        return planned

    def write(self, planned: Outline, made: Unfinished) -> int:
        """Writes the model to `made`, and gives the number of tensors that were there already."""
        plans = [job.plan for job in planned.jobs]
        path = made.model
        if self.as_gguf:
            most = next(iter(shares_of(planned, self._formats)[0]))
            with_receipt = self._wish.receipt is not None
            layout = lay_gguf_model(self._conversion.metadata, most, plans, with_receipt)
            made.lay(layout.digest)
        else:
            layout = lay_safetensors(plans)
            made.lay(layout.digest)
            make_folder(path, self._checkpoint, self._own_head)
            path /= SINGLE
        return write_model(
            path,
            layout,
            planned.jobs,
            self._checkpoint,
            self._source,
            self._conversion.destination,
            self._preparation,
            made,
            lambda name, share: self._progress("write", name, share),
        )

    def report(self, planned: Outline, resumed: int) -> QuantizeReport:
        """What is written, not measured yet."""
        matrices, others, beside = shares_of(planned, self._formats)
        tensors = self._checkpoint.tensors
        return QuantizeReport(
            model=self._source.name,
            path=self.out,
            container="gguf" if self.as_gguf else "safetensors",
            source_matrices=self._source_matrices(),
            matrices=matrices,
            others=others,
            beside_bytes=beside,
            source_bytes=sum(tensor.data.nbytes for tensor in tensors.values()),
            bytes=planned.bytes,
            methods=self._wish.methods,
            calibration=self._wish.calibration,
            rules=self._choice.matched,
            fallbacks=self._fallbacks,
            resumed=resumed,
            remarks=self._conversion.remarks,
            receipt=None,
        )

    def measure(self, made: Unfinished, bits_per_weight: float) -> Receipt:
        """The receipt of what has been written."""
        wish = self._wish
        assert wish.receipt is not None
        return measured_receipt(
            wish.receipt,
            made.model,
            self._checkpoint,
            scheme=wish.label,
            methods=[str(method) for method in wish.methods],
            calibration_sha256=None if wish.calibration is None else wish.calibration.sha256,
            bits_per_weight=bits_per_weight,
            progress=lambda phase, share: self._progress("measure", phase, share),
        )

    def _source_matrices(self) -> dict[str, Share]:
        names = [
            self._source.stored[name].name
            for name, weight in self._source.program.weights.items()
            if len(weight.shape) == 2
        ]
        found = [self._checkpoint.tensors[name] for name in names]
        return shares((tensor.format, tensor.shape, tensor.data.nbytes) for tensor in found)


def _check_source(checkpoint: Checkpoint) -> None:
    """Raises `FarthingError` for a model that has more than weights, which would lose the rest."""
    for name in checkpoint.tensors:
        if name.endswith(tuple(f".{part}" for part in BESIDE)):
            raise FarthingError(
                f"the model has been quantised by a method that stores more than weights ({name}): "
                "quantise the model that it was made from"
            )
