"""What a quantised model will consist of: every tensor with its format, before any is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from farthing.core import FarthingError, UnsupportedModelError
from farthing.files.catalog import known_name
from farthing.files.formats import format_for, stored_bytes
from farthing.files.gguf import GGUFFile
from farthing.files.writing import TensorPlan
from farthing.forge.patterns import short_name
from farthing.forge.schemes import KEEP
from farthing.models.remedies import INPUT_SCALE, OUTLIER_COLUMNS, OUTLIER_WEIGHTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from farthing.core import StoredTensor
    from farthing.files.checkpoint import Checkpoint
    from farthing.models.load import Model, StoredForm
    from farthing.models.program import Program

BESIDE = (INPUT_SCALE, OUTLIER_COLUMNS, OUTLIER_WEIGHTS)
"""What can stand beside a matrix: tensors with its name and one of these after a point."""


@dataclass(frozen=True)
class Job:
    """A tensor to be written: of the Program's weight `weight`, or of nothing that the model reads.

    `part` is empty for the weight itself, else what stands beside it: `INPUT_SCALE`,
    `OUTLIER_COLUMNS` or `OUTLIER_WEIGHTS`.
    """

    plan: TensorPlan
    weight: str | None = None
    part: str = ""


@dataclass(frozen=True)
class Destination:
    """How the result holds each of the Program's weights, and what else it has.

    `converted`: it is of another kind than the source, and has nothing of it but weights, with
    vectors in float32. `added` are tensors that the source does not have, by name.
    """

    forms: Mapping[str, StoredForm]
    converted: bool = False
    added: Mapping[str, StoredTensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Outline:
    """All tensors, in file order."""

    jobs: tuple[Job, ...]

    @property
    def bytes(self) -> int:
        """Of all tensors."""
        return sum(job.plan.bytes for job in self.jobs)


def formats_of(
    program: Program, schemes: Mapping[str, str], kept: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The format of each matrix for the scheme it is to have, and the names of the fallbacks.

    `kept` are the formats of those that are to stay as they are. Raises `UnsupportedModelError`
    for rows that a scheme does not divide.
    """
    formats: dict[str, str] = {}
    fallbacks: list[str] = []
    for name, scheme in schemes.items():
        if scheme == KEEP:
            formats[name] = kept[name]
            continue
        shape = program.weights[name].shape
        stored = format_for(scheme, shape[1])
        if stored != scheme:
            fallbacks.append(name)
        try:
            stored_bytes(stored, shape)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"the matrix {short_name(name)}: {error}") from None
        formats[name] = stored
    return formats, tuple(fallbacks)


def outline(
    checkpoint: Checkpoint,
    model: Model,
    destination: Destination,
    formats: Mapping[str, str],
    *,
    edited: frozenset[str],
    columns: Mapping[str, int],
    static_inputs: frozenset[str],
) -> Outline:
    """Every tensor to be written.

    `edited` are the weights that are not the source's any more: vectors among them become F32, and
    one that the checkpoint has no tensor for is added. `columns` are the counts of outlier columns
    of matrices that have them, `static_inputs` the matrices whose inputs have one scale.
    """
    by_tensor = {model.stored[name].name: name for name in model.program.weights}
    jobs = [Job(_as_it_is(tensor)) for tensor in destination.added.values()]
    for name, tensor in checkpoint.tensors.items():
        weight = by_tensor.pop(name, None)
        if weight is None:
            if not destination.converted and not _is_second_copy(tensor, model):
                jobs.append(Job(_as_it_is(tensor)))
            continue
        jobs += _of_weight(tensor, weight, destination, formats, edited, columns, static_inputs)
    for weight in by_tensor.values():
        name = destination.forms[weight].name
        plan = _plan(name, formats[weight], model.program.weights[weight].shape)
        jobs.append(Job(plan, weight))
    return Outline(tuple(jobs))


def check_name(out: Path, checkpoint: Checkpoint, as_gguf: bool) -> None:
    """Raises `FarthingError` for a name that belies what is written, is the source's own, or is the
    name that another model is already known by: a path comes before a name, and would hide it.
    """
    if as_gguf and out.suffix != ".gguf":
        raise FarthingError(f"the result is a GGUF file: call it {out.name}.gguf")
    if not as_gguf and out.suffix == ".gguf":
        raise FarthingError(
            "the result is a folder of safetensors, since GGUF does not have all that it holds: "
            f"call it {out.stem}"
        )
    known = known_name(out)
    if known is not None:
        raise FarthingError(
            f"{known} is the name of a model, which {out} would hide: choose another name"
        )
    if isinstance(checkpoint, GGUFFile):
        # A description.gguf has its tensors beside it, in its folder.
        taken = [*checkpoint.paths, checkpoint.path.parent]
    else:
        taken = [checkpoint.folder]
    try:
        itself = out.resolve() in [path.resolve() for path in taken]
    except (OSError, RuntimeError) as error:  # the latter for links in a circle, before Python 3.13
        raise FarthingError(f"{out} leads nowhere ({error!s:.100}): choose another name") from error
    if itself:
        raise FarthingError(f"{out} is the model that is being read: choose another name")


def _of_weight(
    tensor: StoredTensor,
    weight: str,
    destination: Destination,
    formats: Mapping[str, str],
    edited: frozenset[str],
    columns: Mapping[str, int],
    static_inputs: frozenset[str],
) -> Iterator[Job]:
    name = destination.forms[weight].name
    if weight not in formats:
        changed = weight in edited or destination.converted
        yield Job(_plan(name, "F32", tensor.shape) if changed else _as_it_is(tensor), weight)
        return
    yield Job(_plan(name, formats[weight], tensor.shape), weight)
    if weight in static_inputs:
        yield Job(_plan(f"{name}.{INPUT_SCALE}", "F32", (1,)), weight, INPUT_SCALE)
    count = columns.get(weight, 0)
    if count:
        yield Job(_plan(f"{name}.{OUTLIER_COLUMNS}", "I32", (count,)), weight, OUTLIER_COLUMNS)
        shape = (tensor.shape[0], count)
        yield Job(_plan(f"{name}.{OUTLIER_WEIGHTS}", "BF16", shape), weight, OUTLIER_WEIGHTS)


def _as_it_is(tensor: StoredTensor) -> TensorPlan:
    return TensorPlan(tensor.name, tensor.format, tensor.shape, tensor.data.nbytes)


def _plan(name: str, format_name: str, shape: tuple[int, ...]) -> TensorPlan:
    return TensorPlan(name, format_name, shape, stored_bytes(format_name, shape))


def _is_second_copy(tensor: StoredTensor, model: Model) -> bool:
    """Whether this is the embedding again: some checkpoints store a head that is tied to it."""
    return tensor.name.endswith("lm_head.weight") and model.config.tied
