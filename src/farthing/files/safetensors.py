"""Folders of safetensors as Hugging Face lays them out, mapped and never copied.

The `safetensors` library reads and validates every header; what it does not offer is a view of
bfloat16 bytes in place, so offsets are derived here from what it guarantees: tensors in the order
of their offsets, without gap or overlap, up to the end of the file.

A tensor in a format that safetensors does not know (INT4_G128, Q8_0, ...) is stored as its rows'
bytes, U8 of shape (outputs, bytes of a row). The file's `__metadata__` says which are: under
`farthing.formats` JSON of the form {tensor: {"format": "INT4_G128", "shape": [outputs, inputs]}},
and `farthing.version`, the version of that description.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from farthing.core import FileFormatError, StoredTensor, UnsupportedModelError
from farthing.files.formats import STORAGE_FORMATS
from farthing.files.gguf import map_file
from farthing.files.json_files import parse_json_object, read_json_object, read_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MAX_HEADER_BYTES = 16 << 20
_MAX_TENSORS = 1 << 16
_MAX_LENGTH = 1 << 31
_INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

FORMATS_KEY = "farthing.formats"
VERSION_KEY = "farthing.version"
VERSION = "1"

ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 1),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}


class SafetensorsFolder:
    """A model folder: its settings as plain dictionaries, and its tensors as bytes in place.

    `config` is config.json; `generation_config`, `tokenizer_config` and `special_tokens_map` are
    empty where the folder has no such file. `tokenizer_path` is tokenizer.json, or None.
    `chat_template` is the template's text, or None. A tensor's `format` is the one that its file
    names for it, else the dtype's name, of which F32, F16 and BF16 are what weights are decoded
    from.
    Raises `FileFormatError` when something is missing or not sound, and `UnsupportedModelError` for
    a dtype whose size is not known here.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise FileFormatError(f"{self.folder} is not a folder")
        if not (self.folder / "config.json").exists():
            raise FileFormatError(
                f"{self.folder} has no config.json: give the folder of a model as Hugging Face "
                "lays it out, or a .gguf file"
            )
        self.config = read_json_object(self.folder / "config.json")
        self.generation_config = self._optional("generation_config.json")
        self.tokenizer_config = self._optional("tokenizer_config.json")
        self.special_tokens_map = self._optional("special_tokens_map.json")
        tokenizer_path = self.folder / "tokenizer.json"
        self.tokenizer_path = tokenizer_path if tokenizer_path.exists() else None
        self.chat_template = self._chat_template()
        self.tensors: Mapping[str, StoredTensor] = open_tensors(self.folder)

    def close(self) -> None:
        """Lets go of the mappings, which end with the last tensor still held by someone."""
        self.tensors = {}

    def __enter__(self) -> SafetensorsFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _optional(self, name: str) -> dict[str, object]:
        path = self.folder / name
        return read_json_object(path) if path.exists() else {}

    def _chat_template(self) -> str | None:
        """A file of its own comes before tokenizer_config.json, as in transformers."""
        jinja = self.folder / "chat_template.jinja"
        if jinja.exists():
            return read_text(jinja)
        where, settings = "chat_template.json", self._optional("chat_template.json")
        if not settings:
            where, settings = "tokenizer_config.json", self.tokenizer_config
        template = settings.get("chat_template")
        if isinstance(template, list):  # several named ones
            named = {each.get("name"): each for each in template if isinstance(each, dict)}
            template = named.get("default", {}).get("template")
        if template is not None and not isinstance(template, str):
            raise FileFormatError(f"{self.folder / where}: chat_template is not a string")
        return template


