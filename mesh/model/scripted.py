r"""The scripted model: rules from a TOML file in place of a language model.

It sees only the `Prompt`, reads the brief back from its text, and acts only through tools that the prompt
offers. It follows the first rule that fits, or the agent's fallback if none does.

    [triage]
    fallback = { call = "escalate", with = { reason = "No rule fits: {summary}" } }

    [[triage.rules]]
    name = "an address in the text is looked up"        # what and why, for people
    says = '(?P<address>\S+@\S+)'                       # regex, or several: all are in the customer's words
    unless = 'newsletter'                               # regex, or several: none is
    where = { intent = "refund", "find.status" = "a|b" }  # path -> regex that the whole value matches
    without = ["facts.customer_id"]                     # paths at which nothing is known
    call = "find_customer"                              # a tool of the prompt; or `answer = "text"`
    with = { email = "{address}" }                      # its arguments
    facts = { customer_id = "{find.customer_id}" }      # of a move: new facts; unknown ones are left out

A path leads through the content of the prompt: `summary`, `intent`, `from`, `move`, `path`, `round`, `text`,
`facts.<key>`, `task` (its name), `results.<task>.<field>`, `board.<agent>.<key>`, `refused.<rule>` (its
detail), a group of `says`, or `<tool>.<field>` in that tool's newest result (`<tool>.error` if it failed;
numbers index lists). `{path}` in a text is replaced by the value; a text that is only one path keeps the
value's type. Regexes ignore case, and `.` is any character.
"""

import contextlib
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from mesh.errors import MeshError
from mesh.model.moves import DELEGATE
from mesh.model.port import Hear, Model, PastReply, Prompt, Reply, ToolCall, ToolResult


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.IGNORECASE | re.DOTALL)
    except (re.error, TypeError) as wrong:
        raise ValueError(f"{pattern!r}: {wrong}") from wrong


Pattern = Annotated[re.Pattern[str], BeforeValidator(_compiled)]
Patterns = Annotated[
    tuple[Pattern, ...], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)
]


class ScriptInvalid(MeshError, code="model.script_invalid"):
    """A script is missing or wrong; the text lists every mistake."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class Action(_Strict):
    """An action: call a tool, or answer."""

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


class ScriptedRule(Action):
    """An action and its conditions, which must all hold."""

    name: str
    says: Patterns = ()
    unless: Patterns = ()
    where: Mapping[str, Pattern] = {}
    without: tuple[str, ...] = ()


class AgentRules(_Strict):
    """One agent's rules, of which the first that fits is followed, and its action if none fits."""

    fallback: Action
    rules: tuple[ScriptedRule, ...] = ()


Script = Mapping[str, AgentRules]
"""Rules by agent."""

_SCRIPT: TypeAdapter[dict[str, AgentRules]] = TypeAdapter(dict[str, AgentRules])


def parse_script(text: str, source: str = "script") -> Script:
    """Return the script in `text`. Raises ScriptInvalid, with all mistakes."""
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


_PLACE = re.compile(r"\{([a-z_][\w.-]*)\}")
_HEADS = {
    "Given by": "from",
    "Summary": "summary",
    "Task": "task",
    "Intent": "intent",
    "Path": "path",
    "Round": "round",
}
_FACT = re.compile(r'- (?P<key>[\w.-]+|"(?:[^"\\]|\\.)*"): (?P<rest>.*)')
_REFUSED = re.compile(r"- round \d+ refused: rule (?P<rule>\w+) refused (?P<detail>.*)")
_RULE = re.compile(r"rule (?P<rule>\w+) refused (?P<detail>.*)")
"""A refusal as the result of the call that asked for the move."""
_IN_FULL = "Full text of "
"""Begins the section of a result that is shown in full (`mesh.model.context_window`)."""
_GIVEN = re.compile(r"(?P<name>\S+) \((?P<move>\w+)\)")
_NOTHING_LEFT = "I cannot help with this, and there is nobody here to ask."


class _Unknown(Exception):
    """A template names something unknown."""


class ScriptedModel(Model):
    """Follows a script."""

    mode = "scripted"

    def __init__(self, script: Script) -> None:
        self._script = script

    def require(self, agent: str) -> None:
        """Raise ScriptInvalid if the script has no part for `agent`."""
        if agent not in self._script:
            raise ScriptInvalid(f"the script has no part for {agent!r}")

    async def reply(self, prompt: Prompt, hear: Hear | None = None) -> Reply:
        """Return the reply of the first rule that fits. Raises ScriptInvalid for an agent without rules."""
        reply = self._reply(prompt)
        if hear is not None and reply.text:
            hear(reply.text)
        return reply

    def _reply(self, prompt: Prompt) -> Reply:
        self.require(prompt.agent)
        role = self._script[prompt.agent]
        known = read_prompt(prompt)
        for rule in role.rules:
            groups = _fits(rule, known)
            reply = None if groups is None else _follow(rule, {**groups, **known}, prompt)
            if reply is not None:
                return reply
        return _follow(role.fallback, known, prompt) or Reply(text=_NOTHING_LEFT)


# --- reading the prompt ----------------------------------------------------------------------------------


