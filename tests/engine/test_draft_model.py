"""A second model guesses with the target's noise: no bit of a text changes, and guesses agree."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from engine.driving import Driver, request
from engine.scripted import VOCABULARY, Bytes, engine, rambling, tokenizer
from engine.test_speculate import WAYS, facts
from farthing.backends.null import NullBackend
from farthing.core import ActivationMode, RequestError, SamplingParams
from farthing.engine.draft_copy import copy_in, narrow_formats, read_bytes
from farthing.engine.draft_model import ModelDrafter
from farthing.engine.drafting import drafting_of, refuse_other_tokens
from farthing.engine.engine import Engine
from farthing.engine.speculate import Speculation
from farthing.plan.memory import CATCH_UP_TOKENS, plan_memory
from farthing.text.tokenizer import Tokenizer
from native_steps import model_at
from tiny import build, shared

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


def nearly(prefix: NDArray[np.int32]) -> NDArray[np.float32]:
    """What the target says, and something else besides."""
    other = np.random.default_rng(int(prefix.sum())).normal(0, 0.5, VOCABULARY)
    return (rambling(prefix) + other).astype(np.float32)


def drafting(backend: NullBackend, longest: int = 4, **more: Any) -> Speculation:
    drafter = ModelDrafter(backend)
    return Speculation(drafter, longest, costly=drafter, **{"always": True, **more})


def only_first(count: int) -> Any:
    return lambda prefix: nearly(prefix)[:count]


@pytest.mark.parametrize("way", WAYS)
def test_a_text_is_the_same_whatever_a_draft_guesses(way: str) -> None:
    sampling = SamplingParams(**{"max_tokens": 40, **WAYS[way]})
    prompts = [f"prompt {n}>" for n in range(3)]
    with engine() as plain:
        expected = plain.generate(prompts, sampling)
    for draft in (
        NullBackend(nearly, VOCABULARY),
        NullBackend(nearly, VOCABULARY, total_blocks=4),  # of which each text needs two
        NullBackend(only_first(120), 120),
        NullBackend(nearly, VOCABULARY, context_length=24),
    ):
        with engine(speculation=drafting(draft)) as guessing:
            found = guessing.generate(prompts, sampling)
            counts = guessing.stats().counters.drafts
        assert [facts(made) for made in found] == [facts(made) for made in expected]
        assert draft.vocabulary_size < VOCABULARY or counts.proposed > 0


@pytest.mark.parametrize("way", ["greedy", "sampled", "penalties", "a form", "bias"])
def test_a_draft_that_is_the_target_is_always_right(way: str) -> None:
    """So parameters, adjustments, masks and noise are the target's, and the cache is in order."""
    sampling = SamplingParams(**{"max_tokens": 40, **WAYS[way]})
    draft = NullBackend(rambling, VOCABULARY)
    with engine(speculation=drafting(draft)) as one:
        one.generate(["a>", "bc>"], sampling)
        counts = one.stats().counters.drafts
    assert counts.accepted == counts.proposed > 20


def test_a_draft_with_noise_of_its_own_would_be_right_less_often() -> None:
    class Other(ModelDrafter):
        def _sampling(self, wanted: Any, masks: Any) -> Any:
            return replace(super()._sampling(wanted, masks), choice=np.ones(len(wanted), np.uint32))

    shares = []
    for kind in (ModelDrafter, Other):
        drafter = kind(NullBackend(nearly, VOCABULARY))
        speculation = Speculation(drafter, 1, costly=drafter, always=True)
        with engine(speculation=speculation) as one:
            one.generate(["a>", "b>"], SamplingParams(max_tokens=80, temperature=1.0, seed=1))
            counts = one.stats().counters.drafts
        shares.append(counts.right[0] / counts.tested[0])
    assert shares[0] > shares[1] + 0.2


