"""The rule for fields that a request has and farthing has not.

One that would change the answer is refused, unless its value asks for what happens anyway; any
other is accepted, and logged the first time.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from farthing.serve.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

log = logging.getLogger("farthing.serve")

CHANGING: dict[str, tuple[object, ...]] = {
    # OpenAI's
    "audio": (),
    "best_of": (1,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "reasoning": (),
    "reasoning_effort": ("none",),
    "suffix": ("",),
    "verbosity": ("medium",),
    "web_search_options": (),
    # vLLM's
    "add_generation_prompt": (True,),
    "add_special_tokens": (),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "guided_grammar": (),
    "guided_json_object": (False,),
    "guided_whitespace_pattern": (),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "mm_processor_kwargs": ({},),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    # SGLang's
    "ebnf": (),
    "lora_path": (),
    "no_stop_trim": (False,),
    "regex": (),
    "separate_reasoning": (True,),
    "stop_regex": ([],),
    # switches of models that reason, which here are in chat_template_kwargs
    "enable_thinking": (),
    "thinking": (),
    "thinking_budget": (),
    # Transformers' and text-generation-inference's
    "do_sample": (True,),
    "max_new_tokens": (),
    "no_repeat_ngram_size": (0,),
    "num_beams": (1,),
    "stop_sequences": ([],),
    # llama.cpp's and others'
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "grammar": ("",),
    "json_schema": (),
    "lora": ([],),
    "min_keep": (0,),
    "mirostat": (0,),
    "n_predict": (),
    "n_probs": (0,),
    "repeat_penalty": (1,),
    "samplers": (),
    "tfs_z": (1,),
    "top_a": (0,),
    "top_n_sigma": (-1,),
    "typical_p": (1,),
    "xtc_probability": (0,),
}
"""Field: the values, beside null, that change nothing."""

ASKING: dict[str, tuple[object, ...]] = {
    **CHANGING,
    "chat_template_kwargs": ({},),
    "echo": (False,),
    "explain_prefix_miss": (False,),
    "frequency_penalty": (0,),
    "guided_choice": (),
    "guided_json": (),
    "guided_regex": (),
    "ignore_eos": (False,),
    "include_reasoning": (True,),
    "input": (),
    "instructions": (),
    "logit_bias": ({},),
    "logprobs": (False,),
    "max_completion_tokens": (),
    "max_output_tokens": (),
    "max_tokens": (),
    "messages": (),
    "min_tokens": (0,),
    "n": (1,),
    "presence_penalty": (0,),
    "previous_response_id": (),
    "prompt": (),
    "reasoning_format": ("auto", "none"),
    "repetition_penalty": (1,),
    "response_format": (),
    "stop": ([],),
    "stop_token_ids": ([],),
    "structured_outputs": ({},),
    "text": ({},),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
}
"""The same with what one way to ask the model has, and another one has not."""

_MOST_NAMES = 1000
_logged: set[str] = set()


def check_unknown(
    body: Mapping[str, Any],
    known: Collection[str],
    where: str = "",
    changing: Mapping[str, tuple[object, ...]] = ASKING,
) -> None:
    """Raises `ApiError` 400 for a field that would change the answer and is not supported.

    `where` is the path to `body` in the request, for the message.
    """
    for name, value in body.items():
        if name in known:
            continue
        if name in changing:
            if value is not None and not any(_same(value, each) for each in changing[name]):
                raise ApiError(
                    400,
                    f"{where}{name} is not supported, and would change the answer: leave it out",
                    param=f"{where}{name}",
                    code="unsupported_parameter",
                )
        elif (shown := name[:100]) not in _logged and len(_logged) < _MOST_NAMES:
            _logged.add(shown)
            log.warning("requests have the field %s%s, which is ignored", where, shown)


def _same(value: object, neutral: object) -> bool:
    """Equal, and not only as Python sees True and 1."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
