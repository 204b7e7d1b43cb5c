"""From an opened checkpoint to a Model: its configuration, its Program and its stored tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from farthing.core import FileFormatError, StoredTensor, UnsupportedModelError
from farthing.files.checkpoint import Checkpoint
from farthing.files.gguf import GGUFFile
from farthing.files.safetensors import SafetensorsFolder

# Importing an architecture's file registers it.
from farthing.models import gemma3, llama, qwen2, qwen3  # noqa: F401
from farthing.models.config import ModelConfig, read_config
from farthing.models.fields import Fields
from farthing.models.program import Program
from farthing.models.registry import (
    GGUF,
    SAFETENSORS,
    Architecture,
    for_gguf,
    for_model_type,
    template_of,
)
from farthing.models.remedies import outlier_weights_of, take_remedies, with_remedies
from farthing.models.row_order import half_split
from farthing.models.trimmed_head import take_head_tokens, with_head_over
from farthing.quant.formats import FORMATS, decode

# Names that transformers gave to the text part of models that also see.
_TEXT_PREFIXES = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)
_TEXT_TENSOR = re.compile(r"(model\.(layers|norm|embed_tokens)|lm_head)\.")
# Tables of sines that old checkpoints stored; they follow from the configuration.
_DERIVED = re.compile(r".*\.rotary_emb\.inv_freq")


class WeightTensors(Mapping[str, StoredTensor]):
    """The Program's weights as stored tensors, in the form that the Program's operations use.

    A matrix is a view of the file's bytes, or, where its rows must be reordered, a copy made at
    each access and owned by the caller; a vector is float32. Raises `FileFormatError` for a vector
    that is not finite.
    """

    def __init__(self, makers: Mapping[str, Callable[[], StoredTensor]]) -> None:
        self._makers = makers

    def __getitem__(self, name: str) -> StoredTensor:
        return self._makers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


@dataclass(frozen=True)
class StoredForm:
    """How the checkpoint holds a weight: under which name, and what the Program's form changes.

    `heads`: rows lie in llama.cpp's order, which `half_split` undoes; 0: as in the Program.
    `offset`: what the Program's gain has above the stored one.
    """

    name: str
    heads: int = 0
    offset: float = 0.0


@dataclass(frozen=True)
class Model:
    """A model ready for a backend. `tensors` has exactly the Program's weights.

    `formats` are their storage formats, known without touching the data, and `stored` how the
    checkpoint holds them; also, where the embedding is the head, how it would hold a head of its
    own. `unused` are tensors of the file that the text model has no use for. Its tokenizer has
    `merges` merges, or about as many: of a folder, whose tokenizer is not read, one an entry.
    """

    name: str
    config: ModelConfig
    program: Program
    tensors: Mapping[str, StoredTensor]
    formats: Mapping[str, str]
    stored: Mapping[str, StoredForm]
    unused: tuple[str, ...]
    merges: int = 0


@dataclass(frozen=True)
class _Source:
    """A checkpoint's description understood, and its tensors under the names of its form.

    `form` is `GGUF` or `SAFETENSORS`.
    """

    name: str
    where: str
    form: int
    architecture: Architecture
    config: ModelConfig
    stored: dict[str, StoredTensor]
    merges: int


def load_model(checkpoint: Checkpoint) -> Model:
    """Builds the Program of a checkpoint and finds its weights; decodes no matrix.

    Raises `UnsupportedModelError` for an architecture, feature or storage format not known here,
    and for tensors that the architecture does not have; `FileFormatError` for a missing tensor, a
    wrong shape or a bad field.
    """
    source = _of_gguf(checkpoint) if isinstance(checkpoint, GGUFFile) else _of_folder(checkpoint)
    program = source.architecture.build(source.config)
    head = f"{source.architecture.modules['head'][source.form]}.weight"
    head_tokens = take_head_tokens(program, head, source.stored, source.where)
    if head_tokens is not None:
        program = with_head_over(program, head_tokens)
    makers: dict[str, Callable[[], StoredTensor]] = {}
    formats: dict[str, str] = {}
    forms: dict[str, StoredForm] = {}
    for name, weight in program.weights.items():
        file_name = source.architecture.stored_name(name, source.form)
        tensor = _take(source, file_name, weight.shape)
        form = stored_form(source.architecture, source.form, source.config, name)
        # A model that also sees has names of its own.
        forms[name] = replace(form, name=tensor.name)
        makers[name] = _maker(forms[name], tensor, source.where)
        formats[name] = tensor.format if len(tensor.shape) == 2 else "F32"
    forms.setdefault("head.weight", StoredForm(head))
    stored_names = {name: form.name for name, form in forms.items()}
    remedies = take_remedies(program, stored_names, source.stored, source.where)
    for name, remedy in remedies.items():
        if remedy.outlier_weights is not None:
            # Its rows lie in the order of the matrix that it belongs to.
            apart, form = outlier_weights_of(name), forms[name]
            forms[apart] = StoredForm(remedy.outlier_weights.name, form.heads)
            makers[apart] = _maker(forms[apart], remedy.outlier_weights, source.where)
            formats[apart] = remedy.outlier_weights.format
    return Model(
        source.name,
        source.config,
        with_remedies(program, remedies),
        WeightTensors(makers),
        MappingProxyType(formats),
        MappingProxyType(forms),
        _unused(source),
        source.merges,
    )


def _of_gguf(checkpoint: GGUFFile) -> _Source:
    where = str(checkpoint.path)
    metadata = Fields(checkpoint.metadata, where, "")
    family = metadata.text("general.architecture", None, "")
    architecture = for_gguf(family, where)
    fields = Fields(checkpoint.metadata, where, f"{family}.")
    stored = dict(checkpoint.tensors)
    config = configured(architecture, fields, stored)
    # Reading the configuration has used it.
    stored.pop("rope_freqs.weight", None)
    name = metadata.text("general.name", None, checkpoint.path.stem)
    merges = checkpoint.metadata.get("tokenizer.ggml.merges")
    count = len(merges) if isinstance(merges, Sequence) else 0
    return _Source(name, where, GGUF, architecture, config, stored, count)


def _of_folder(checkpoint: SafetensorsFolder) -> _Source:
    where = str(checkpoint.folder / "config.json")
    top = Fields(checkpoint.config, where)
    architecture = for_model_type(top.text(None, "model_type", ""), where)
    # A model that also sees keeps what describes its text part in a section.
    text = top.section("text_config")
    fields = Fields({**architecture.defaults, **top.source, **(text.source if text else {})}, where)
    stored = {_text_name(name): tensor for name, tensor in checkpoint.tensors.items()}
    config = configured(architecture, fields, stored)
    if config.tied:
        # Some checkpoints store the embedding a second time.
        stored.pop("lm_head.weight", None)
    name = checkpoint.folder.resolve().name
    where = str(checkpoint.folder)
    return _Source(name, where, SAFETENSORS, architecture, config, stored, config.vocabulary_size)


def configured(
    architecture: Architecture, fields: Fields, stored: Mapping[str, StoredTensor]
) -> ModelConfig:
    """The configuration that `fields` and the tensors of a checkpoint describe.

    Raises `FileFormatError` for a bad field and `UnsupportedModelError` for a feature not known.
    """
    config = read_config(architecture.name, architecture.activation, fields, stored)
    return architecture.configure(config, fields)


def _text_name(name: str) -> str:
    """The name that a text-only checkpoint gives to the tensor."""
    for prefix, plain in _TEXT_PREFIXES:
        if name.startswith(prefix):
            return plain + name.removeprefix(prefix)
    return name


def _take(source: _Source, name: str, shape: tuple[int, ...]) -> StoredTensor:
    """Removes the tensor from the source, checked against what the Program needs."""
    tensor = source.stored.pop(name, None)
    if tensor is None:
        raise FileFormatError(
            f"{source.where}: the tensor {name} is missing; the file is incomplete, or its "
            "description does not fit it: fetch it again"
        )
    if tensor.shape != shape:
        raise FileFormatError(
            f"{source.where}: the tensor {name} has shape {tensor.shape}, but the model's "
            f"description asks for {shape}"
        )
    if tensor.format not in FORMATS:
        raise UnsupportedModelError(
            f"{source.where}: the tensor {name} is stored as {tensor.format}, which farthing "
            f"cannot read: use a file in one of {', '.join(FORMATS)}"
        )
    return tensor


def stored_form(
    architecture: Architecture, form: int, config: ModelConfig, weight: str
) -> StoredForm:
    """How a checkpoint of a form (`GGUF` or `SAFETENSORS`) holds one of the Program's weights."""
    template = template_of(weight)
    heads = 0
    if form == GGUF and template in architecture.interleaved:
        heads = config.heads if template.endswith("query") else config.kv_heads
    offset = 0.0
    if form == SAFETENSORS and template.endswith("norm"):
        offset = architecture.gain_offset
    return StoredForm(architecture.stored_name(weight, form), heads, offset)


