"""What could never be served is refused at once, with 400: asking again would not help."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farthing.serve.errors import ApiError
from farthing.serve.settings import raised_by

if TYPE_CHECKING:
    from farthing.serve.keys import Key


def refuse_impossible(
    key: Key, room: int, prompt_tokens: int | None, max_tokens: int | None, priority: int
) -> None:
    """Raises `ApiError` 400 for what is known never to fit, before a prompt was read.

    Prompt and answer may have `room` tokens together.
    """
    if max_tokens is not None and max_tokens >= room:
        raise ApiError(
            400,
            f"max_tokens is {max_tokens}, and prompt and answer may have {room} tokens together: "
            f"ask for {room - 1} at most, and fewer with a longer prompt, or "
            + raised_by("context"),
            param="max_tokens",
            code="context_length_exceeded",
        )
    if priority > key.priority:
        raise ApiError(
            400,
            f"priority is {priority}, and this key may ask for {key.priority} at most: ask for "
            "that, or leave it out",
            param="priority",
            code="priority_too_high",
        )
    if prompt_tokens is not None:
        refuse_too_long(key, prompt_tokens)


def refuse_too_long(key: Key, prompt_tokens: int) -> None:
    """Raises `ApiError` 400 for prompts that are longer than a key's may ever be."""
    for limit, name in (
        (key.most_queued_tokens, "most_queued_tokens"),
        (key.tokens_per_minute, "tokens_per_minute"),
    ):
        if limit is not None and prompt_tokens > limit:
            raise ApiError(
                400,
                f"the prompt has {prompt_tokens} tokens, and the {name} of this key is {limit}: "
                "shorten the prompt, or ask whoever runs the server for more in the file of keys",
                code="key_limit_exceeded",
            )
