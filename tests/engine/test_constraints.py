"""Constrained texts, on a model of bytes that says anything: the form holds, whatever else runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from engine.scripted import EOS, TURN, VOCABULARY, Bytes, engine, rambling, tokenizer
from farthing.backends.null import NullBackend
from farthing.core import Constraint, RequestError, SamplingParams
from farthing.engine import constraints
from farthing.engine.constraints import Grammars, Matcher
from farthing.text.sentencepiece import ScoredVocabulary
from farthing.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from farthing.engine.completion import Completion

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "bc"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def schema(value: object = SCHEMA) -> Constraint:
    return Constraint("json_schema", json.dumps(value))


def choice(*texts: str) -> Constraint:
    return Constraint("choice", json.dumps(texts))


def regex(pattern: str) -> Constraint:
    return Constraint("regex", pattern)


def constrained(constraint: Constraint, **fields: Any) -> SamplingParams:
    return SamplingParams(constraint=constraint, **{"temperature": 1.5, "seed": 1, **fields})


def made(constraint: Constraint, prompt: str = "prompt", **fields: Any) -> Completion:
    with engine() as one:
        return one.generate(prompt, constrained(constraint, **fields))


class TestForms:
    @pytest.mark.parametrize("seed", range(8))
    def test_a_document_follows_its_schema_and_ends_with_its_last_character(
        self, seed: int
    ) -> None:
        completion = made(schema(), seed=seed)
        document = json.loads(completion.text)
        assert list(document) == ["name", "age", "tags"]
        assert 0 <= document["age"] <= 120
        assert set(document["tags"]) <= {"a", "bc"}
        assert completion.finish_reason == "stop"
        assert bytes(completion.token_ids).decode() == completion.text

    def test_every_choice_comes_up_and_nothing_else(self) -> None:
        texts = ["yes", "no", "perhaps", 'quoted "\\" text', "naïve\n", "<eos>"]
        with engine() as one:
            answers = [
                one.generate("x", constrained(choice(*texts), seed=seed)).text for seed in range(60)
            ]
        assert set(answers) == set(texts)

    def test_there_may_be_a_thousand_choices_though_all_begin_alike(self) -> None:
        texts = [f"choice {number}" for number in range(1000)]
        for seed in range(5):
            assert made(choice(*texts), seed=seed, max_tokens=20).text in texts

    @pytest.mark.parametrize(
        "pattern", [r"[0-9]{3}-[a-z]+", r"(cat|dog)s? (runs|eats)\.", "[α-ω]{5}", r"(?i)abc"]
    )
    def test_a_text_matches_its_expression_as_a_whole(self, pattern: str) -> None:
        for seed in range(5):
            completion = made(regex(pattern), seed=seed, max_tokens=200)
            if completion.finish_reason == "stop":
                assert re.fullmatch(pattern, completion.text)

    def test_a_lark_grammar_is_followed(self) -> None:
        grammar = (
            'start: pair ("," pair){1,3} ";"\npair: /[a-z]{2}/ "=" NUMBER\nNUMBER: /[0-9]{1,3}/'
        )
        text = made(Constraint("lark", grammar)).text
        assert re.fullmatch(r"[a-z]{2}=\d{1,3}(,[a-z]{2}=\d{1,3}){1,3};", text)

    def test_white_space_in_json_is_bounded(self) -> None:
        def spaces(prefix: NDArray[np.int32]) -> NDArray[np.float32]:
            logits = rambling(prefix)
            logits[[ord(each) for each in " \n\t\r"]] = 50
            logits[ord('"')] = -50
            return logits

        with engine(spaces) as one:
            sampling = constrained(schema({"type": "array"}), max_tokens=300)
            text = one.generate("x", sampling).text
        assert not re.search(r"  [^ ]*\n|\n\n|[ \t]{33}|\r", text)

    def test_the_model_cannot_leave_the_form_by_a_control_token(self) -> None:
        def ending(prefix: NDArray[np.int32]) -> NDArray[np.float32]:
            logits = rambling(prefix)
            logits[TURN], logits[EOS] = 60, 50
            return logits

        with engine(ending) as one:
            completion = one.generate("x", constrained(regex("[a-z]{3,9}")))
        assert re.fullmatch("[a-z]{3}", completion.text)  # as soon as it may, it ends
        assert completion.token_ids[-1] == EOS
        assert completion.finish_reason == "stop"

    def test_log_probabilities_are_of_the_unconstrained_distribution(self) -> None:
        completion = made(choice("zebra"), logprobs=1, temperature=0.0)
        assert completion.logprobs is not None
        assert [entry.token_id for entry in completion.logprobs] == list(b"zebra")
        assert all(entry.logprob <= entry.top[0][1] < 0 for entry in completion.logprobs)
        assert any(entry.token_id != entry.top[0][0] for entry in completion.logprobs)


class TestEnds:
    def test_max_tokens_cuts_a_document_short(self) -> None:
        completion = made(schema(), max_tokens=5)
        assert completion.finish_reason == "length"
        assert len(completion.token_ids) == 5
        assert completion.text.startswith("{")

    def test_a_form_that_is_complete_with_the_last_token_allowed_has_stopped(self) -> None:
        assert made(choice("abc"), max_tokens=3).finish_reason == "stop"

    def test_a_stop_string_cuts_a_document_short(self) -> None:
        completion = made(schema(), stop=('"age"',))
        assert completion.finish_reason == "stop"
        assert completion.text.startswith('{"name"') or completion.text.startswith("{\n")
        assert "age" not in completion.text

    def test_a_complete_form_ends_the_text_before_min_tokens(self) -> None:
        completion = made(choice("abc"), min_tokens=10, max_tokens=20)
        assert (completion.text, completion.finish_reason) == ("abc", "stop")

    def test_min_tokens_makes_a_form_go_on_where_it_can(self) -> None:
        for seed in range(5):
            completion = made(regex("[ab]+"), min_tokens=12, max_tokens=60, seed=seed)
            assert len(completion.text) >= 12

    @pytest.mark.parametrize("ignore_eos", [False, True])
    def test_an_ending_token_that_is_ignored_ends_a_form_only_where_nothing_else_can_follow(
        self, ignore_eos: bool
    ) -> None:
        def ending(prefix: NDArray[np.int32]) -> int:
            return EOS

        with engine(ending) as one:
            sampling = constrained(regex("[ab]{2,6}"), ignore_eos=ignore_eos, temperature=0.0)
            completion = one.generate("x", sampling)
        assert len(completion.text) == (6 if ignore_eos else 2)
        assert completion.finish_reason == "stop"

    def test_a_stop_token_ends_a_form_early(self) -> None:
        completion = made(choice("abcdef"), stop_token_ids=(ord("d"),))
        assert (completion.text, completion.finish_reason) == ("abc", "stop")


def mixed() -> list[SamplingParams]:
    forms = [schema(), regex("[a-f0-9]{20,60}"), choice("one", "two", "three"), None]
    return [
        SamplingParams(constraint=forms[index % 4], temperature=0.9, seed=index, max_tokens=70)
        for index in range(12)
    ]


@pytest.mark.parametrize(
    "sizes",
    [{}, {"max_step_tokens": 7, "max_step_rows": 3}, {"total_blocks": 7}, {"total_blocks": 12}],
    ids=str,
)
def test_a_constrained_text_is_the_same_in_any_batch_and_after_any_preemption(
    sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARTHING_CHECK", "1")
    prompts = [f"{'y' * (11 * index)} prompt {index}" for index in range(12)]
    with engine() as one:
        alone = [
            one.generate(prompt, sampling)
            for prompt, sampling in zip(prompts, mixed(), strict=True)
        ]
    with engine(**sizes) as one:
        streams = [
            one.submit(prompt, sampling)[0]
            for prompt, sampling in zip(prompts, mixed(), strict=True)
        ]
        together = [stream.result() for stream in streams]
        preemptions = one.stats().counters.preemptions
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]
    assert [each.finish_reason for each in together] == [each.finish_reason for each in alone]
    assert (preemptions > 0) == (sizes.get("total_blocks") in (7, 12))


def test_choices_of_one_prompt_follow_the_form_each_by_itself() -> None:
    sampling = constrained(schema(), temperature=1.0)
    with engine() as one:
        together = [stream.result() for stream in one.submit("x" * 70, sampling, n=6)]
        alone = [one.submit("x" * 70, sampling, n=index + 1)[-1].result() for index in range(6)]
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]
    assert len({each.text for each in together}) == 6
    for each in together:
        assert list(json.loads(each.text)) == ["name", "age", "tags"]


class TestErrors:
    @pytest.mark.parametrize(
        ("constraint", "said"),
        [
            (Constraint("json_schema", "{"), "not JSON"),
            (Constraint("json_schema", "[]"), "is an object"),
            (Constraint("json_schema", "[" * 100_000), "not JSON"),
            (schema({"type": "nonsense"}), "nonsense"),
            (schema({"not": {"type": "string"}}), "not"),
            (schema({"$ref": "https://example.org/schema"}), "example.org"),
            (schema({"$ref": "#"}), "cannot follow"),
            (schema({"type": "integer", "multipleOf": 1000003}), "multipleOf"),
            (schema({"type": "number", "multipleOf": 1.00001}), "multipleOf"),
            (schema({"type": "string", "pattern": "(a"}), "regex"),
            (regex("(a"), "unclosed group"),
            (regex("(?=a)b"), "look-around"),
            (regex("x" * 200_000), "characters"),
            (regex("\ud800"), "surrogate"),
            (choice(), "1 to 1000"),
            (choice("a", ""), "not empty"),
            (Constraint("choice", '"abc"'), "list of 1"),
            (Constraint("choice", "[1]"), "not 1"),
            (Constraint("lark", "start: missing"), "missing"),
            (regex(r"[^\s\S]"), "constraint"),
        ],
        ids=str,
    )
    def test_a_constraint_that_cannot_be_followed_is_refused_with_the_reason(
        self, constraint: Constraint, said: str
    ) -> None:
        with engine() as one:
            with pytest.raises(RequestError, match=re.escape(said)):
                one.submit("x", SamplingParams(constraint=constraint))
            with pytest.raises(RequestError, match=re.escape(said)):
                one.check("x", SamplingParams(constraint=constraint))
            with pytest.raises(RequestError, match=re.escape(said)):
                one.prepare(constraint)
            assert one.idle

    @pytest.mark.parametrize(
        "constraint",
        [
            regex("(x{1000}){1000}"),
            regex("(a|b)*a(a|b){40}"),
            regex(r"(.{0,1000}a.{0,1000}b.{0,1000}){50}"),
            regex(r"(\w{1,200} ){1,200}"),
            regex("|".join(f"{each:06}.*x" for each in range(8000))),
            Constraint("lark", 'start: a\na: a a | "x" | '),
            schema({"type": "array", "minItems": 100_000, "items": {"type": "string"}}),
            schema({"type": "string", "minLength": 100_000, "maxLength": 10_000_000}),
            schema({"enum": [f"value {each}" for each in range(7000)]}),
            schema({"properties": {f"p{each}": {"type": "string"} for each in range(2500)}}),
        ],
        ids=lambda each: each.source[:30],
    )
    def test_a_hostile_constraint_ends_soon_in_an_error_or_in_a_text(
        self, constraint: Constraint
    ) -> None:
        started = time.process_time()
        with engine() as one:
            neighbour = one.stream("x", SamplingParams(max_tokens=60, seed=1))
            try:
                stream = one.stream("y", constrained(constraint, max_tokens=60))
                completion = stream.result()
            except RequestError:
                pass
            else:
                assert completion.finish_reason in ("stop", "length")
            assert len(neighbour.result().token_ids) == 60
        assert time.process_time() - started < 20

    def test_a_constraint_that_other_parameters_forbid_ends_that_request_alone(self) -> None:
        banned = {ord("a"): -np.inf, ord("b"): -np.inf}
        with engine() as one:
            others = [one.stream("x", SamplingParams(max_tokens=40, seed=each)) for each in (1, 2)]
            stream = one.stream("x", constrained(regex("c[ab]{3}"), logit_bias=banned))
            with pytest.raises(RequestError, match="no token can be chosen"):
                stream.result()
            assert stream.completion.text == "c"
            assert stream.completion.finish_reason == "error"
            assert all(len(other.result().token_ids) == 40 for other in others)
            assert one.idle

    def test_a_model_whose_scores_are_no_numbers_is_still_its_own_fault(self) -> None:
        with (
            engine(lambda prefix: np.full(VOCABULARY, np.nan, np.float32)) as one,
            pytest.raises(RequestError, match="no token can be chosen"),
        ):
            one.generate("abc", constrained(choice("a")))

    def test_a_constraint_is_one_of_the_kinds_with_text_for_a_source(self) -> None:
        with pytest.raises(RequestError, match="not 'xml'"):
            Constraint("xml", "<a/>")  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="must be text"):
            Constraint("regex", 5)  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="constraint must be a Constraint"):
            SamplingParams(constraint="[a-z]+")  # type: ignore[arg-type]


def followed(grammars: Grammars, constraint: Constraint, seed: int, tokens: int) -> Matcher:
    """A matcher after so many random tokens of those it allowed."""
    matcher = Matcher(grammars.compile(constraint))
    draw = np.random.default_rng(seed)
    for _ in range(tokens):
        allowed = np.flatnonzero(np.unpackbits(matcher.mask.view(np.uint8), bitorder="little"))
        matcher.advance(int(draw.choice(allowed[allowed < 256])))
    return matcher


class TestLimits:
    FORM = regex(r"(\w{1,200} ){1,200}")

    @pytest.fixture
    def grammars(self, monkeypatch: pytest.MonkeyPatch) -> Grammars:
        monkeypatch.setitem(constraints._LIMITS, "max_lexer_states", 600)
        return Grammars(tokenizer(), VOCABULARY)

    def test_texts_of_one_grammar_do_not_use_up_what_others_may_learn(
        self, grammars: Grammars
    ) -> None:
        first = grammars.compile(self.FORM).master
        for seed in range(12):
            followed(grammars, self.FORM, seed, 60)
        assert grammars.compile(self.FORM).master is not first

    def test_a_text_that_goes_on_with_another_grammar_goes_on_as_it_would_have(
        self, grammars: Grammars, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bounded = [followed(grammars, self.FORM, seed, 60).mask.tolist() for seed in range(8)]
        monkeypatch.setitem(constraints._LIMITS, "max_lexer_states", 200_000)
        free = Grammars(tokenizer(), VOCABULARY)
        assert bounded == [followed(free, self.FORM, each, 60).mask.tolist() for each in range(8)]

    def test_a_grammar_that_takes_long_to_compile_is_not_compiled_again_between_steps(
        self, grammars: Grammars, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(constraints, "_SLOW_SECONDS", 0.0)
        with pytest.raises(RequestError, match="too many states"):
            _ = [followed(grammars, self.FORM, seed, 60) for seed in range(12)]

    def test_the_grammars_used_last_are_kept(self) -> None:
        grammars = Grammars(tokenizer(), VOCABULARY)
        first = grammars.compile(choice("0"))
        for number in range(1, 60):
            grammars.compile(choice(str(number)))
            assert grammars.compile(choice("0")) is first
        second = grammars.compile(choice("59"))
        assert grammars.compile(choice("59")) is second
        assert len(grammars._kept) == 32


class TestVocabularies:
    def whole(self, words: Tokenizer, size: int) -> str:
        with engine_over_bytes(words, size) as one:
            sampling = constrained(regex("[a-z]{4}[0-9]*"), max_tokens=9)
            return one.generate(list(b"x"), sampling).text

    @pytest.mark.parametrize("size", [259, 300, 320, 257])
    def test_the_model_may_have_more_tokens_than_the_tokenizer_or_fewer(self, size: int) -> None:
        assert re.fullmatch("[a-z]{4}[0-9]*", self.whole(tokenizer(), size))

    @pytest.mark.parametrize("size", [256, 288])
    def test_a_model_without_an_ending_token_ends_where_nothing_can_follow(self, size: int) -> None:
        words = Tokenizer(Bytes(), [])
        assert re.fullmatch("[a-z]{4}[0-9]{5}", self.whole(words, size))
        with engine_over_bytes(words, size) as one:
            completion = one.generate([1], constrained(choice("abc")))
        assert (completion.text, completion.finish_reason) == ("abc", "stop")


def test_what_a_form_leaves_no_choice_in_is_tokenised_as_the_middle_of_a_text() -> None:
    texts = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "ab", "▁ab"]
    words = Tokenizer(
        ScoredVocabulary(
            texts,
            [0.0] * 259 + [0.0, 1.0, 2.0],
            mergeable_ids={text: number for number, text in enumerate(texts) if number > 256},
            byte_ids={byte: 1 + byte for byte in range(256)},
            unknown_id=0,
            silent_ids=frozenset([0]),
            adds_space=True,
        ),
        [],
        strips_leading_space=True,
    )
    with engine_over_bytes(words, len(texts)) as one:
        completion = one.generate([1], constrained(choice("abab b")))
    assert completion.text == "abab b"


def engine_over_bytes(words: Tokenizer, size: int) -> Any:
    from farthing.engine.engine import Engine

    def script(prefix: NDArray[np.int32]) -> NDArray[np.float32]:
        draw = np.random.default_rng(int(prefix.sum()))
        return draw.normal(0, 1, size).astype(np.float32)

    return Engine(NullBackend(script, size), words)


def test_a_text_without_constraint_needs_no_grammar_library() -> None:
    script = (
        "import sys; from farthing.engine.engine import Engine; from engine.scripted import *;"
        "one = engine(); one.generate('x', None); assert 'llguidance' not in sys.modules"
    )
    root = str(__import__("pathlib").Path(__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {root!r}); {script}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
