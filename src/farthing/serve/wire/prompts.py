"""The forms in which a request may give its texts: one or several, as text or as token ids."""

from __future__ import annotations

from farthing.serve.errors import ApiError

Texts = str | list[str | int | list[int]]
"""A text, token ids, or a list of either."""


def texts_of(given: Texts, param: str) -> list[str] | list[list[int]]:
    """The texts, each a string or its token ids. Raises `ApiError` 400 for a mixture."""
    if isinstance(given, str):
        return [given]
    texts = [each for each in given if isinstance(each, str)]
    lists = [each for each in given if isinstance(each, list)]
    ids = [each for each in given if isinstance(each, int)]
    if given and len(texts) == len(given):
        return texts
    if given and len(lists) == len(given):
        return lists
    if given and len(ids) == len(given):
        return [ids]
    raise ApiError(
        400,
        f"{param} must be a string, a list of strings, a list of token ids, or a list of lists "
        "of token ids, and not empty",
        param=param,
        code="invalid_value",
    )