def test_preemption_and_choices_and_shared_blocks_change_no_bit() -> None:
    requests = [
        request(f"r{n}", [*range(40 + n), *range(60)], 60, temperature=0.8, seed=n, choice=choice)
        for n in range(3)
        for choice in range(2)
    ]
    plain = Driver(NullBackend(rambling, VOCABULARY))
    expected = [each.output for each in plain.finish(requests)]
    for every, blocks in ((None, None), (3, None), (None, 13)):
        draft = NullBackend(nearly, VOCABULARY, total_blocks=16)
        driver = Driver(NullBackend(rambling, VOCABULARY), blocks, drafting(draft))
        assert [each.output for each in driver.finish(requests, None, every)] == expected
        assert driver.logits == plain.logits
        assert driver.scheduler.counters.drafts.accepted > 20


def test_a_long_prompt_is_read_by_the_draft_in_pieces() -> None:
    widest = 0

    class Watched(NullBackend):
        def run(self, plan: Any, want_logits: bool = False) -> Any:
            nonlocal widest
            widest = max(widest, len(plan.token_ids))
            return super().run(plan, want_logits)

    draft = Watched(rambling, VOCABULARY)
    driver = Driver(NullBackend(rambling, VOCABULARY), speculation=drafting(draft))
    driver.finish([request("long", [7] * 300, 30), request("short", [8] * 3, 30)])
    assert driver.scheduler.counters.drafts.proposed > 20
    assert widest == CATCH_UP_TOKENS


def test_a_draft_gives_its_blocks_back() -> None:
    drafter = ModelDrafter(NullBackend(rambling, VOCABULARY, total_blocks=8))
    with engine(speculation=Speculation(drafter, costly=drafter, always=True)) as one:
        one.generate(["a>", "b>", "c>"], SamplingParams(max_tokens=30))
    assert drafter._pool.free == 8
    assert not drafter._caches


def test_a_draft_that_fails_is_switched_off_and_fails_no_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def failing(prefix: NDArray[np.int32]) -> int:
        raise OSError("the disk is gone")

    sampling = SamplingParams(max_tokens=20)
    with engine() as plain:
        expected = plain.generate("x>", sampling)
    with engine(speculation=drafting(NullBackend(failing, VOCABULARY))) as one:
        assert facts(one.generate("x>", sampling)) == facts(expected)
    assert "the disk is gone" in caplog.text


def test_a_draft_that_costs_more_than_it_saves_is_left_alone() -> None:
    """Its guesses are all right, and each takes as long as a step of the target's."""
    from engine.test_speculate import Allowing, linear_cost
    from farthing.engine.sequence import Sequence

    drafter = ModelDrafter(NullBackend(rambling, VOCABULARY))
    drafter.cost = linear_cost(1.0, 0.1)
    asked = []
    drafter.propose = lambda sequences, most: asked.append(most) or [[]]  # type: ignore[method-assign]
    speculation = Speculation(drafter, costly=drafter)
    speculation._balance = Allowing()
    speculation.usual.learn(8, 8)
    sequence = Sequence(request("r", [1, 2, 3], 100), 1000, frozenset())
    speculation.drafts([sequence], 16, linear_cost(1.0, 0.1))
    assert not asked
    drafter.cost = linear_cost(0.1, 0.01)
    sequence.tokens += [1] * 10
    speculation.drafts([sequence], 16, linear_cost(1.0, 0.1))
    assert asked


# --- what is refused


def tokens_of(changed: int | None = None, size: int = 256) -> Tokenizer:
    class Changed(Bytes):
        def token_bytes(self, token_id: int) -> bytes:
            return b"!!" if token_id == changed else bytes([token_id % 256])

    words = Changed()
    words.size = size
    return Tokenizer(words, [], bos_id=None, adds_bos=False, eos_ids=[], named_tokens={})


