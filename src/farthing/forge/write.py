"""A planned model brought into its file, tensor by tensor, past what an earlier run has written."""

from __future__ import annotations

from functools import partial
from itertools import islice
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from farthing.core import FileFormatError
from farthing.files.pages import release_pages
from farthing.files.writing import LaidFile
from farthing.forge.pieces import in_order
from farthing.forge.treatment import tasks
from farthing.plan.machine import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from farthing.core import StoredTensor
    from farthing.files.checkpoint import Checkpoint
    from farthing.files.writing import Layout, TensorPlan
    from farthing.forge.outline import Destination, Job
    from farthing.forge.pieces import Task
    from farthing.forge.preparation import Preparation
    from farthing.forge.unfinished import Unfinished
    from farthing.models.load import Model

_EXPONENTS = {
    "F32": (np.uint32, 0x7F800000),
    "F16": (np.uint16, 0x7C00),
    "BF16": (np.uint16, 0x7F80),
}
"""Of formats without a scale, the bits that are all set in what is no finite number."""


def write_model(
    path: Path,
    layout: Layout,
    jobs: Sequence[Job],
    checkpoint: Checkpoint,
    model: Model,
    destination: Destination,
    preparation: Preparation,
    made: Unfinished,
    progress: Callable[[str, float], None],
) -> int:
    """Writes all of `jobs` to a file of this layout, and gives how many were in it already.

    `model` is the checkpoint's. `progress` is told the name of each tensor that is done, and the
    share of the weights that are. Raises `FarthingError` where a method or a format cannot take a
    weight, or one is no finite number, and `OSError` as writing does.
    """
    with LaidFile(path, layout, go_on=path.exists()) as file:
        done = {
            job
            for job in jobs
            if job.plan.name in made.finished
            and made.finished.get(job.plan.name) == file.digest(job.plan)
        }
        resumed = len(done)
        total = sum(prod(job.plan.shape) for job in jobs)
        share = sum(prod(job.plan.shape) for job in done) / total
        progress("", share)
        for number, portion in enumerate(preparation.portions):
            left = [job for job in jobs if job not in done and _belongs(job, portion, number)]
            if not left:
                continue
            # What one portion was prepared with is gone before the next one is: no name holds it.
            for job in _written(
                left,
                partial(tasks, checkpoint, model, destination, preparation.treatment(number)),
                file,
                made,
            ):
                source = _source_of(job, checkpoint, model)
                if source is not None:
                    release_pages(source.data)
                share += prod(job.plan.shape) / total
                progress(job.plan.name, share)
    return resumed


def _written(
    jobs: Sequence[Job],
    tasks_of: Callable[[Job], list[Task]],
    file: LaidFile,
    made: Unfinished,
) -> Iterator[Job]:
    """Writes tensors in order, and gives each as soon as it stands in its place."""
    lists = [tasks_of(job) for job in jobs]
    results = in_order((task for each in lists for task in each), usable_cores())
    for job, each in zip(jobs, lists, strict=True):
        pieces = map(partial(_finite, job.plan), islice(results, len(each)))
        digest = file.write(job.plan, pieces)
        made.finish_tensor(job.plan.name, digest)
        yield job


def _finite(plan: TensorPlan, piece: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The piece, of which every number is finite. Codes under a scale are where they are made."""
    if plan.format in _EXPONENTS:
        kind, exponent = _EXPONENTS[plan.format]
        if (piece.view(kind) & exponent == exponent).any():
            raise FileFormatError(
                f"the tensor {plan.name} would hold an infinity or a NaN, and no text could come "
                "of it: the source is damaged, or too large for what the method does with it"
            )
    return piece


def _source_of(job: Job, checkpoint: Checkpoint, model: Model) -> StoredTensor | None:
    """What a tensor is made from, if it stands in the source."""
    name = job.plan.name if job.weight is None else model.stored[job.weight].name
    return checkpoint.tensors.get(name)


def _belongs(job: Job, portion: frozenset[str], number: int) -> bool:
    """Whether a tensor is written with a portion: what is no weight, with the first."""
    return number == 0 if job.weight is None else job.weight in portion
