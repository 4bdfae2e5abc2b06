"""Replies to asks, held against the JSON Schema that the asking agent gave.

The guard does not look: whoever sends a reply checks it first, so that a wrong one is refused where
somebody can still mend it. A schema is an agent's text: nothing that it refers to is ever fetched.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from mesh.errors import MeshError

_SHOWN_CHARS = 300


class ReplyInvalid(MeshError):
    """A reply is not what the question's schema asks for; nothing was sent."""

    code: ClassVar[str] = "client.reply_invalid"


class SchemaUnusable(MeshError):
    """The question's schema is no JSON Schema, or refers to something that is not in it."""

    code: ClassVar[str] = "client.schema_unusable"


def check_reply(schema: Mapping[str, Any] | None, value: Any) -> None:
    """Return if `value` (any JSON value) fits `schema` (2020-12 unless it says another); None fits all.

    Raises ReplyInvalid, naming the place and what is wrong there, and SchemaUnusable.
    """
    if schema is None:
        return
    # Slow to import, and most replies have no schema.
    from jsonschema import exceptions  # type: ignore[import-untyped]  # it ships none
    from jsonschema.validators import Draft202012Validator, validator_for  # type: ignore[import-untyped]
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    try:
        kind = validator_for(schema, default=Draft202012Validator)
        kind.check_schema(schema)
        wrong = exceptions.best_match(kind(schema, registry=Registry()).iter_errors(value))
    except exceptions.SchemaError as unusable:
        raise SchemaUnusable(f"not a JSON Schema: {_short(unusable.message)}") from None
    except Unresolvable as unusable:
        raise SchemaUnusable(f"it refers to what is not in it: {_short(str(unusable))}") from None
    except Exception as unusable:  # whatever else a stranger's pattern or reference can bring about
        raise SchemaUnusable(f"it cannot be used: {type(unusable).__name__}") from unusable
    if wrong is not None:
        raise ReplyInvalid(f"at {wrong.json_path}: {_short(wrong.message)}")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_CHARS else f"{line[:_SHOWN_CHARS]}…"
