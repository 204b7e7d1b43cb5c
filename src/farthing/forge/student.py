"""A student: a model of some of its teacher's layers, as a folder that anything here can load.

It begins with the teacher's weights in float32, whatever these are stored as, and is written again
with its own when they are trained.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import FarthingError, StoredTensor
from farthing.files.formats import stored_bytes
from farthing.files.gguf import GGUFFile
from farthing.files.safetensors import SINGLE
from farthing.files.safetensors_writer import lay_safetensors
from farthing.files.writing import TensorPlan, write_laid
from farthing.forge.container import Part, make_folder
from farthing.forge.outline import BESIDE
from farthing.models.graph import HEAD
from farthing.models.row_order import interleaved
from farthing.models.trimmed_head import TOKEN_IDS
from farthing.quant.formats import decode, encode, format_for_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from farthing.files.checkpoint import Checkpoint
    from farthing.models.load import Model, StoredForm

    Weights = Callable[[str], NDArray[np.float32]]

_LAYER = re.compile(r"layers\.(\d+)\.")


@dataclass(frozen=True)
class StudentShape:
    """What a student is made of: these of its teacher's layers, ascending, and a head.

    `head_tokens` are the tokens that its head has rows for, ascending; None for the teacher's head.
    """

    layers: tuple[int, ...]
    head_tokens: tuple[int, ...] | None = None


def check_teacher(teacher: Model, checkpoint: Checkpoint) -> None:
    """Raises `FarthingError` for a model whose weights alone do not say what it computes."""
    beside = (*BESIDE, TOKEN_IDS)
    for name in checkpoint.tensors:
        if name.endswith(tuple(f".{part}" for part in beside)):
            raise FarthingError(
                f"{teacher.name} stores more than weights ({name}): it was distilled or quantised "
                "by a method itself; take the model that it was made from as the teacher"
            )


def spread_layers(count: int, total: int) -> tuple[int, ...]:
    """`count` of `total` layers, evenly spread from the first to the last."""
    if count == 1:
        return (0,)
    return tuple(round(at * (total - 1) / (count - 1)) for at in range(count))


def weights_of_teacher(teacher: Model, shape: StudentShape) -> Weights:
    """What gives a student's weights by their names in its Program: the teacher's, in float32."""

    def weight(name: str) -> NDArray[np.float32]:
        found = _LAYER.match(name)
        if found is not None:
            source = f"layers.{shape.layers[int(found[1])]}.{name[found.end() :]}"
            return decode(teacher.tensors[source])
        if name == HEAD:
            head = HEAD if HEAD in teacher.tensors else "embedding.weight"
            numbers = decode(teacher.tensors[head])
            return numbers if shape.head_tokens is None else numbers[list(shape.head_tokens)]
        return decode(teacher.tensors[name])

    return weight


def write_student(
    folder: Path,
    checkpoint: Checkpoint,
    teacher: Model,
    shape: StudentShape,
    weights: Weights,
    name: str,
    scheme: str = "F32",
) -> None:
    """Makes `folder`, an ordinary model: settings, tokenizer, and the weights with matrices in
    `scheme`. `name` is what it says that it is called, where its kind of folder says so.

    Raises `FarthingError` for a scheme that cannot store them, and `OSError` as writing does.
    """
    own_head = shape.head_tokens is not None and teacher.config.tied
    make_folder(folder, checkpoint, own_head, Part(shape.layers, name))
    shapes = _shapes(teacher, shape)
    by_tensor: dict[TensorPlan, str] = {}
    for name, each in shapes.items():
        format_name = format_for_rows(scheme, each[-1]) if len(each) == 2 else "F32"
        stored = teacher.stored[name].name
        plan = TensorPlan(stored, format_name, each, stored_bytes(format_name, each))
        by_tensor[plan] = name
    plans = [*by_tensor]
    kept = {
        TensorPlan(tensor.name, tensor.format, tensor.shape, tensor.data.nbytes): tensor.data
        for tensor in _settings(checkpoint, teacher)
    }
    plans += kept
    token_ids = np.array(shape.head_tokens or (), "<i4")
    if shape.head_tokens is not None:
        name = f"{teacher.stored[HEAD].name}.{TOKEN_IDS}"
        plans.append(TensorPlan(name, "I32", token_ids.shape, token_ids.nbytes))

    def pieces(plan: TensorPlan) -> list[NDArray[np.uint8]]:
        if plan in kept:
            return [kept[plan]]
        if plan not in by_tensor:
            return [token_ids.view(np.uint8)]
        name = by_tensor[plan]
        return [_stored(plan, weights(name), teacher.stored[name])]

    write_laid(folder / SINGLE, lay_safetensors(plans), pieces)


def _settings(checkpoint: Checkpoint, teacher: Model) -> list[StoredTensor]:
    """Tensors that are no weights and say how to compute: in a GGUF the divisors of frequencies.

    All of a GGUF belongs to the model, where a folder's other tensors have no use.
    """
    if not isinstance(checkpoint, GGUFFile):
        return []
    weights = {form.name for form in teacher.stored.values()}
    return [tensor for name, tensor in checkpoint.tensors.items() if name not in weights]


def _shapes(teacher: Model, shape: StudentShape) -> dict[str, tuple[int, ...]]:
    """The student's weights by their names in its Program."""
    found: dict[str, tuple[int, ...]] = {}
    for name, weight in teacher.program.weights.items():
        layer = _LAYER.match(name)
        if layer is None or int(layer[1]) < len(shape.layers):
            found[name] = weight.shape
    if shape.head_tokens is not None:
        found[HEAD] = len(shape.head_tokens), teacher.config.hidden_size
    return found


def _stored(plan: TensorPlan, numbers: NDArray[np.float32], form: StoredForm) -> NDArray[np.uint8]:
    """The bytes of a weight as the checkpoint holds it."""
    data = encode(numbers - np.float32(form.offset), plan.format)
    return interleaved(StoredTensor(plan.name, plan.format, plan.shape, data), form.heads).data
