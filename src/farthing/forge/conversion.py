"""What a source becomes besides its weights: its own kind again, or a folder a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from farthing.files.gguf import GGUFFile
from farthing.forge.container import licences, metadata_fields
from farthing.forge.outline import Destination
from farthing.models.gguf_form import gguf_form
from farthing.text.gguf_export import gguf_tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from farthing.files.checkpoint import Checkpoint
    from farthing.models.load import Model


@dataclass(frozen=True)
class Conversion:
    """How the result holds what the source does.

    `metadata` are the records of a GGUF file, none for a folder; `remarks` are sentences on what a
    GGUF file cannot say, which change no model.
    """

    destination: Destination
    metadata: Mapping[str, bytes] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def conversion_of(source: Checkpoint, model: Model, as_gguf: bool) -> Conversion:
    """How `model`, as it will be written, is held by a GGUF file or a folder.

    Raises `UnsupportedModelError` for what a GGUF file has no way to say of a folder, and
    `FileFormatError` where its tokenizer is damaged.
    """
    same = Destination(model.stored)
    if not as_gguf:
        return Conversion(same)
    if isinstance(source, GGUFFile):
        return Conversion(same, metadata_fields(source))
    form = gguf_form(model, source.folder)
    tokenizer = gguf_tokenizer(source, model.config.vocabulary_size)
    added = {} if form.divisors is None else {form.divisors.name: form.divisors}
    remarks = (*form.remarks, *tokenizer.remarks)
    names = ", ".join(licences(source.folder))
    if names:
        remarks += (f"a GGUF file has no place for {names}: keep what the folder has beside it",)
    return Conversion(
        Destination(form.forms, converted=True, added=added),
        {**form.settings, **tokenizer.fields},
        remarks,
    )
