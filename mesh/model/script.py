"""The script of a scripted model: rules in a TOML file, read and checked.

    [triage]
    fallback = { call = "escalate", with = { reason = "No rule fits: {summary}" } }

    [[triage.rules]]
    name = "an address in the text is looked up"        # what and why, for people
    says = '(?P<address>\\S+@\\S+)'                       # regex, or several: all are in the customer's words
    unless = 'newsletter'                               # regex, or several: none is
    where = { intent = "refund", "find.status" = "a|b" }  # path -> regex that the whole value matches
    without = ["facts.customer_id"]                     # paths at which nothing is known
    call = "find_customer"                              # a tool of the prompt; or `answer = "text"`
    with = { email = "{address}" }                      # its arguments
    facts = { customer_id = "{find.customer_id}" }      # of a move: what it brings; the unknown is left out

A path leads through what the prompt says: `summary`, `intent`, `from`, `move`, `path`, `round`, `text`,
`facts.<key>`, `refused.<rule>` (its detail), a group of `says`, or `<tool>.<field>` in that tool's newest
result (`<tool>.error` if it failed; numbers index lists). `{path}` in a text stands for the value; a
text that is one path alone keeps the value's type. Regexes ignore case, and `.` is any
character.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from mesh.errors import MeshError

Pattern = re.Pattern[str]


class ScriptInvalid(MeshError):
    """A script is missing or wrong; the text says where, line by line."""

    code: ClassVar[str] = "model.script_invalid"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class Action(_Strict):
    """What to do: call a tool, or answer."""

    call: str | None = None
    arguments: Mapping[str, Any] = Field(default={}, alias="with")
    facts: Mapping[str, str] = {}
    answer: str | None = None

    @model_validator(mode="after")
    def _one_thing(self) -> "Action":
        if (self.call is None) == (self.answer is None):
            raise ValueError("either `call` or `answer`")
        if self.answer is not None and (self.arguments or self.facts):
            raise ValueError("an answer has neither `with` nor `facts`")
        return self


class Rule(Action):
    """When to do it. Everything named has to hold."""

    name: str
    says: tuple[Pattern, ...] = ()
    unless: tuple[Pattern, ...] = ()
    where: Mapping[str, Pattern] = {}
    without: tuple[str, ...] = ()

    @field_validator("says", "unless", mode="before")
    @classmethod
    def _patterns(cls, given: str | list[str]) -> tuple[Pattern, ...]:
        return tuple(_compiled(each) for each in ([given] if isinstance(given, str) else given))

    @field_validator("where", mode="before")
    @classmethod
    def _conditions(cls, given: Mapping[str, str]) -> dict[str, Pattern]:
        return {path: _compiled(each) for path, each in given.items()}


class Role(_Strict):
    """One agent's rules, the first that fits wins, and what it does when none fits."""

    fallback: Action
    rules: tuple[Rule, ...] = ()


Script = Mapping[str, Role]
"""By agent."""

_SCRIPT: TypeAdapter[dict[str, Role]] = TypeAdapter(dict[str, Role])


def _compiled(pattern: str) -> Pattern:
    try:
        return re.compile(pattern, re.IGNORECASE | re.DOTALL)
    except re.error as wrong:
        raise ValueError(f"{pattern!r}: {wrong}") from wrong


def parse_script(text: str, source: str = "script") -> Script:
    """Return the script in `text`. Raises ScriptInvalid with every mistake in it."""
    try:
        return _SCRIPT.validate_python(tomllib.loads(text))
    except tomllib.TOMLDecodeError as wrong:
        raise ScriptInvalid(f"{source}: {wrong}") from wrong
    except ValidationError as wrong:
        lines = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in wrong.errors()]
        raise ScriptInvalid("\n".join((f"{source}:", *lines))) from wrong


def load_script(path: Path) -> Script:
    """Return the script in a file. Raises ScriptInvalid."""
    try:
        return parse_script(path.read_text(encoding="utf-8"), str(path))
    except OSError as missing:
        raise ScriptInvalid(f"{path}: {missing.strerror}") from missing