def _maker(form: StoredForm, tensor: StoredTensor, where: str) -> Callable[[], StoredTensor]:
    """What gives the tensor in the Program's form when it is asked for."""
    if len(tensor.shape) == 1:
        return lambda: half_split(_float32(tensor, form.offset, where), form.heads)
    return lambda: half_split(tensor, form.heads)


def _float32(tensor: StoredTensor, offset: float, where: str) -> StoredTensor:
    """A vector in float32, `offset` added to every entry; the file is `where`."""
    numbers = decode(tensor)
    if not np.isfinite(numbers).all():
        raise FileFormatError(
            f"{where}: the tensor {tensor.name} holds numbers that are not finite; the file is "
            "damaged: fetch it again"
        )
    numbers = numbers + np.float32(offset)
    return StoredTensor(tensor.name, "F32", tensor.shape, numbers.view(np.uint8))


def _unused(source: _Source) -> tuple[str, ...]:
    """What the Program did not take; raises `UnsupportedModelError` where it would matter.

    Everything in a GGUF belongs to the text model. A folder may hold an encoder of images too.
    """
    unused = tuple(name for name in source.stored if not _DERIVED.fullmatch(name))
    matter = [name for name in unused if source.form == GGUF or _TEXT_TENSOR.match(name)]
    if matter:
        raise UnsupportedModelError(
            f"{source.where}: the tensor {matter[0]!r:.80} is not a part of the "
            f"{source.architecture.name} architecture as known here ({len(matter)} such); "
            "computing without it would change the model's answers"
        )
    return unused