def read_prompt(prompt: Prompt) -> dict[str, Any]:
    """Return a prompt's content by name: the brief's lines and the newest result of each tool."""
    known = _read_brief(prompt.brief)
    for each in prompt.transcript:
        if not isinstance(each, ToolResult):
            continue
        refused = _RULE.fullmatch(each.text) if each.is_error else None
        if refused is not None:
            known["refused"][refused["rule"]] = refused["detail"]
        elif each.name:
            known[each.name] = {"error": each.text} if each.is_error else _value_of(each.text)
            if each.name == DELEGATE and not each.is_error:
                known["results"] = {**known.get("results", {}), **known[DELEGATE]["results"]}
    return known


def _value_of(text: str) -> Any:
    """Return a result's value: parsed if it is JSON, else the text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _read_brief(brief: str) -> dict[str, Any]:
    known: dict[str, Any] = {"facts": {}, "refused": {}}
    section = ""
    for line in brief.split("\n"):
        head, _, rest = line.partition(": ")
        if line.startswith("- "):
            _read_item(section, line, known)
        elif head in _HEADS and not section:
            known[_HEADS[head]] = rest
        elif section.startswith(_IN_FULL) and line.startswith("{"):
            known.setdefault("results", {})[section.removeprefix(_IN_FULL)] = json.loads(line)
        elif line.endswith(":"):
            section = line[:-1]
    given = _GIVEN.fullmatch(known.get("from", ""))
    if given is not None:
        known["from"], known["move"] = given["name"], given["move"]
    known["text"] = known["facts"].get("text", known.get("summary", ""))
    return known


def _read_item(section: str, line: str, known: dict[str, Any]) -> None:
    if section in ("Results", "Board") and (fact := _FACT.fullmatch(line)) is not None:
        key = fact["key"]
        name = json.loads(key) if key.startswith('"') else key
        known.setdefault(section.lower(), {})[name] = _value_or_words(fact["rest"])
    elif section == "Facts" and (fact := _FACT.fullmatch(line)) is not None:
        key = fact["key"]
        value, _ = json.JSONDecoder().raw_decode(fact["rest"])
        known["facts"][json.loads(key) if key.startswith('"') else key] = value
    elif section.startswith("Earlier rounds") and (refused := _REFUSED.fullmatch(line)) is not None:
        known["refused"][refused["rule"]] = refused["detail"]


def _value_or_words(text: str) -> Any:
    """Return a line's JSON value; for a result shown only by its summary, the text."""
    try:
        return json.loads(text)
    except ValueError:
        return {"summary": text}


def _values(known: Mapping[str, Any], path: str) -> list[Any]:
    """Return the value at a dotted path as a list of one; an empty list if there is none."""
    found: Any = known
    for step in path.split("."):
        if isinstance(found, Mapping) and step in found:
            found = found[step]
        elif isinstance(found, list) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        else:
            return []
    return [found]


def _at(known: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path. Raises _Unknown."""
    for value in _values(known, path):
        return value
    raise _Unknown(path)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# --- matching a rule ----------------------------------------------------------------------------


def _fits(rule: ScriptedRule, known: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the named groups in the customer's words; None if the rule does not fit."""
    words = _text(known["text"])
    found = [pattern.search(words) for pattern in rule.says]
    if None in found or any(pattern.search(words) for pattern in rule.unless):
        return None
    for path, pattern in rule.where.items():
        if not any(pattern.fullmatch(_text(value)) for value in _values(known, path)):
            return None
    if any(_values(known, path) for path in rule.without):
        return None
    matches = (match.groupdict() for match in found if match is not None)
    return {name: value for groups in matches for name, value in groups.items() if value is not None}


# --- its action -----------------------------------------------------------------------------------


def _follow(action: Action, known: Mapping[str, Any], prompt: Prompt) -> Reply | None:
    """Return the reply; None if a value is missing, its tool is not offered, or the call was already made."""
    try:
        if action.answer is not None:
            return Reply(text=str(_filled(action.answer, known)))
        arguments = {name: _filled(value, known) for name, value in action.arguments.items()}
    except _Unknown:
        return None
    facts = []
    for key, template in action.facts.items():
        with contextlib.suppress(_Unknown):
            facts.append({"key": key, "value": _filled(template, known)})
    if facts:
        arguments["facts"] = facts
    call = str(action.call)
    asked = [each for past in prompt.transcript if isinstance(past, PastReply) for each in past.calls]
    if call not in {tool.name for tool in prompt.tools}:
        return None
    if any((each.name, each.arguments) == (call, arguments) for each in asked):
        return None
    return Reply(calls=(ToolCall(f"call_{len(asked) + 1}", call, arguments),))


def _filled(template: Any, known: Mapping[str, Any]) -> Any:
    """Return a template with every `{path}` replaced. Raises _Unknown."""
    if isinstance(template, Mapping):
        return {key: _filled(value, known) for key, value in template.items()}
    if isinstance(template, list):
        return [_filled(value, known) for value in template]
    if not isinstance(template, str):
        return template
    alone = _PLACE.fullmatch(template)
    if alone is not None:
        return _at(known, alone[1])
    return _PLACE.sub(lambda place: _text(_at(known, place[1])), template)
