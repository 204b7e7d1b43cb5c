"""A planned model brought into its file, tensor by tensor, past what an earlier run has written."""

from __future__ import annotations

from itertools import islice
from math import prod
from typing import TYPE_CHECKING

from farthing.files.pages import release_pages
from farthing.files.writing import LaidFile
from farthing.forge.pieces import in_order
from farthing.forge.treatment import tasks
from farthing.plan.machine import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from farthing.files.checkpoint import Checkpoint
    from farthing.files.writing import Layout
    from farthing.forge.outline import Job
    from farthing.forge.preparation import Preparation
    from farthing.forge.treatment import Treatment
    from farthing.forge.unfinished import Unfinished
    from farthing.models.load import Model


def write_model(
    path: Path,
    layout: Layout,
    jobs: Sequence[Job],
    checkpoint: Checkpoint,
    model: Model,
    preparation: Preparation,
    made: Unfinished,
    progress: Callable[[str, float], None],
) -> int:
    """Writes all of `jobs` to a file of this layout, and gives how many were in it already.

    `model` is the checkpoint's. `progress` is told the name of each tensor that is done, and the
    share of the weights that are. Raises `FarthingError` where a method or a format cannot take a
    weight, and `OSError` as writing does.
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
            # What one portion was prepared with is gone before the next one is.
            for job in _written(left, preparation.treatment(number), file, checkpoint, model, made):
                share += prod(job.plan.shape) / total
                progress(job.plan.name, share)
    return resumed


def _written(
    jobs: Sequence[Job],
    treatment: Treatment,
    file: LaidFile,
    checkpoint: Checkpoint,
    model: Model,
    made: Unfinished,
) -> Iterator[Job]:
    """Writes tensors in order, and gives each as soon as it stands in its place."""
    lists = [tasks(checkpoint, model, treatment, job) for job in jobs]
    results = in_order((task for each in lists for task in each), usable_cores())
    for job, each in zip(jobs, lists, strict=True):
        digest = file.write(job.plan, islice(results, len(each)))
        made.finish_tensor(job.plan.name, digest)
        source = checkpoint.tensors.get(job.plan.name)
        if source is not None:
            release_pages(source.data)
        yield job


def _belongs(job: Job, portion: frozenset[str], number: int) -> bool:
    """Whether a tensor is written with a portion: what is no weight, with the first."""
    return number == 0 if job.weight is None else job.weight in portion
