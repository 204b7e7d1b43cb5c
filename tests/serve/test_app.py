from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from engine.scripted import engine, saying
from farthing.serve import app
from farthing.serve.app import OPERATIONS
from serve.server import MODEL, serving

if TYPE_CHECKING:
    from farthing.serve.state import ServerState
    from serve.server import Served


def test_a_server_that_is_ready_says_so(server: Served) -> None:
    answer = server.http.get("/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})


def test_the_list_of_models_has_the_one_that_is_served(server: Served) -> None:
    answer = server.http.get("/v1/models").json()
    assert answer["object"] == "list"
    [entry] = answer["data"]
    assert entry["id"] == MODEL
    assert entry["object"] == "model"
    assert entry["owned_by"] == "farthing"
    assert entry["created"] > 1_700_000_000
    assert entry["max_model_len"] == server.engine.most_tokens
    assert entry["receipt"] is None
    assert server.http.get(f"/v1/models/{MODEL}").json() == entry


def test_a_model_may_have_slashes_in_its_name() -> None:
    with serving(model_name="owner/name:Q4_K_M") as served:
        assert served.http.get("/v1/models/owner/name:Q4_K_M").json()["id"] == "owner/name:Q4_K_M"
        assert served.chat(model="owner/name:Q4_K_M", max_tokens=1).status_code == 200


def test_an_unknown_model_is_404(server: Served) -> None:
    for answer in (
        server.http.get("/v1/models/gpt-5"),
        server.chat(model="gpt-5"),
        server.complete(model="gpt-5"),
        server.http.post("/tokenize", json={"model": "gpt-5", "prompt": "x"}),
    ):
        error = answer.json()["error"]
        assert answer.status_code == 404
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "gpt-5" in error["message"]
        assert MODEL in error["message"]


def test_a_request_that_names_no_model_gets_the_one_there_is(server: Served) -> None:
    assert server.chat(model=None, max_tokens=1).json()["model"] == MODEL


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v2", 404), ("PUT", "/v2", 404)])
def test_a_path_that_does_not_exist_is_an_error_like_others(
    server: Served, method: str, path: str, status: int
) -> None:
    answer = server.http.request(method, path)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_a_method_that_a_path_does_not_take_is_405_and_says_which_it_takes(server: Served) -> None:
    answer = server.http.get("/v1/completions")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    assert answer.json()["error"]["code"] == "method_not_allowed"


def test_every_answer_has_a_request_id(server: Served) -> None:
    for answer in (server.http.get("/health"), server.chat(max_tokens=1), server.chat(n=-1)):
        assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])


def test_the_clients_request_id_comes_back(server: Served) -> None:
    for path in ("/health", "/nowhere"):
        answer = server.http.get(path, headers={"x-request-id": "mine-1"})
        assert answer.headers["x-request-id"] == "mine-1"


@pytest.mark.parametrize("given", ["", "with space", "x" * 129, "tab\there"])
def test_a_request_id_that_could_harm_a_log_is_replaced(server: Served, given: str) -> None:
    answer = server.http.get("/health", headers={"x-request-id": given})
    assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])


def _loading(state: ServerState) -> None:
    state.engine = state.card = None
    state.loading.phase, state.loading.fraction = "fetching", 0.25


def test_while_the_model_is_loaded_everything_is_503_with_the_progress() -> None:
    with serving(prepare=_loading) as served:
        health = served.http.get("/health")
        assert health.status_code == 503
        assert health.json() == {
            "status": "loading",
            "phase": "fetching",
            "progress": 0.25,
            "message": None,
        }
        for answer in (served.http.get("/v1/models"), served.chat(), served.complete()):
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "loading"
            assert "25%" in answer.json()["error"]["message"]
            assert answer.headers["retry-after"] == "1"
            assert answer.headers["retry-after-ms"] == "1000"


def test_a_model_that_could_not_be_loaded_says_why() -> None:
    def failed(state: ServerState) -> None:
        _loading(state)
        state.loading.failure = "the file is truncated"

    with serving(prepare=failed) as served:
        assert served.http.get("/health").json()["status"] == "failed"
        answer = served.chat()
        assert answer.status_code == 503
        assert "the file is truncated" in answer.json()["error"]["message"]


def test_a_server_that_shuts_down_accepts_nothing() -> None:
    with serving() as served:
        served.state.draining = True
        assert served.http.get("/health").status_code == 503
        answer = served.chat()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
        assert answer.headers["retry-after"] == "5"


def test_the_document_of_the_api_describes_every_path(server: Served) -> None:
    answer = server.http.get("/openapi.json").json()
    for operation in OPERATIONS:
        described = answer["paths"][operation.path.replace(":path", "")]
        assert operation.method.lower() in described
    fields = answer["components"]["schemas"]["ChatRequest"]["properties"]
    assert fields.keys() >= {"messages", "max_completion_tokens", "top_logprobs", "logit_bias"}


def test_the_document_of_the_api_is_made_once_for_all_who_ask(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = server.http.get("/openapi.json").content
    monkeypatch.setattr(app, "document", None)
    assert server.http.get("/openapi.json").content == first


def test_a_fault_of_the_server_shows_no_traceback() -> None:
    with serving(engine(saying("x"))) as served:
        served.engine.tokenizer.encode = None  # type: ignore[method-assign,assignment]
        answer = served.complete()
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "internal_error"
        assert "Traceback" not in answer.text
        assert "NoneType" not in answer.text


def test_a_failed_step_is_an_error_of_the_requests_in_it_and_the_next_is_served() -> None:
    failures = iter([RuntimeError("out of luck")])

    def script(prefix: object) -> int:
        for failure in failures:
            raise failure
        return ord("y")

    with serving(engine(script)) as served:
        answer = served.chat(max_tokens=3)
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "engine_error"
        assert "Traceback" not in answer.text
        assert served.chat(max_tokens=3).json()["choices"][0]["message"]["content"] == "yyy"
