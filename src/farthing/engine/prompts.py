"""The forms in which a caller may give a prompt, and the token ids that they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from farthing.core import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from farthing.text.chat import ChatTemplate
    from farthing.text.tokenizer import Tokenizer

    Chat = Sequence[Mapping[str, Any]]
    Prompt = str | Sequence[int] | NDArray[np.integer[Any]] | Chat
    Prompts = list[str] | list[list[int]] | list[list[dict[str, Any]]]


def is_list_of_prompts(prompt: object) -> bool:
    """Whether it is a list of strings, of lists or of chats; a chat is a list of mappings."""
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str | list | tuple)


def encode(
    prompt: Prompt, tokenizer: Tokenizer, chat_template: ChatTemplate | None, most_tokens: int
) -> list[int]:
    """The token ids of a prompt: a string gets the model's first token, a chat its template.

    Raises `RequestError` for what is no prompt, and for text of more than `most_tokens` tokens.
    """
    if isinstance(prompt, str):
        return tokenizer.encode(prompt, most_tokens=most_tokens)
    if isinstance(prompt, np.ndarray):
        prompt = prompt.tolist()
    if not isinstance(prompt, list | tuple):
        raise RequestError(
            f"a prompt is a string, token ids or a chat, not {type(prompt).__name__}"
        )
    if prompt and all(hasattr(message, "keys") for message in prompt):
        if chat_template is None:
            raise RequestError(
                "this model has no chat template: give the prompt as a string, or take a model "
                "that was trained for chat"
            )
        return chat_template.encode(cast("Chat", prompt), most_tokens=most_tokens)
    ids = [int(token) for token in prompt if type(token) is int or isinstance(token, np.integer)]
    if len(ids) != len(prompt):
        raise RequestError("a prompt of token ids holds whole numbers only")
    return ids
