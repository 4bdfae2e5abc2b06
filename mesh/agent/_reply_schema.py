"""Replies to asks, checked against the JSON Schema that the asking agent gave.

The guard does not check replies. Their sender does, so a wrong reply is refused where it can still be
corrected. A schema is an agent's text: nothing that it refers to is ever fetched. A schema whose work cannot
be foreseen is judged in a separate process with a limit on processor time. If that reaches no verdict, the
reply is not sent. The limit is on work, not on elapsed time, so a busy machine refuses no good reply.
"""

import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from mesh.errors import MeshError
from protocol.wire import codec

CPU_S = 5
"""Processor time that judging by a schema may take (whole s), including Python's start."""
WITHIN_S = 600.0
"""Elapsed time that it may take if it gets almost no processor time, so that no reply waits for ever."""
MEMORY_BYTES = 1 << 30
"""Address space of the judging process."""
MAX_SCHEMA_BYTES = 16 * 1024
"""Limit of a schema that an agent of this project may ask with."""
_PLAIN_BYTES = 4096
_UNBOUNDED = frozenset(
    {
        *("pattern", "patternProperties", "$ref", "$dynamicRef", "$recursiveRef", "uniqueItems"),
        *("unevaluatedItems", "unevaluatedProperties"),
    }
)
"""Keywords that make endless work of a small schema. Patterns backtrack, references multiply, what is
evaluated is evaluated again at each level, and each item is compared with each. ECMA 262's patterns allow
what no engine matches in linear time. So these are limited by their work and not by their form."""
_SHOWN_CHARS = 300


class ReplyInvalid(MeshError, code="client.reply_invalid"):
    """A reply does not fit the question's schema; nothing was sent."""


class ReplyUnjudged(ReplyInvalid, code="client.reply_unjudged"):
    """Judging a reply reached no verdict: it takes too much work, or no process could do it."""


class SchemaUnusable(MeshError, code="client.schema_unusable"):
    """The question's schema is not a JSON Schema, or refers to something outside itself."""


def check_reply(schema: Mapping[str, Any] | None, value: Any, *, within_s: float = WITHIN_S) -> None:
    """Return if `value` (any JSON value) fits `schema` (2020-12 unless it names another); None fits all.

    It may take up to `within_s`: from a coroutine, call it in a thread.

    Raises ReplyInvalid, naming the place and the mistake, ReplyUnjudged, and SchemaUnusable.
    """
    if schema is None:
        return
    if _is_plain(schema):
        _judge(schema, value)
    else:
        _judge_in_process(schema, value, within_s)


def check_schema(schema: Mapping[str, Any] | None) -> None:
    """Return if a schema itself is valid and small enough; no reply is checked.

    Raises SchemaUnusable when an agent asks, before the question is sent.
    """
    if schema is None:
        return
    size = _size(schema)
    if size > MAX_SCHEMA_BYTES:
        raise SchemaUnusable(f"it has {size} bytes of at most {MAX_SCHEMA_BYTES}")
    _validator_for(schema)  # which runs none of its patterns and follows none of its references


def _size(schema: Any) -> int:
    """Return the size of a schema's JSON in bytes; 0 if it is not JSON, which judging refuses at once."""
    try:
        return len(msgspec.json.encode(schema))
    except codec.UNWRITABLE:
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


def _validator_for(schema: Any) -> Any:
    """Return the class that validates by a schema. Raises SchemaUnusable."""
    # Slow to import, and most replies have no schema.
    from jsonschema import FormatChecker, exceptions  # type: ignore[import-untyped]  # it ships none
    from jsonschema.validators import Draft202012Validator, validator_for  # type: ignore[import-untyped]

    try:
        kind = validator_for(schema, default=Draft202012Validator)
        kind.check_schema(schema, format_checker=FormatChecker(("regex",)))
    except exceptions.SchemaError as wrong:
        text = f"not a JSON Schema: at {wrong.json_path}: {_short(wrong.message)}"
        raise SchemaUnusable(text) from wrong
    except Exception as wrong:
        raise SchemaUnusable(f"it cannot be used: {type(wrong).__name__}") from wrong
    return kind


def _judge(schema: Any, value: Any) -> None:
    from jsonschema import exceptions
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    kind = _validator_for(schema)
    try:
        wrong = exceptions.best_match(kind(schema, registry=Registry()).iter_errors(value))
    except Unresolvable as unusable:
        raise SchemaUnusable(f"it refers to what is not in it: {_short(str(unusable))}") from unusable
    except Exception as unjudged:  # any other error that a foreign reference or a deep value can cause
        raise _unjudged(f"judging it ends in {type(unjudged).__name__}") from unjudged
    if wrong is not None:
        raise ReplyInvalid(f"at {wrong.json_path}: {_short(wrong.message)}")


def _unjudged(why: str) -> ReplyUnjudged:
    return ReplyUnjudged(f"{why}; it is unknown if the reply fits its question, so nothing was sent")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_CHARS else f"{line[:_SHOWN_CHARS]}…"


# --- in a process of its own ----------------------------------------------------------------------


def _judge_in_process(schema: Any, value: Any, within_s: float) -> None:
    import signal
    import subprocess

    command = [sys.executable, "-P", "-m", "mesh.agent._reply_schema", str(CPU_S)]
    try:
        ended = subprocess.run(
            command,
            input=msgspec.json.encode((schema, value)),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=within_s,
            check=False,
        )
        if ended.returncode == -signal.SIGXCPU:
            raise _unjudged(f"judging it takes more than {CPU_S} s of the processor")
        code, text = msgspec.json.decode(ended.stdout, type=tuple[str, str])
    except subprocess.TimeoutExpired:
        raise _unjudged(f"judging it takes longer than {within_s:g} s") from None
    except msgspec.MsgspecError:
        raise _unjudged("the process that judges it was ended, or ran out of memory") from None
    except (OSError, TypeError, ValueError, RecursionError) as wrong:
        raise _unjudged(f"no process can judge it: {type(wrong).__name__}") from wrong
    if code:
        raise next(kind for kind in (ReplyInvalid, ReplyUnjudged, SchemaUnusable) if kind.code == code)(text)


def _main() -> None:
    """Judge (schema, value) from standard input and print (error code, text); the argument limits CPU (s)."""
    import resource

    cpu_s = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # no core dump when the signal ends it
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    schema, value = msgspec.json.decode(sys.stdin.buffer.read())
    result = ("", "")
    try:
        _judge(schema, value)
    except MeshError as no:
        result = (no.code, str(no))
    sys.stdout.buffer.write(msgspec.json.encode(result))


if __name__ == "__main__":
    _main()