def open_tensors(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of a folder's model.safetensors, or of the shards that its index lists.

    Raises `FileFormatError` and `UnsupportedModelError` as `SafetensorsFolder` does.
    """
    index = folder / _INDEX
    if not index.exists():
        if not (folder / SINGLE).exists():
            pickles = "; its .bin files are pickles, which farthing does not read: convert them"
            raise FileFormatError(
                f"{folder} has neither {SINGLE} nor {_INDEX}"
                + (pickles if any(folder.glob("*.bin")) else ": fetch the model again")
            )
        return {tensor.name: tensor for tensor in _open_file(folder / SINGLE)}
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise FileFormatError(f"{index} has no weight_map: fetch it again")
    tensors: dict[str, StoredTensor] = {}
    home: dict[str, str] = {}
    for shard in sorted({_shard_name(value, index) for value in weight_map.values()}):
        for tensor in _open_file(folder / shard):
            if tensor.name in tensors:
                raise FileFormatError(
                    f"{folder}: tensor {tensor.name!r:.80} is in {home[tensor.name]} and in "
                    f"{shard}: remove the file that does not belong, or fetch the model again"
                )
            tensors[tensor.name] = tensor
            home[tensor.name] = shard
        if len(tensors) > _MAX_TENSORS:
            raise FileFormatError(f"{folder} holds more than {_MAX_TENSORS} tensors")
    for name, shard in weight_map.items():
        if home.get(name) != shard:
            raise FileFormatError(
                f"{index} places tensor {name!r:.80} in {shard}, which does not hold it: the "
                "shards belong to different models, or one is damaged; fetch them again"
            )
    return tensors


def _shard_name(value: object, index: Path) -> str:
    """The name of a file of this folder: an index may not point anywhere else."""
    if (
        not isinstance(value, str)
        or not value.endswith(".safetensors")
        or Path(value).name != value
    ):
        raise FileFormatError(f"{index} names {value!r:.80} as a shard, which is no file name")
    return value


def _open_file(path: Path) -> Iterator[StoredTensor]:
    from safetensors import SafetensorError, safe_open

    data = map_file(path)
    header_bytes = int.from_bytes(data[:8].tobytes(), "little")
    if len(data) < 8 or header_bytes > len(data) - 8:
        raise FileFormatError(f"{path} is truncated, or is no safetensors file: fetch it again")
    if header_bytes > _MAX_HEADER_BYTES:
        raise FileFormatError(f"{path}: its header claims {header_bytes} bytes: fetch it again")
    try:
        with safe_open(path, "numpy") as library:
            names = library.offset_keys()
            slices = [(name, library.get_slice(name)) for name in names[:_MAX_TENSORS]]
            entries = [(name, each.get_dtype(), tuple(each.get_shape())) for name, each in slices]
            packed = _packed_formats(library.metadata() or {}, path)
    except SafetensorError as error:
        raise FileFormatError(f"{path} is damaged ({error!s:.200}): fetch it again") from error
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error}") from error
    if len(names) > _MAX_TENSORS:
        raise FileFormatError(f"{path} claims {len(names)} tensors, more than any model has")
    start = 8 + header_bytes
    for name, dtype, shape in entries:
        item_bytes = ITEM_BYTES.get(dtype)
        if item_bytes is None:
            raise UnsupportedModelError(
                f"{path}: tensor {name!r:.80} has the dtype {dtype}, which farthing does not read: "
                "use a copy of the model in BF16, F16 or F32"
            )
        end = start + prod(shape) * item_bytes
        if name in packed:
            format_name, shape = _packed(name, dtype, shape, packed.pop(name), path)
        else:
            format_name = dtype
        yield StoredTensor(name, format_name, shape, data[start:end])
        start = end
    if start != len(data):
        raise FileFormatError(f"{path} is {len(data)} bytes and its header describes {start}")
    if packed:
        raise FileFormatError(
            f"{path}: {FORMATS_KEY} describes the tensor {min(packed)!r:.80}, which the file does "
            "not hold: it was put together wrongly, quantise or fetch the model again"
        )


def _packed_formats(metadata: Mapping[str, str], path: Path) -> dict[str, object]:
    """What the file says of its packed tensors, not yet believed."""
    if FORMATS_KEY not in metadata:
        return {}
    version = metadata.get(VERSION_KEY)
    if version != VERSION:
        raise UnsupportedModelError(
            f"{path} holds weights in version {version!r:.20} of farthing's formats, and this "
            f"farthing reads version {VERSION}: use a newer farthing, or quantise the model again"
        )
    return parse_json_object(metadata[FORMATS_KEY], f"{path}: {FORMATS_KEY}")


def _packed(
    name: str, dtype: str, stored: tuple[int, ...], claim: object, path: Path
) -> tuple[str, tuple[int, ...]]:
    """Format and shape of a packed tensor, held against the bytes that are there."""
    where = f"{path}: {FORMATS_KEY}: the tensor {name!r:.80}"
    format_name = claim.get("format") if isinstance(claim, dict) else None
    shape = claim.get("shape") if isinstance(claim, dict) else None
    if not isinstance(format_name, str) or not (
        isinstance(shape, list)
        and len(shape) == 2
        and all(type(length) is int and 0 < length < _MAX_LENGTH for length in shape)
    ):
        raise FileFormatError(
            f"{where} needs a format and a shape of two lengths, not {claim!r:.80}: the file is "
            "damaged, quantise or fetch the model again"
        )
    storage = STORAGE_FORMATS.get(format_name)
    if storage is None:
        raise UnsupportedModelError(
            f"{where} is stored as {format_name!r:.40}, which this farthing does not know: use a "
            "newer farthing, or quantise the model again"
        )
    outputs, inputs = shape
    try:
        needed = (outputs, storage.row_bytes(inputs))
    except UnsupportedModelError as error:
        raise FileFormatError(f"{where}: {error}") from None
    if dtype != "U8" or stored != needed:
        raise FileFormatError(
            f"{where} of shape {(outputs, inputs)} in {format_name} needs U8 of shape {needed} and "
            f"has {dtype} of shape {stored}: the file is damaged, quantise or fetch the model again"
        )
    return format_name, (outputs, inputs)
