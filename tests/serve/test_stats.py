from __future__ import annotations

from typing import TYPE_CHECKING

from engine.threads import eventually
from serve.server import serving

if TYPE_CHECKING:
    from farthing.serve.state import ServerState
    from serve.server import Served


def test_the_figures_are_the_engines_and_grow_by_what_was_done(server: Served) -> None:
    before = server.http.get("/stats").json()
    answer = server.chat("Hello", max_tokens=7).json()
    server.wait_idle()
    assert eventually(
        lambda: server.http.get("/stats").json()["first_tokens"] == before["first_tokens"] + 1
    )
    after = server.http.get("/stats").json()
    usage = answer["usage"]
    assert after["prompt_tokens"] - before["prompt_tokens"] == usage["prompt_tokens"]
    assert after["generated_tokens"] - before["generated_tokens"] == 7
    assert after["first_token_seconds"] > before["first_token_seconds"]
    assert after["clock_seconds"] > before["clock_seconds"]
    assert after["started"] == before["started"]
    blocks = server.engine.stats()
    assert (after["running"], after["waiting"], after["held_blocks"]) == (0, 0, 0)
    assert (after["free_blocks"], after["cached_blocks"]) == (
        blocks.free_blocks,
        blocks.cached_blocks,
    )
    assert (after["slots"], after["block_tokens"]) == (64, 32)


def test_a_request_without_a_token_counts_for_no_first_token(server: Served) -> None:
    before = server.http.get("/stats").json()["first_tokens"]
    assert server.chat(model="another").status_code == 404
    assert server.http.get("/stats").json()["first_tokens"] == before


def test_there_are_no_figures_while_the_model_is_loaded() -> None:
    def prepare(state: ServerState) -> None:
        state.engine = None

    with serving(prepare=prepare) as served:
        answer = served.http.get("/stats")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "loading")