def test_another_tokenizer_is_refused_with_the_first_token_that_differs() -> None:
    refuse_other_tokens(tokens_of(), tokens_of())
    refuse_other_tokens(tokens_of(size=100), tokens_of())  # it lacks the last
    with pytest.raises(RequestError, match=r"token 65 is b'!!' and not b'A'"):
        refuse_other_tokens(tokens_of(65), tokens_of())
    with pytest.raises(RequestError, match="only 100 tokens"):
        refuse_other_tokens(tokens_of(), tokens_of(size=100))
    with pytest.raises(RequestError, match="token 256"):
        refuse_other_tokens(tokenizer(), tokens_of())


@pytest.mark.parametrize("pair", [(65, 256), (None, 300)])
def test_two_tokenizers_are_called_what_a_person_gave(pair: tuple[int | None, int]) -> None:
    for called in (("draft", "target"), ("student", "teacher")):
        message = f"the {called[0]} has another tokenizer than its {called[1]}"
        with pytest.raises(RequestError, match=message) as refusal:
            refuse_other_tokens(tokens_of(*pair), tokens_of(), called)
        if called[0] == "student":
            assert not re.search("draft|target", str(refusal.value))


@pytest.mark.parametrize("text", ["", "draft=", "self=", "fast", "draft", "lookup"])
def test_a_way_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="draft=MODEL or self=SCHEME"):
        drafting_of(text)
    with pytest.raises(RequestError, match="exact, leviathan"):
        drafting_of("auto", "loose")


def test_what_contradicts_off_is_refused_by_the_names_of_flags() -> None:
    for flags, named in (
        (("off", "leviathan"), ("--speculate-rule leviathan", "--speculate off")),
        (("off", "exact", 1000), ("--lookup-traffic", "--speculate")),
        (("fast",), ("--speculate must be",)),
        (("auto", "loose"), ("--speculate-rule must be",)),
        (("auto", "exact", -1), ("--lookup-traffic is from 0",)),
    ):
        with pytest.raises(RequestError) as refusal:
            drafting_of(*flags)
        assert all(name in str(refusal.value) for name in named)
        assert "_" not in str(refusal.value)
    assert drafting_of("off").way == "off"
    assert drafting_of("auto", "leviathan").rule == "leviathan"


def test_a_copy_of_the_target_guesses_for_it(tmp_path: Path) -> None:
    path = build("llama", tmp_path, quant="BF16")
    sampling = SamplingParams(max_tokens=12, ignore_eos=True, temperature=0.7, seed=3)
    made = []
    for speculate in ("off", "self=q8-0"):
        with Engine.load(path, speculate=speculate, context_length=64) as one:
            made.append(one.generate([1, 2, 3], sampling).token_ids)
            assert one.report is not None
            assert ("draft" in one.report.memory) == (speculate != "off")
    assert made[0] == made[1]
    with pytest.raises(RequestError, match="no such scheme"):
        Engine.load(path, speculate="self=int3")


def test_a_copy_of_weights_that_are_quantised_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="for models of 16 bits"):
        Engine.load(build("llama", tmp_path, quant="Q8_0"), speculate="self=q4-0")


def test_a_copy_has_what_quantising_would_write_where_a_k_quant_divides_no_row() -> None:
    copy = copy_in(model_at(shared("llama", "gguf", "BF16")), "q4_k")
    matrices = [name for name, weight in copy.program.weights.items() if len(weight.shape) == 2]
    assert {copy.formats[name] for name in matrices} == {"Q5_0"}
    assert {copy.tensors[name].format for name in matrices} == {"Q5_0"}


def test_a_quantised_model_is_told_what_most_of_its_matrices_are() -> None:
    model = model_at(shared("llama", "gguf", "Q4_1"))
    first = next(name for name, form in model.formats.items() if form == "Q4_1")
    mixed = replace(model, formats={**model.formats, first: "Q8_0"})
    with pytest.raises(RequestError, match=r"of its 16 matrices .* has 15 as q4_1, 1 as q8_0"):
        copy_in(mixed, "int4")
    assert narrow_formats(mixed) == {"Q4_1": 15, "Q8_0": 1}
    assert not narrow_formats(model_at(shared("llama")))


