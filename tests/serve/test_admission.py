"""What is admitted, what is refused, and why."""

from __future__ import annotations

import gc
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from farthing.files.checkpoint import open_checkpoint
from farthing.plan.objective import NAMED
from farthing.serve.admission import LONGEST_RETRY, OBJECTIVES, Objective, objective_of
from farthing.serve.errors import ApiError
from farthing.serve.keys import ANONYMOUS, Key
from farthing.serve.learned import TokensOfBytes
from farthing.serve.settings import Settings
from farthing.text.chat import load_chat_template
from farthing.text.load import load_tokenizer
from serve.server import serving
from serve.virtual import Client, Virtual

if TYPE_CHECKING:
    from pathlib import Path

    from farthing.serve.admission import Ticket
    from farthing.text.chat import ChatTemplate
    from farthing.text.tokenizer import Tokenizer


def ask(machine: Virtual, key: Key = ANONYMOUS, **asked: Any) -> Ticket:
    usual = {"prompt_bytes": 100, "prompt_tokens": None, "max_tokens": 20, "n": 1, "priority": 0}
    return machine.admission.admit(key, **{**usual, **asked})


def refusal(machine: Virtual, key: Key = ANONYMOUS, **asked: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        ask(machine, key, **asked)
    return caught.value


def busy(**settings: Any) -> Virtual:
    """A machine that is known, and has far more to do than its limit allows."""
    machine = Virtual(**settings)
    machine.warm_up()
    for at in range(100):
        client = Client(machine.now, 20, 40, key=next(iter(settings.get("keys", [ANONYMOUS]))).name)
        try:
            ticket = ask(machine, Key(client.key), prompt_tokens=20, max_tokens=40)
        except ApiError:
            assert at > 8
            break
        machine.accept(client, ticket)
    else:
        pytest.fail("nothing was refused")
    return machine


def retry_seconds(error: ApiError) -> float:
    return int(error.headers["retry-after-ms"]) / 1000


def test_an_idle_machine_admits_whatever_fits() -> None:
    machine = Virtual()
    ticket = ask(machine, prompt_bytes=900, max_tokens=None)
    assert machine.admission.queued_tokens == TokensOfBytes().most(900)
    ticket.settle(200)
    assert machine.admission.queued_tokens == 200
    ticket.close()
    assert machine.admission.queued_tokens == 0


def test_a_refusal_says_when_to_come_back_in_both_headers() -> None:
    error = refusal(busy())
    assert (error.status, error.code, error.type) == (429, "overloaded", "rate_limit_error")
    seconds = retry_seconds(error)
    assert 0 < seconds <= LONGEST_RETRY
    assert seconds <= int(error.headers["Retry-After"]) < seconds + 1
    assert "ask again in" in error.message


def test_however_much_waits_nobody_is_told_more_than_a_client_accepts() -> None:
    machine = busy()
    told = {
        retry_seconds(refusal(machine, prompt_tokens=500, max_tokens=500, body_digest=bytes([at])))
        for at in range(250)
    }
    assert max(told) <= LONGEST_RETRY
    late = sorted(each for each in told if each > 0.75 * LONGEST_RETRY)
    assert len(late) > 30  # not all at one moment


def test_clients_refused_together_come_back_one_after_another() -> None:
    machine = busy()
    asked = {"prompt_tokens": 20, "max_tokens": 40}
    told = [retry_seconds(refusal(machine, body_digest=bytes([at]), **asked)) for at in range(40)]
    assert len(set(told)) > 35
    # 8 slots: so many come back together, and the next ones a text later.
    groups = [max(told[at : at + 8]) for at in range(0, 40, 8)]
    assert groups == sorted(groups)
    assert groups[-1] > groups[0] + 1


def test_who_asks_again_too_early_keeps_its_place_and_no_other() -> None:
    machine = busy()
    first = retry_seconds(refusal(machine, body_digest=b"first"))
    for at in range(30):
        refusal(machine, body_digest=bytes([at]))
    assert retry_seconds(refusal(machine, body_digest=b"first")) == pytest.approx(first, rel=0.05)
    assert retry_seconds(refusal(machine, body_digest=b"new")) > 1.5 * first


@pytest.mark.parametrize("max_tokens", [1024, 10**9])
def test_what_never_fits_is_400_at_once_even_under_load(max_tokens: int) -> None:
    error = refusal(busy(), max_tokens=max_tokens)
    assert (error.status, error.code) == (400, "context_length_exceeded")
    assert "retry-after-ms" not in error.headers


def test_a_priority_above_the_keys_is_refused_and_not_lowered() -> None:
    key = Key("a", priority=2)
    machine = Virtual([key])
    ask(machine, key, priority=2).close()
    error = refusal(machine, key, priority=3)
    assert (error.status, error.param) == (400, "priority")


def test_a_higher_priority_does_not_wait_behind_a_lower_one() -> None:
    key = Key("a", priority=1)
    machine = busy(keys=[key])
    assert refusal(machine, key).status == 429
    assert machine.admission.wait_seconds("a") > 1
    ask(machine, key, priority=1)


def test_requests_a_minute_are_counted_and_come_back() -> None:
    key = Key("a", requests_per_minute=6)
    machine = Virtual([key])
    for _ in range(6):
        ask(machine, key).close()
    error = refusal(machine, key, body_digest=b"x")
    assert error.code == "rate_limit_exceeded"
    assert retry_seconds(error) == pytest.approx(10, rel=0.05)
    # Who is refused next has to wait behind the first.
    assert retry_seconds(refusal(machine, key, body_digest=b"y")) == pytest.approx(20, rel=0.05)
    machine.now += 10
    ask(machine, key, body_digest=b"x").close()
    assert retry_seconds(refusal(machine, key, body_digest=b"y")) == pytest.approx(10, rel=0.05)


def test_tokens_a_minute_are_what_was_used_and_not_what_was_feared() -> None:
    key = Key("a", tokens_per_minute=600)
    machine = Virtual([key])
    for _ in range(5):
        ticket = ask(machine, key, prompt_bytes=800, max_tokens=300)
        ticket.settle(40)
        ticket.follow([Answered(60)])
        ticket.close()
    # 500 of 600 are used; 60 + 60 are wanted.
    error = refusal(machine, key, prompt_tokens=60, max_tokens=60)
    assert error.code == "rate_limit_exceeded"
    assert 0 < retry_seconds(error) <= 3


def test_a_prompt_longer_than_its_key_may_ever_send_is_400() -> None:
    key = Key("a", tokens_per_minute=100, most_queued_tokens=90)
    machine = Virtual([key])
    assert refusal(machine, key, prompt_tokens=95).status == 400
    ticket = ask(machine, key, prompt_bytes=300)
    with pytest.raises(ApiError) as caught:
        ticket.settle(150)
    ticket.close()
    assert (caught.value.status, caught.value.code) == (400, "key_limit_exceeded")
    machine.admission.check()
    ask(machine, key, prompt_tokens=50)


def test_requests_at_a_time_make_room_when_the_first_ends() -> None:
    key = Key("a", most_running=2)
    machine = Virtual([key])
    machine.warm_up()
    clients = [Client(machine.now, 20, more, key="a") for more in (50, 100, 20)]
    machine.run(clients)
    assert [len(client.told) for client in clients] == [0, 0, 1]
    assert clients[2].admitted is not None
    assert clients[0].ended is not None
    assert clients[2].admitted == pytest.approx(clients[0].ended, rel=0.3)


def test_tokens_that_wait_are_bounded_for_one_key_alone() -> None:
    machine = Virtual(queue_tokens=2000)
    held = [ask(machine, prompt_tokens=900), ask(machine, prompt_tokens=1000)]
    assert refusal(machine, prompt_tokens=200).status == 429
    held.append(ask(machine, prompt_tokens=100))
    assert machine.admission.queued_tokens == 2000


def test_a_prompt_that_finds_none_waiting_is_let_in_whatever_its_length() -> None:
    machine = Virtual(queue_tokens=50)
    held = ask(machine, prompt_tokens=900)
    assert refusal(machine, prompt_tokens=10).status == 429
    held.close()
    ask(machine, prompt_tokens=10)


def test_no_key_fills_the_queue_so_that_another_finds_no_room() -> None:
    keys = [Key("flood"), Key("good")]
    machine = Virtual(keys, queue_tokens=3000)
    held: list[Ticket] = []
    with suppress(ApiError):
        while len(held) < 100:
            held.append(ask(machine, keys[0], prompt_tokens=100))
    assert len(held) == 20  # two thirds
    held += [ask(machine, keys[1], prompt_tokens=100) for _ in range(3)]
    assert machine.admission.queued_tokens == 2300


def test_a_key_that_has_nothing_else_is_never_refused_for_others_load() -> None:
    keys = [Key("flood"), Key("good")]
    machine = busy(keys=keys)
    refusal(machine, keys[0])
    ask(machine, keys[1])


def test_a_ticket_that_is_dropped_is_closed() -> None:
    machine = Virtual()
    ticket = ask(machine, prompt_tokens=50)
    del ticket
    gc.collect()
    ask(machine, prompt_tokens=7).settle(7)
    gc.collect()
    ask(machine, prompt_tokens=3).close()
    machine.admission.check()
    assert machine.admission.queued_tokens == 0


def test_a_server_that_admits_counts_nothing_when_it_is_idle_again() -> None:
    machine = Virtual()

    def gated(state: Any) -> None:
        machine.admission._machine = state.engine
        state.admission = machine.admission

    with serving(prepare=gated) as served:
        assert served.chat(max_tokens=3, n=2).status_code == 200
        assert served.chat(max_tokens=3, stream=True).status_code == 200
        assert served.complete([], max_tokens=3).status_code == 400
        assert served.complete("a" * 5000, max_tokens=3).status_code == 400
        served.wait_idle()
        machine.admission.check()
        assert machine.admission.queued_tokens == 0
        assert not list(machine.admission._accepted.entries)


def test_plan_and_tune_know_the_same_objectives_by_the_same_names() -> None:
    known = {name: (each.most_wait, each.latency_target) for name, each in OBJECTIVES.items()}
    assert known == {name: (each.ttft, each.tpot) for name, each in NAMED.items()}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_has_a_name_and_its_wait_and_its_step_can_be_set(name: str) -> None:
    preset = OBJECTIVES[name]
    assert objective_of(Settings(slo=name)) == preset
    other = objective_of(Settings(slo=name, most_wait_seconds=7.0))
    assert other == Objective(7.0, preset.latency_target)
    other = objective_of(Settings(slo=name, step_seconds=0.2))
    assert other == Objective(preset.most_wait, 0.2)


@pytest.fixture(scope="module")
def tokenizers(smollm2_path: Path, gemma3_path: Path) -> list[Tokenizer]:
    return [load_tokenizer(open_checkpoint(path)) for path in (smollm2_path, gemma3_path)]


TEXTS = st.text(
    st.characters(min_codepoint=32, max_codepoint=0xFFFF, exclude_categories=["Cs", "Cc"]),
    max_size=60,
)
"""Of characters that both vocabularies have the bytes of."""


@given(text=TEXTS)
def test_no_text_has_more_tokens_than_its_bytes_allow(
    tokenizers: list[Tokenizer], text: str
) -> None:
    for tokenizer in tokenizers:
        assert len(tokenizer.encode(text)) <= TokensOfBytes().most(len(text.encode()))


@pytest.fixture(scope="module")
def template(smollm2_path: Path, tokenizers: list[Tokenizer]) -> ChatTemplate:
    found = load_chat_template(open_checkpoint(smollm2_path), tokenizers[0])
    assert found is not None
    return found


@given(st.lists(TEXTS, min_size=1, max_size=20))
def test_no_chat_has_more_tokens_than_its_body_allows(
    template: ChatTemplate, texts: list[str]
) -> None:
    roles = ("user", "assistant")
    chat = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
    body = "".join(f'{{"role":"{each["role"]}","content":"{each["content"]}"}}' for each in chat)
    assert len(template.encode(chat)) <= TokensOfBytes().most(len(body.encode()))


class Answered:
    """An answer that has so many tokens, after it waited for so long."""

    def __init__(self, made: int, queue_seconds: float | None = 0.0) -> None:
        self.made = made
        self.queue_seconds = queue_seconds


class Tickets(RuleBasedStateMachine):
    """Tickets come, go, fail and are lost in any order."""

    keys = (Key("a", tokens_per_minute=5000, most_queued_tokens=400), Key("b", most_running=5))

    def __init__(self) -> None:
        super().__init__()
        self.machine = Virtual(self.keys, queue_tokens=3000)
        self.tickets: list[Ticket] = []

    @rule(
        key=st.sampled_from(keys),
        size=st.integers(1, 600),
        known=st.booleans(),
        n=st.integers(1, 4),
        digest=st.sampled_from([b"", b"x", b"y"]),
    )
    def admit(self, key: Key, size: int, known: bool, n: int, digest: bytes) -> None:
        tokens = size if known else None
        try:
            ticket = ask(
                self.machine, key, prompt_bytes=size, prompt_tokens=tokens, n=n, body_digest=digest
            )
        except ApiError:
            return
        self.tickets.append(ticket)

    @rule(at=st.integers(0), tokens=st.integers(1, 600))
    def settle(self, at: int, tokens: int) -> None:
        if self.tickets:
            ticket = self.tickets[at % len(self.tickets)]
            try:
                ticket.settle(tokens)
            except ApiError:
                ticket.close()

    @rule(at=st.integers(0), made=st.integers(0, 20), begun=st.booleans())
    def follow(self, at: int, made: int, begun: bool) -> None:
        if self.tickets:
            answer = Answered(made, 0.1) if begun else Answered(0, None)
            self.tickets[at % len(self.tickets)].follow([answer])

    @rule(at=st.integers(0), twice=st.booleans())
    def close(self, at: int, twice: bool) -> None:
        if self.tickets:
            ticket = self.tickets[at % len(self.tickets)]
            ticket.close()
            if not twice:
                self.tickets.remove(ticket)

    @rule(at=st.integers(0))
    def lose(self, at: int) -> None:
        if self.tickets:
            del self.tickets[at % len(self.tickets)]

    @rule(seconds=st.floats(0, 100))
    def wait(self, seconds: float) -> None:
        self.machine.now += seconds

    @invariant()
    def the_books_are_right(self) -> None:
        self.machine.admission.check()

    def teardown(self) -> None:
        for ticket in self.tickets:
            ticket.close()
        self.tickets.clear()
        self.machine.now += 1
        try:
            ask(self.machine, self.keys[1]).close()
        except ApiError:
            pytest.fail("something that has ended is in the way")
        self.machine.admission.check()
        assert self.machine.admission.queued_tokens == 0
        assert not list(self.machine.admission._accepted.entries)


def test_nothing_is_counted_for_ever_whatever_happens_to_tickets() -> None:
    run_state_machine_as_test(Tickets)
