from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farthing.serve.errors import ApiError
from farthing.serve.origin import allowed_origin
from farthing.serve.state import Anonymous
from serve.server import serving

if TYPE_CHECKING:
    from farthing.serve.state import ServerState
    from serve.server import Served


def named(state: ServerState) -> None:
    class Ring:
        def authenticate(self, authorization: str | None) -> Anonymous:
            return Anonymous("ada")

    state.keys = Ring()


def ask(served: Served, origin: str, host: str | None = None) -> int:
    headers = {"origin": origin} | ({} if host is None else {"host": host})
    body = {"prompt": "x", "max_tokens": 1}
    return served.http.post("/v1/completions", json=body, headers=headers).status_code


def test_the_servers_own_page_may_call_it(server: Served) -> None:
    assert ask(server, server.url) == 200
    assert ask(server, "http://localhost:8000", "localhost:8000") == 200
    assert ask(server, "http://[::1]:8000", "[::1]:8000") == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://[", "", "http://"])
def test_a_strangers_page_may_not(server: Served, origin: str) -> None:
    assert ask(server, origin) == 403
    # Not with a name, either, that its owner lets stand for this machine.
    assert ask(server, "http://evil.example:8000", "evil.example:8000") == 403
    assert server.engine.idle


def test_where_keys_are_asked_for_the_server_may_have_any_name() -> None:
    with serving(prepare=named) as served:
        assert ask(served, "https://models.example", "models.example") == 200
        assert ask(served, "https://evil.example", "models.example") == 403


def test_pages_of_an_origin_that_is_listed_may_call_and_see_the_answer() -> None:
    with serving(cors_origins=("https://app.example",)) as served:
        page = {"origin": "https://app.example"}
        answer = served.http.post("/v1/completions", json={"prompt": "x"}, headers=page)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert "retry-after-ms" in answer.headers["access-control-expose-headers"]
        refused = served.http.post("/v1/completions", json={"prompt": 1}, headers=page)
        assert refused.headers["access-control-allow-origin"] == "https://app.example"
        assert ask(served, "https://other.example") == 403


def test_a_browser_that_asks_first_is_told() -> None:
    question = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,x-request-id",
    }
    with serving(cors_origins=("https://app.example",)) as served:
        for origin, status in (("https://app.example", 204), ("https://evil.example", 403)):
            answer = served.http.options(
                "/v1/chat/completions", headers={**question, "origin": origin}
            )
            assert answer.status_code == status
            assert ("access-control-allow-origin" in answer.headers) == (status == 204)
            if status == 204:
                allowed = answer.headers["access-control-allow-headers"]
                assert allowed == "authorization,x-request-id"


@given(origin=st.text(max_size=30), host=st.text(max_size=30))
def test_any_text_is_an_answer_or_a_refusal(origin: str, host: str) -> None:
    with suppress(ApiError):
        assert allowed_origin(origin, host, (), anonymous=True) is None
