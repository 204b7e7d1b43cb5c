"""The clients that people have, unchanged."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import openai
import pytest
from langchain_openai import ChatOpenAI, OpenAI

from engine.scripted import engine, engine_over, saying
from engine.threads import Held
from farthing.serve.errors import ApiError, retry_headers
from serve.server import MODEL, Served, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from farthing.serve.state import ServerState

SAID = "Grüße, 世界!"
CHAT: Any = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def greeter() -> Iterator[Served]:
    with serving(engine(saying(" " + SAID, after=":"))) as served:
        yield served


def client(served: Served, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", **options)


def test_openai_chats(greeter: Served) -> None:
    answer = client(greeter).chat.completions.create(model=MODEL, messages=CHAT)
    assert answer.choices[0].message.content == SAID
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(SAID.encode()) + 1
    assert answer.usage.prompt_tokens_details is not None


def test_openai_streams(greeter: Served) -> None:
    stream = client(greeter).chat.completions.create(
        model=MODEL, messages=CHAT, stream=True, stream_options={"include_usage": True}
    )
    *parts, last = list(stream)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == SAID
    assert parts[0].choices[0].delta.role == "assistant"
    assert parts[-1].choices[0].finish_reason == "stop"
    assert last.usage is not None
    assert last.usage.completion_tokens == len(SAID.encode()) + 1


def test_openai_accumulates_a_stream_into_a_completion(greeter: Served) -> None:
    with client(greeter).chat.completions.stream(model=MODEL, messages=CHAT) as stream:
        for _ in stream:
            pass
        answer = stream.get_final_completion()
    assert answer.choices[0].message.content == SAID


def test_openai_chats_at_once_without_threads(greeter: Served) -> None:
    async def chat_together() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{greeter.url}/v1", api_key="none") as many:
            answers = await asyncio.gather(
                *(many.chat.completions.create(model=MODEL, messages=CHAT) for _ in range(8))
            )
            stream = await many.chat.completions.create(model=MODEL, messages=CHAT, stream=True)
            text = "".join([part.choices[0].delta.content or "" async for part in stream])
        return [*(answer.choices[0].message.content for answer in answers), text]

    assert asyncio.run(chat_together()) == [SAID] * 9


def test_openai_completes(greeter: Served) -> None:
    complete = client(greeter).completions.create
    answer = complete(model=MODEL, prompt="x:", max_tokens=50, logprobs=1, echo=False)
    assert answer.choices[0].text == " " + SAID
    assert answer.choices[0].logprobs is not None
    stream = complete(model=MODEL, prompt=["x:", "y:"], max_tokens=50, stream=True)
    texts = ["", ""]
    for part in stream:
        texts[part.choices[0].index] += part.choices[0].text
    assert texts == [" " + SAID] * 2


def test_openai_lists_models(greeter: Served) -> None:
    [model] = client(greeter).models.list().data
    assert model.id == MODEL
    assert client(greeter).models.retrieve(MODEL).owned_by == "farthing"


def test_openai_sees_log_probabilities(greeter: Served) -> None:
    answer = client(greeter).chat.completions.create(
        model=MODEL, messages=CHAT, logprobs=True, top_logprobs=2
    )
    assert answer.choices[0].logprobs is not None
    content = answer.choices[0].logprobs.content
    assert content is not None
    assert len(content) == len(SAID.encode())
    assert len(content[0].top_logprobs) == 2


def test_openai_raises_its_own_errors(greeter: Served) -> None:
    create = client(greeter).chat.completions.create
    with pytest.raises(openai.NotFoundError, match="gpt-5"):
        create(model="gpt-5", messages=CHAT)
    with pytest.raises(openai.BadRequestError) as caught:
        create(model=MODEL, messages=[{"role": "user", "content": "x" * 2000}])
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        create(model=MODEL, messages=CHAT, n=1000)
    assert caught.value.param == "n"


def test_openai_raises_an_error_that_comes_in_mid_stream() -> None:
    def script(prefix: Any) -> int:
        if len(prefix) > 30:
            raise RuntimeError("out of luck")
        return ord("x")

    with serving(engine(script)) as served:
        stream = client(served).chat.completions.create(model=MODEL, messages=CHAT, stream=True)
        with pytest.raises(openai.APIError, match="out of luck"):
            list(stream)


def test_openai_comes_back_when_it_was_told_to() -> None:
    class Full:
        """Refuses twice."""

        asked = 0

        def admit(self, key: Any, **asked: Any) -> Full:
            self.asked += 1
            if self.asked < 3:
                headers = retry_headers(0.05)
                raise ApiError(429, "too much waits", code="queue_full", headers=headers)
            return self

        def settle(self, prompt_tokens: int) -> None: ...

        def follow(self, answers: Any) -> None: ...

        def close(self) -> None: ...

    gate = Full()

    def gated(state: ServerState) -> None:
        state.admission = gate

    with serving(engine(saying("x", after=":")), prepare=gated) as served:
        answer = client(served, max_retries=2).chat.completions.create(model=MODEL, messages=CHAT)
        assert answer.choices[0].finish_reason == "stop"
        assert gate.asked == 3


def test_openai_does_not_repeat_what_took_too_long(greeter: Served) -> None:
    with serving() as served, pytest.raises(openai.APIStatusError) as caught:
        client(served).chat.completions.create(
            model=MODEL, messages=CHAT, extra_body={"timeout": 0.001, "ignore_eos": True}
        )
    assert caught.value.status_code == 408
    assert caught.value.response.request.headers["x-stainless-retry-count"] == "0"


def test_openai_can_stop_in_mid_stream() -> None:
    held = Held()
    with serving(engine_over(held)) as served:
        held.allow(10_000)
        stream = client(served).chat.completions.create(model=MODEL, messages=CHAT, stream=True)
        next(stream)
        stream.close()
        served.wait_idle()


def test_langchain_chats_streams_and_counts(greeter: Served) -> None:
    options: dict[str, Any] = {"base_url": f"{greeter.url}/v1", "api_key": "none", "model": MODEL}
    chat = ChatOpenAI(**options, stream_usage=True)
    answer = chat.invoke("Hello")
    assert answer.content == SAID
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == len(SAID.encode()) + 1
    parts = list(chat.stream("Hello"))
    assert "".join(str(part.content) for part in parts) == SAID
    assert sum((part.usage_metadata or {}).get("output_tokens", 0) for part in parts) > 0
    assert OpenAI(**options).invoke("x:") == " " + SAID


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_chats_and_streams(greeter: Served) -> None:
    def curl(*arguments: str) -> str:
        command = ["curl", "--silent", "--show-error", "--max-time", "30", *arguments]
        return subprocess.run(command, check=True, capture_output=True).stdout.decode()

    body = json.dumps({"messages": CHAT})
    url = f"{greeter.url}/v1/chat/completions"
    answer = json.loads(curl(url, "--json", body))
    assert answer["choices"][0]["message"]["content"] == SAID
    # As people write it, without saying that it is JSON.
    assert json.loads(curl(url, "--data", body))["choices"] == answer["choices"]
    stream = curl(url, "--no-buffer", "--json", json.dumps({"messages": CHAT, "stream": True}))
    assert stream.endswith("data: [DONE]\n\n")
