"""The default model through the server: what the engine says, whoever else is served."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import openai

from farthing.core import SamplingParams
from serve.events import choices

if TYPE_CHECKING:
    from serve.server import Served

MODEL = "smollm2-135m"
CHAT: Any = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]


def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none")


def test_a_chat_is_answered_as_by_the_engine(real_server: Served) -> None:
    expected = real_server.engine.generate(CHAT, SamplingParams(max_tokens=24))
    answer = client(real_server).chat.completions.create(
        model=MODEL, messages=CHAT, temperature=0, max_tokens=24
    )
    assert answer.choices[0].message.content == expected.text
    assert "Paris" in expected.text
    assert answer.choices[0].finish_reason == expected.finish_reason
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == expected.usage.prompt_tokens
    assert answer.usage.completion_tokens == expected.usage.completion_tokens


def test_every_answer_is_the_same_alone_and_among_others(real_server: Served) -> None:
    prompts = [f"Count from {number} to ten: {number}," for number in range(6)]

    def complete(prompt: str, stream: bool) -> str:
        fields = {"model": MODEL, "max_tokens": 16, "seed": 11, "stream": stream}
        answer = real_server.complete(prompt, **fields)
        if stream:
            return "".join(choice["text"] for choice in choices(answer.text))
        return str(answer.json()["choices"][0]["text"])

    alone = [complete(prompt, False) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as threads:
        together = list(threads.map(lambda prompt: complete(prompt, True), prompts))
    assert together == alone
    assert len(set(alone)) == len(alone)


def test_log_probabilities_are_of_the_tokens_of_the_text(real_server: Served) -> None:
    answer = real_server.complete("The sky is", model=MODEL, max_tokens=12, logprobs=3).json()
    [choice] = answer["choices"]
    found = choice["logprobs"]
    assert "".join(found["tokens"]) == choice["text"]
    for start, token in zip(found["text_offset"], found["tokens"], strict=True):
        assert choice["text"][start : start + len(token)] == token


def test_the_card_says_what_was_loaded(real_server: Served) -> None:
    [entry] = real_server.http.get("/v1/models").json()["data"]
    assert entry["id"] == MODEL
    assert entry["max_model_len"] == 1024
    assert entry["details"]["parameters"] == 134_515_008
    assert entry["details"]["formats"]["Q4_1"] > 0


def test_a_tokenised_chat_begins_once(real_server: Served) -> None:
    ids = real_server.http.post("/tokenize", json={"messages": CHAT}).json()["tokens"]
    text = real_server.http.post("/detokenize", json={"tokens": ids}).json()["prompt"]
    assert text.startswith("<|im_start|>system\n")
    assert text.endswith("<|im_start|>assistant\n")
    assert text.count("<|im_start|>user") == 1
