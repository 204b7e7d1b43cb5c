"""POST /v1/embeddings, and the clients that use it."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any

import numpy as np
import openai
import pytest
from langchain_openai import OpenAIEmbeddings

from engine.scripted import VOCABULARY, engine_over, tokenizer
from engine.threads import Held, eventually
from serve.server import MODEL, Ended, Served, request_bytes, serving

if TYPE_CHECKING:
    import httpx

TEXTS = ["one", "the other", "x" * 80, "Grüße, 世界!"]


def embed(served: Served, texts: Any, **fields: Any) -> httpx.Response:
    return served.http.post("/v1/embeddings", json={"model": MODEL, "input": texts, **fields})


def vectors(answer: httpx.Response) -> list[list[float]]:
    assert answer.status_code == 200, answer.text
    return [each["embedding"] for each in answer.json()["data"]]


def own(served: Served, texts: list[str]) -> list[list[float]]:
    return [each.vector.tolist() for each in served.engine.embed(texts)]


def test_texts_get_the_engines_vectors_in_order(server: Served) -> None:
    answer = embed(server, TEXTS)
    body = answer.json()
    assert vectors(answer) == own(server, TEXTS)
    assert body.keys() == {"object", "data", "model", "usage"}
    assert (body["object"], body["model"]) == ("list", MODEL)
    assert [(each["object"], each["index"]) for each in body["data"]] == [
        ("embedding", number) for number in range(4)
    ]
    tokens = sum(len(tokenizer().encode(text)) for text in TEXTS)
    assert body["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


def test_vectors_have_length_1(server: Served) -> None:
    assert np.linalg.norm(vectors(embed(server, TEXTS)), axis=1) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ("one", ["one"]),
        ([72, 105], [[72, 105]]),
        ([[72, 105], [33]], [[72, 105], [33]]),
    ],
)
def test_a_text_token_ids_and_lists_of_them_are_taken(
    server: Served, given: Any, texts: list[Any]
) -> None:
    assert vectors(embed(server, given)) == own(server, texts)


def test_base64_is_the_little_endian_bytes(server: Served) -> None:
    data = embed(server, TEXTS, encoding_format="base64").json()["data"]
    found = [np.frombuffer(base64.b64decode(each["embedding"]), "<f4").tolist() for each in data]
    assert found == own(server, TEXTS)


def test_dimensions_may_be_the_models_own_alone(server: Served) -> None:
    size = server.engine.embedding_size
    assert embed(server, "a", dimensions=size).status_code == 200
    answer = embed(server, "a", dimensions=size - 1)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "dimensions")
    assert f"have {size} dimensions" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": []}, "input", "invalid_value"),
        ({"input": ["a", 1]}, "input", "invalid_value"),
        ({"input": [[1], "a"]}, "input", "invalid_value"),
        ({"input": [[]]}, "input", "invalid_value"),
        ({"input": [VOCABULARY]}, "input", "invalid_value"),
        ({"input": [-1]}, "input", "invalid_value"),
        ({"input": 5}, "input", "invalid_type"),
        ({"input": None}, "input", "invalid_type"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "invalid_type"),
        ({"input": "a", "dimensions": 0}, "dimensions", "invalid_value"),
        ({"input": "a", "dimensions": 10**30}, "dimensions", "invalid_value"),
        ({"input": "a", "priority": 10**9}, "priority", "invalid_value"),
        ({"input": "a", "timeout": -1}, "timeout", "invalid_value"),
        ({"input": "a", "input_type": "query"}, "input_type", "unsupported_parameter"),
        ({"input": "a", "normalize": False}, "normalize", "unsupported_parameter"),
        ({"input": "x" * 5000}, "input", "context_length_exceeded"),
        ({}, "input", "missing_field"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_embedded_is_400(
    server: Served, fields: dict[str, Any], param: str | None, code: str
) -> None:
    answer = server.http.post("/v1/embeddings", json=fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)


def test_what_would_happen_anyway_and_what_is_harmless_is_accepted(server: Served) -> None:
    answer = embed(server, "a", normalize=True, truncate="NONE", user="me", colour="blue")
    assert answer.status_code == 200


def test_another_model_is_404(server: Served) -> None:
    assert embed(server, "a", model="other").status_code == 404


def test_texts_are_bounded_in_number() -> None:
    with serving(most_inputs=3) as served:
        assert embed(served, ["a"] * 3).status_code == 200
        answer = embed(served, ["a"] * 4)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")


def test_a_thousand_texts_at_once_are_each_what_they_are_alone() -> None:
    texts = [f"text {number} " * (1 + number % 5) for number in range(1000)]
    with serving() as served:
        found = vectors(embed(served, texts))
        assert found[::97] == own(served, texts[::97])
        served.wait_idle()


def test_a_client_that_leaves_frees_its_blocks() -> None:
    backend, ended = Held(max_step_tokens=64), Ended()
    with serving(engine_over(backend), prepare=ended.watch) as served:
        with served.connect() as connection:
            connection.sendall(request_bytes("/v1/embeddings", {"input": "x" * 900}))
            backend.wait_entered(1)
        assert eventually(lambda: ended.statuses == [499])
        backend.allow(1000)
        served.wait_idle()
        assert backend.steps < 14, "the text was read to its end"


def test_openais_client_gets_numbers(server: Served) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    # It asks for base64 unless told otherwise.
    for options in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        answer = client.embeddings.create(model=MODEL, input=TEXTS, **options)
        data = [each.embedding for each in answer.data]
        if options.get("encoding_format") == "base64":
            data = [np.frombuffer(base64.b64decode(each), "<f4").tolist() for each in data]
        assert data == own(server, TEXTS)
        assert answer.usage.prompt_tokens == answer.usage.total_tokens


def test_openais_asynchronous_client_gets_many_at_once(server: Served) -> None:
    async def ask() -> list[list[float]]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            answers = await asyncio.gather(
                *(client.embeddings.create(model=MODEL, input=text) for text in TEXTS)
            )
        return [each.data[0].embedding for each in answers]

    assert asyncio.run(ask()) == own(server, TEXTS)


def test_langchain_embeds_documents(server: Served) -> None:
    embeddings = OpenAIEmbeddings(
        base_url=f"{server.url}/v1",
        api_key="none",  # type: ignore[arg-type]
        model=MODEL,
        check_embedding_ctx_length=False,
    )
    assert embeddings.embed_documents(TEXTS) == own(server, TEXTS)


def test_texts_that_mean_alike_lie_close_in_the_default_model(real_server: Served) -> None:
    texts = [
        "How do I bake bread at home?",
        "Baking a loaf in your own kitchen",
        "The treaty was signed in 1648 in Westphalia.",
    ]
    body = {"model": "smollm2-135m", "input": texts}
    found = np.array(vectors(real_server.http.post("/v1/embeddings", json=body)))
    assert found.shape == (3, 576)
    alike = found @ found.T
    assert alike[0, 1] > alike[0, 2]
    assert alike[0, 1] > alike[1, 2]
