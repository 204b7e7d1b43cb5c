"""How text is cut into words before byte-level BPE, by the names that GGUF files give the rules.

The names, and what rule each stands for, are llama.cpp's. The regular expressions are those that
the models were published with (their tokenizer.json), in the dialect of Oniguruma, which the
`tokenizers` library uses; those of `default`, `falcon`, `bloom`, `viking` are llama.cpp's own. Each
pattern in turn cuts every piece that is left by those before it into its matches and what lies
between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, pre_tokenizers

from farthing.core import UnsupportedModelError


@dataclass(frozen=True)
class PreTokenizerRule:
    """`patterns` cut the text; a word that is a token needs no merges if `ignore_merges`.

    A text begins with the beginning-of-sequence token if `adds_bos`; a file may say otherwise.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    adds_bos: bool = False


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LINES_AND_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _llama3(digits: str) -> str:
    return (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_LINES_AND_SPACES}"
    )


def _cased_words(ending: str, digits: str) -> str:
    """Words split where a capital follows a small letter (GPT-4o's rule, and Tekken's)."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    before = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{before}{upper}*{lower}+{ending}|{before}{upper}+{lower}*{ending}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES_AND_SPACES}"
    )


_DIGITS_IN_THREES = r"\p{N}{1,3}"
_CJK_AND_KANA = "[一-龥\u3040-ゟ゠-ヿ]+"
_HAN_AND_HANGUL = "[一-龥ࠀ-一가-\ud7ff]+"
_DEEPSEEK3_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LINES_AND_SPACES}"
)
_DEEPSEEK_LLM_LETTERS = (
    "A-Za-z\u00b5À-ÖØ-öø-ƺƼ-ƿ\u01c4-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-\u03f5Ϸ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿ"
    "ᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼ\u2102"
    "\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134"
    "\u2139\u213c-\u213f\u2145-\u2149ⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿ\ufb00-\ufb06\ufb13-"
    "\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8"
    "-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900"
    "-\U0001e943"
)
_NO_PUNCTUATION = r" ?[^(\s|.,!?…。，、।۔،)]+"

_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES_AND_SPACES}"
)
_SEED_CODER = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES_AND_SPACES}"
)

_gpt2 = PreTokenizerRule((_GPT2,))
_starcoder = PreTokenizerRule((r"\p{N}", _GPT2))
_llama_bpe = PreTokenizerRule((_llama3(_DIGITS_IN_THREES),), ignore_merges=True, adds_bos=True)
_dbrx = PreTokenizerRule((_llama3(_DIGITS_IN_THREES),))
_qwen2 = PreTokenizerRule((_llama3(r"\p{N}"),))
_gpt4o = PreTokenizerRule((_cased_words(f"{_CONTRACTIONS}?", _DIGITS_IN_THREES),))
_deepseek3 = PreTokenizerRule((_DIGITS_IN_THREES, _CJK_AND_KANA, _DEEPSEEK3_WORDS))

PRE_TOKENIZERS: dict[str, PreTokenizerRule] = {
    "default": PreTokenizerRule(
        (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    ),
    **dict.fromkeys(
        ("gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "exaone4", "mpt", "olmo", "jais"), _gpt2
    ),
    **dict.fromkeys(("trillion", "granite-docling"), _gpt2),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
        _starcoder,
    ),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        _llama_bpe,
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _dbrx),
    **dict.fromkeys(
        ("glm4", "glm5"), PreTokenizerRule((_llama3(_DIGITS_IN_THREES),), ignore_merges=True)
    ),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "kormo", "stablelm2", "hunyuan", "solar-open", "megrez"),
        _qwen2,
    ),
    "grok-2": _qwen2,
    "qwen35": PreTokenizerRule((_QWEN35,)),
    "seed-coder": PreTokenizerRule((_SEED_CODER,)),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), _gpt4o),
    "tekken": PreTokenizerRule((_cased_words("", r"\p{N}"),), ignore_merges=True, adds_bos=True),
    "deepseek-llm": PreTokenizerRule(
        (
            r"[\r\n]",
            rf"\s?[{_DEEPSEEK_LLM_LETTERS}]+",
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            _HAN_AND_HANGUL,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenizerRule(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_AND_HANGUL, r"\p{N}")
    ),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _deepseek3),
    "falcon": PreTokenizerRule((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), PreTokenizerRule((_NO_PUNCTUATION,))),
    "viking": PreTokenizerRule((_NO_PUNCTUATION, r"\p{N}")),
}
"""The rule of each `tokenizer.ggml.pre` that is known."""


def pre_tokenizer_rule(name: str, where: str) -> PreTokenizerRule:
    """The rule of that name. Raises `UnsupportedModelError` for a name that is not known."""
    rule = PRE_TOKENIZERS.get(name)
    if rule is None:
        raise UnsupportedModelError(
            f"{where}: the pre-tokenizer {name!r:.80} is not known; its words would be cut wrongly "
            f"and every answer be worse. Known are {', '.join(sorted(PRE_TOKENIZERS))}"
        )
    return rule


def name_of_pre_tokenizer(description: object, ignore_merges: bool) -> str | None:
    """What GGUF files call the rule of a tokenizer.json; None where no name stands for it.

    `description` is its `pre_tokenizer`. Of several names for one rule it is the commonest.
    """
    patterns = _patterns_of(description)
    return next(
        (
            name
            for name, rule in PRE_TOKENIZERS.items()
            if rule.patterns == patterns and rule.ignore_merges == ignore_merges
        ),
        None,
    )


def _patterns_of(description: object) -> tuple[str, ...] | None:
    """The patterns that cut as a tokenizer.json says, before bytes are written as characters."""
    if not isinstance(description, dict):
        return None
    *steps, last = description.get("pretokenizers") or [description]
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return None
    found = [_pattern_of(step) for step in steps]
    # Absent, it is what the library takes it for.
    patterns = (*found, _GPT2) if last.get("use_regex", True) else (*found,)
    return None if None in found else tuple(filter(None, patterns))


def _pattern_of(step: dict[str, Any]) -> str | None:
    if step.get("type") == "Digits":
        return r"\p{N}" if step.get("individual_digits") else r"\p{N}+"
    if step.get("type") != "Split" or step.get("behavior") != "Isolated" or step.get("invert"):
        return None
    pattern: str | None = step.get("pattern", {}).get("Regex")
    return pattern


def build_pre_tokenizer(rule: PreTokenizerRule) -> pre_tokenizers.PreTokenizer:
    """The rule as the library runs it; the last step writes each byte as a character."""
    steps: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns
    ]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(steps)
