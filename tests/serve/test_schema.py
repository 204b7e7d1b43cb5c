"""The document of the API against the server: generated requests, well-formed and not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from engine.scripted import engine, rambling
from farthing.serve.app import OPERATIONS
from farthing.serve.openapi import document
from serve.server import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from serve.server import Served

SECONDS = 20
"""No answer to a generated request may take so long."""

SCHEMA = schemathesis.openapi.from_dict(document(OPERATIONS))
DESCRIBED = {each.ok().label: each.ok() for each in SCHEMA.get_all_operations()}


@pytest.fixture(scope="module")
def small() -> Iterator[Served]:
    """A server whose answers are short, however much is asked for."""
    with serving(engine(rambling, context_length=96, total_blocks=512)) as served:
        yield served
        served.wait_idle()


def test_every_operation_is_described() -> None:
    paths = {f"{each.method} {each.path.replace(':path', '')}" for each in OPERATIONS}
    assert paths == DESCRIBED.keys()


WRONG = [label for label, each in DESCRIBED.items() if each.body]
"""The operations that can be asked wrongly: those with a body."""


@pytest.mark.parametrize(
    ("label", "mode"),
    [
        *((label, GenerationMode.POSITIVE) for label in DESCRIBED),
        *((label, GenerationMode.NEGATIVE) for label in WRONG),
    ],
    ids=lambda value: value.value if isinstance(value, GenerationMode) else value,
)
@settings(
    max_examples=40,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_every_request_gets_an_answer_that_the_document_describes(
    small: Served, label: str, mode: GenerationMode, data: st.DataObject
) -> None:
    operation = DESCRIBED[label]
    case = data.draw(operation.as_strategy(generation_mode=mode))
    if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
        case.body.pop("model", None)  # or nearly all would be 404
    answer = case.call(base_url=small.url, timeout=SECONDS)
    case.validate_response(
        answer,
        checks=[
            not_a_server_error,
            status_code_conformance,
            content_type_conformance,
            response_schema_conformance,
            negative_data_rejection,
        ],
    )
