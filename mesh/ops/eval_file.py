"""Files of requests with what should come of each: one JSON object a line, or TOML with `[[requests]]`.

A mistake is told with file and line. A file is read whole before anything is submitted.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from mesh.errors import UsageWrong
from protocol.wire import codec
from protocol.wire.commands import Submit
from protocol.wire.errors import Malformed
from protocol.wire.guardrails import PatternInvalid, compiled
from protocol.wire.handoff import Rule
from protocol.wire.ids import NAME_RULE, is_name
from protocol.wire.prices import READ_ERRORS

_LONGEST_NAME = 128
_HEADER = re.compile(r"^[ \t]*\[\[[ \t]*requests[ \t]*\]\]", re.MULTILINE)
_AT_LINE = re.compile(r"at line ([0-9]+)")
_WRONG = (*READ_ERRORS, Malformed, TypeError, OverflowError)

Count = Annotated[int, msgspec.Meta(ge=0)]
Dollars = Annotated[float, msgspec.Meta(ge=0)]
EvalStatus = Literal["completed", "failed", "refused", "expired", "cancelled", "escalated", "asked"]
"""How a request came to rest: its end, or who is asked: a person (`escalated`), the client (`asked`)."""


class EvalExpected(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What should come of a request. A field that is left out is not looked at, but for `status`."""

    status: EvalStatus = "completed"
    answer_matches: str | None = None
    """A pattern that the answer matches somewhere; an answer that is no text is matched as JSON."""
    answer: Any = msgspec.UNSET
    """JSON that the answer contains: of an object these fields, of a list these items, else this value."""
    agents: tuple[str, ...] = ()
    """Agents that held it or one of its tasks, in any order."""
    forbidden_agents: tuple[str, ...] = ()
    refused: tuple[Rule, ...] = ()
    """Rules that refused something on the way, or the request itself."""
    max_dollars: Dollars | None = None
    max_tokens: Count | None = None
    max_model_calls: Count | None = None
    max_hops: Count | None = None


class EvalCase(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a file."""

    name: str
    submit: Submit
    expect: EvalExpected


class _Written(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request as its file has it."""

    name: str
    text: str
    to: str | None = None
    intent: str | None = None
    facts: dict[str, Any] = {}
    policy: str = "default"
    expect: EvalExpected = EvalExpected()


def read_cases(path: Path) -> list[EvalCase]:
    """Return the requests in a file. Raises UsageWrong with file and line."""
    try:
        body = path.read_bytes()
    except OSError as missing:
        raise UsageWrong(f"{path}: {missing.strerror}") from missing
    return cases_in(body, path)


def cases_in(body: bytes, path: Path) -> list[EvalCase]:
    """Return the requests in the bytes of a file. Raises UsageWrong with file and line.

    Args:
        path: names the file in errors; with the ending `.toml` it is TOML.
    """
    placed = _in_toml(body, path) if path.suffix == ".toml" else _in_lines(body, path)
    cases: list[EvalCase] = []
    lines: dict[str, int] = {}
    for line, fields in placed:
        try:
            case = _case_of(fields)
        except _WRONG as wrong:
            raise _wrong(path, line, _words(wrong)) from wrong
        if case.name in lines:
            raise _wrong(path, line, f"{case.name!r} is the name of the request in line {lines[case.name]}")
        lines[case.name] = line
        cases.append(case)
    if not cases:
        raise UsageWrong(f"{path} holds no request")
    return cases


def _in_lines(body: bytes, path: Path) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(body.splitlines(), start=1):
        if line.strip():
            try:
                yield number, msgspec.json.decode(line)
            except READ_ERRORS as wrong:
                raise _wrong(path, number, _words(wrong)) from wrong


def _in_toml(body: bytes, path: Path) -> Iterator[tuple[int, Any]]:
    try:
        text = body.decode()
        found = tomllib.loads(text)
    except UnicodeDecodeError as wrong:
        raise _wrong(path, body.count(b"\n", 0, wrong.start) + 1, "it is no UTF-8") from wrong
    except tomllib.TOMLDecodeError as wrong:
        placed = _AT_LINE.search(str(wrong))
        line = int(placed[1]) if placed else text.count("\n") + 1
        raise _wrong(path, line, str(wrong)) from wrong
    except (RecursionError, ValueError) as wrong:  # a date or a number that Python cannot hold
        raise _wrong(path, 1, _words(wrong)) from wrong
    requests = found.pop("requests", [])
    if found:
        raise _wrong(path, 1, f"unknown at the top: {', '.join(map(repr, found))}; there is [[requests]]")
    if not isinstance(requests, list):
        raise _wrong(path, 1, "`requests` is a list of tables, each under [[requests]]")
    lines = [text.count("\n", 0, header.start()) + 1 for header in _HEADER.finditer(text)]
    if len(lines) != len(requests):  # written in another way: then the first line has to do
        lines = [1] * len(requests)
    yield from zip(lines, requests, strict=True)


def _case_of(fields: Any) -> EvalCase:
    written = msgspec.convert(fields, _Written)
    if not written.name.strip() or len(written.name) > _LONGEST_NAME or not written.name.isprintable():
        raise Malformed(f"name: 1 to {_LONGEST_NAME} printable characters")
    if written.to is not None and not is_name(written.to):
        raise Malformed(f"to: {written.to!r} is no name: {NAME_RULE}")
    expect = written.expect
    if expect.answer_matches is not None:
        try:
            compiled(expect.answer_matches)
        except PatternInvalid as wrong:
            raise Malformed(f"expect.answer_matches: {wrong}") from wrong
    if both := sorted({*expect.agents} & {*expect.forbidden_agents}):
        raise Malformed(f"expect.forbidden_agents: {', '.join(both)} is among `agents`, too")
    submit: dict[str, Any] = {"text": written.text, "policy": written.policy}
    submit |= {name: getattr(written, name) for name in ("to", "intent") if getattr(written, name)}
    submit["facts"] = [{"key": key, "value": value} for key, value in written.facts.items()]
    return EvalCase(name=written.name, submit=codec.parse_submit(msgspec.json.encode(submit)), expect=expect)


def is_part(expected: Any, value: Any) -> bool:
    """Return True if JSON contains other JSON: of objects its fields, of lists its items in order."""
    if isinstance(expected, Mapping):
        return isinstance(value, Mapping) and all(
            key in value and is_part(each, value[key]) for key, each in expected.items()
        )
    if isinstance(expected, list | tuple):
        return (
            isinstance(value, list | tuple)
            and len(value) == len(expected)
            and all(map(is_part, expected, value))
        )
    is_same_kind = isinstance(expected, bool) == isinstance(value, bool)  # to Python, True is 1
    return is_same_kind and bool(expected == value)


def _wrong(path: Path, line: int, what: str) -> UsageWrong:
    return UsageWrong(f"{path}, line {line}: {what}")


def _words(wrong: BaseException) -> str:
    return " ".join(str(wrong).split()) or type(wrong).__name__
