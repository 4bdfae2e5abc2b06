"""Replies to asks, held against the JSON Schema that the asking agent gave.

The guard does not look: whoever sends a reply checks it first, so that a wrong one is refused where
somebody can still mend it. A schema is an agent's text: nothing that it refers to is ever fetched, and one
whose work nobody can foresee is judged by a process of its own, which is killed when its time is up.
"""

import sys
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec

from mesh.errors import MeshError

CPU_S = 5
"""How much of the processor judging by a schema may cost (whole s), Python's own start included."""
WITHIN_S = 60.0
"""How long that may take: on a machine that is busy with much else, far longer than it costs."""
MEMORY_BYTES = 1 << 30
"""Address space of the process that judges."""
MAX_SCHEMA_BYTES = 16 * 1024
"""Of a schema that an agent of this project asks by."""
_PLAIN_BYTES = 4096
_UNBOUNDED = frozenset({"pattern", "patternProperties", "$ref", "$dynamicRef", "$recursiveRef"})
"""Keywords that make a small schema endless work: patterns backtrack, references multiply. ECMA 262's
patterns allow what no engine matches in linear time, so that these are bounded by time and not by form."""
_SHOWN_CHARS = 300


class ReplyInvalid(MeshError):
    """A reply is not what the question's schema asks for; nothing was sent."""

    code: ClassVar[str] = "client.reply_invalid"


class SchemaUnusable(MeshError):
    """The question's schema is no JSON Schema, refers to something that is not in it, or takes too long."""

    code: ClassVar[str] = "client.schema_unusable"


class _Judged(msgspec.Struct, frozen=True):
    """What came of it."""

    verdict: Literal["fits", "invalid", "unusable"]
    detail: str = ""


def check_reply(schema: Mapping[str, Any] | None, value: Any) -> None:
    """Return if `value` (any JSON value) fits `schema` (2020-12 unless it says another); None fits all.

    It may take `WITHIN_S`: a coroutine calls it in a thread.

    Raises ReplyInvalid, naming the place and what is wrong there, and SchemaUnusable.
    """
    if schema is None:
        return
    judged = _judged(schema, value) if _is_plain(schema) else _judged_apart(schema, value)
    if judged.verdict == "invalid":
        raise ReplyInvalid(judged.detail)
    if judged.verdict == "unusable":
        raise SchemaUnusable(judged.detail)


def check_schema(schema: Mapping[str, Any] | None) -> None:
    """Return if replies can be held against a schema, as far as that can be told without one.

    Raises SchemaUnusable. For who asks: else only who is asked would find out.
    """
    if schema is None:
        return
    size = _size(schema)
    if size > MAX_SCHEMA_BYTES:
        raise SchemaUnusable(f"it has {size} bytes of at most {MAX_SCHEMA_BYTES}")
    judged = _judged_schema(schema)  # which runs none of its patterns and follows none of its references
    if judged.verdict == "unusable":
        raise SchemaUnusable(judged.detail)


def _size(schema: Any) -> int:
    """Return the bytes of a schema's JSON; 0 for what is none, as is said at once by who judges it."""
    try:
        return len(msgspec.json.encode(schema))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        return 0


def _is_plain(schema: Any) -> bool:
    """Return True if a schema is small and its work is bounded by its own size and the value's."""
    if _size(schema) > _PLAIN_BYTES:
        return False
    nodes = [schema]
    while nodes:
        node = nodes.pop()
        if isinstance(node, Mapping):
            if not _UNBOUNDED.isdisjoint(node):
                return False
            nodes += node.values()
        elif isinstance(node, list | tuple):
            nodes += node
    return True


# --- judging --------------------------------------------------------------------------------------


def _judged(schema: Any, value: Any) -> _Judged:
    # Slow to import, and most replies have no schema.
    from jsonschema import exceptions  # type: ignore[import-untyped]  # it ships none
    from jsonschema.validators import Draft202012Validator, validator_for  # type: ignore[import-untyped]
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    judged = _judged_schema(schema)
    if judged.verdict != "fits":
        return judged
    try:
        kind = validator_for(schema, default=Draft202012Validator)
        wrong = exceptions.best_match(kind(schema, registry=Registry()).iter_errors(value))
    except Unresolvable as unusable:
        return _Judged("unusable", f"it refers to what is not in it: {_short(str(unusable))}")
    except Exception as unusable:  # whatever else a stranger's pattern or reference can bring about
        return _Judged("unusable", f"it cannot be used: {type(unusable).__name__}")
    return (
        _Judged("fits")
        if wrong is None
        else _Judged("invalid", f"at {wrong.json_path}: {_short(wrong.message)}")
    )


def _judged_schema(schema: Any) -> _Judged:
    from jsonschema import FormatChecker, exceptions
    from jsonschema.validators import Draft202012Validator, validator_for

    try:
        kind = validator_for(schema, default=Draft202012Validator)
        kind.check_schema(schema, format_checker=FormatChecker(("regex",)))
    except exceptions.SchemaError as unusable:
        return _Judged("unusable", f"not a JSON Schema: at {unusable.json_path}: {_short(unusable.message)}")
    except Exception as unusable:
        return _Judged("unusable", f"it cannot be used: {type(unusable).__name__}")
    return _Judged("fits")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_CHARS else f"{line[:_SHOWN_CHARS]}…"


# --- in a process of its own ----------------------------------------------------------------------


def _judged_apart(schema: Any, value: Any) -> _Judged:
    import signal
    import subprocess

    command = [sys.executable, "-P", "-m", "mesh.agent._reply_schema", str(CPU_S)]
    try:
        ended = subprocess.run(
            command,
            input=msgspec.json.encode((schema, value)),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=WITHIN_S,
            check=False,
        )
        if ended.returncode == -signal.SIGXCPU:
            return _Judged("unusable", f"judging by it takes more than {CPU_S} s of the processor")
        return msgspec.json.decode(ended.stdout, type=_Judged)
    except subprocess.TimeoutExpired:
        return _Judged("unusable", f"judging by it takes longer than {WITHIN_S:g} s")
    except msgspec.MsgspecError:
        return _Judged("unusable", "judging by it takes too much memory")
    except (OSError, TypeError, ValueError, RecursionError) as wrong:
        return _Judged("unusable", f"it cannot be used: {type(wrong).__name__}")


def _main() -> None:
    """Judge (schema, value) from standard input and print what came of it; the argument limits CPU (s)."""
    import resource

    cpu_s = int(sys.argv[1])

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the signal that ends it would write one
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    schema, value = msgspec.json.decode(sys.stdin.buffer.read())
    sys.stdout.buffer.write(msgspec.json.encode(_judged(schema, value)))


if __name__ == "__main__":
    _main()
