"""A long text is encoded beside everything else, and to the same ids."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farthing.text.byte_level import ids_of
from text.json_folders import KINDS, description_of, load_folder, write_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from farthing.text import Tokenizer

LONG = "The quick brown fox, 12 lazy dogs.\n" * 20_000


@pytest.fixture(params=["smollm2", "gemma3", *sorted(KINDS)])
def any_tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    if request.param not in KINDS:
        return request.getfixturevalue(f"{request.param}_tokenizer")
    folder = write_folder(tmp_path_factory.mktemp("folder"), description_of(request.param))
    return load_folder(folder)


def longest_silence(work: Callable[[], Any]) -> tuple[float, float]:
    """For how long at most another thread did not run meanwhile, and how long it all took."""
    done = threading.Event()
    times: list[float] = []

    def tick() -> None:
        while not done.is_set():
            times.append(time.perf_counter())
            time.sleep(0.001)

    other = threading.Thread(target=tick)
    other.start()
    began = time.perf_counter()
    work()
    ended = time.perf_counter()
    done.set()
    other.join()
    moments = [began, *(each for each in times if began < each < ended), ended]
    return max(b - a for a, b in pairwise(moments)), ended - began


def test_other_threads_run_while_a_long_text_is_encoded(any_tokenizer: Tokenizer) -> None:
    # A busy machine makes any single try look bad.
    tries = [longest_silence(lambda: any_tokenizer.encode(LONG)) for _ in range(3)]
    assert any(silence < 0.5 * whole for silence, whole in tries), tries


@settings(max_examples=25)
@given(piece=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40))
def test_a_long_text_has_the_ids_that_the_library_gives_a_single_one(
    smollm2_tokenizer: Tokenizer, piece: str
) -> None:
    machine = smollm2_tokenizer._vocabulary._machine
    text = piece * (3000 // len(piece) + 1)
    assert ids_of(machine, text) == machine.encode(text, add_special_tokens=False).ids