@pytest.mark.parametrize("quant", ["F32", "F16", "BF16"])
def test_a_copy_that_is_read_no_faster_is_refused(quant: str) -> None:
    """Of every scheme, by the bytes that a step reads, whatever it is called."""
    model = model_at(shared("llama", "gguf", quant))
    refused: dict[str, str] = {}
    for scheme in ("f32", "f16", "bf16", "q8_0", "int8-row", "q4_0", "int4-g32", "nf4-b64"):
        try:
            assert read_bytes(copy_in(model, scheme)) < read_bytes(model)
        except RequestError as error:
            refused[scheme] = str(error)
    assert set(refused) == ({"f32"} if quant == "F32" else {"f32", "f16", "bf16"})
    assert all(f"a step of {model.name} itself reads" in each for each in refused.values())


@pytest.mark.parametrize(
    ("activations", "faster"),
    [
        ("int8", {"q8_0", "int4-g32", "nf4-b64"}),
        ("bf16", set()),
        ("fp32", {"nf4-b64"}),  # whose levels are looked up, and nothing expanded
    ],
)
def test_a_copy_that_activations_expand_is_refused(activations: str, faster: set[str]) -> None:
    path = shared("llama", "gguf", "BF16")
    for scheme in ("q8_0", "int4-g32", "nf4-b64"):
        asked = {"speculate": f"self={scheme}", "activations": activations, "context_length": 64}
        if scheme in faster:
            with Engine.load(path, **asked) as one:
                assert one.generate([1], SamplingParams(max_tokens=2, ignore_eos=True)).token_ids
        else:
            with pytest.raises(
                RequestError, match=f"leave out --activations {activations}, for which"
            ):
                Engine.load(path, **asked)


@pytest.mark.parametrize("activations", [None, *ActivationMode])
def test_what_a_step_reads_is_what_the_backend_packs_without_an_embedding_that_is_no_head(
    activations: ActivationMode | None,
) -> None:
    for family, tied in (("llama", False), ("llama3", True)):
        model = model_at(shared(family, "gguf", "Q8_0" if family == "llama" else "F16"))
        places = plan_memory(model, threads=1, activations=activations).weights
        matrices = {name: place.bytes for name, place in places.items() if place.packed}
        embedding = matrices["embedding.weight"]
        assert model.config.tied is tied
        assert read_bytes(model, activations) == sum(matrices.values()) - (0 if tied else embedding)


def test_a_draft_as_costly_as_its_target_is_refused(tmp_path: Path) -> None:
    """The model itself, in as many bits or more; of fewer bits it may guess."""
    paths = {quant: str(shared("llama", "gguf", quant)) for quant in ("F32", "BF16", "Q4_0")}
    for target, draft in (("BF16", "BF16"), ("BF16", "F32"), ("Q4_0", "Q4_0")):
        with pytest.raises(RequestError, match="no less than the .* MB that a step of"):
            Engine.load(paths[target], speculate=f"draft={paths[draft]}", context_length=64)
    asked = f"draft={paths['Q4_0']}"
    with Engine.load(paths["BF16"], speculate=asked, context_length=64) as one:
        assert one.generate([1, 2], SamplingParams(max_tokens=2, ignore_eos=True)).token_ids


def test_a_draft_larger_than_its_target_is_refused(smollm2_path: Path, gemma3_path: Path) -> None:
    with pytest.raises(RequestError, match="more than the"):
        Engine.load(smollm2_path, speculate=f"draft={gemma3_path}")
    with pytest.raises(RequestError, match="another tokenizer than its target: token 0 "):
        Engine.load(gemma3_path, speculate=f"draft={smollm2_path}", context_length=64)
