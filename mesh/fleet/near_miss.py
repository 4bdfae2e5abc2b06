"""Tables of the fleet file, which allow no unknown key, and their mistakes in words."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict
from pydantic_core import ErrorDetails

_UNKNOWN = re.compile(r"unknown field `([^`]*)`")


class Strict(BaseModel):
    """A table of the fleet file. Unknown fields and non-finite numbers are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def suggestion(key: str, known: Iterable[str]) -> str:
    """Return a "did you mean" question for a similar key; empty if there is none."""
    near = get_close_matches(key, tuple(known), n=1)
    return f"; did you mean `{near[0]}`?" if near else ""


def in_words(kind: type[BaseModel], wrong: ErrorDetails) -> str:
    """Return one mistake in a part of the file: its place, the mistake, and a similar key."""
    place, said = ".".join(map(str, wrong["loc"])), wrong["msg"]
    if wrong["type"] == "extra_forbidden":
        *table, key = wrong["loc"]
        said = f"unknown key{suggestion(str(key), _keys_at(kind, table))}"
    return ": ".join(part for part in (place, said) if part)


def with_suggestion(mistake: str, known: Iterable[str]) -> str:
    """Return a document's mistake; for an unknown field, with a similar known field."""
    unknown = _UNKNOWN.search(mistake)
    return mistake + (suggestion(unknown[1], known) if unknown else "")


def _keys_at(kind: Any, table: Sequence[str | int]) -> Iterable[str]:
    """Return the keys that a table of the file may have, given the path to it from `kind`."""
    for part in table:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            kind = _plain(kind.model_fields[str(part)].annotation)
        else:
            kind = _plain(get_args(kind)[-1])  # a mapping: any key, then its values
    return kind.model_fields if isinstance(kind, type) and issubclass(kind, BaseModel) else ()


def _plain(annotation: Any) -> Any:
    """Return an annotation without `Annotated` and without `None`."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return _plain(next(each for each in get_args(annotation) if each is not type(None)))
    return annotation
