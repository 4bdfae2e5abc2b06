"""Stand-ins for values under labels: of the same type and shape, and never the value itself.

A value has one stand-in in all of a request, and the same one at each export. It is drawn by its place in the
request, not from the value: nobody can try values until one gives this stand-in.
"""

import datetime
import json
import random
import re
import string
from collections.abc import Iterable, Mapping
from typing import Any, Final

_STRUCTURE: Final = frozenset(
    (
        *("agent", "agents", "asked", "by", "call", "client", "code", "depth", "effect", "failed", "fleet"),
        *("from_agent", "how", "intent", "kind", "labels", "model", "move", "move_name", "name", "names"),
        *("path", "peers", "round", "rule", "secret", "status", "step", "task", "to", "to_agent"),
        *("topology", "turn", "type", "waiting"),
    )
)
"""Fields whose bare value is a name or a code, and no value of a client's."""
_PAYLOAD: Final = frozenset(
    ("answer", "arguments", "facts", "reply", "result", "results", "value", "board", "remember")
)
"""Fields beneath which a number may be a value of a client's."""
_LEAST_TEXT = 3
"""Characters of a text that is looked for within others."""
_TRIES = 100


class Fakes:
    """The stand-ins of one request.

    Args:
        request: its id, by which they are drawn.
    """

    def __init__(self, request: str) -> None:
        self._request = request
        self._known: dict[tuple[str, str], Any] = {}
        """By type and JSON of a value without parts."""

    def __len__(self) -> int:
        return len(self._known)

    def learn(self, value: Any) -> None:
        """Take in a value that is under a label, each part of it."""
        if isinstance(value, Mapping):
            self._learn_each(value.values())
        elif isinstance(value, list | tuple):
            self._learn_each(value)
        elif value is not None and value != "":
            key = _key(value)
            if key not in self._known:
                chance = random.Random(f"{self._request}:{len(self._known)}")
                self._known[key] = _like(value, chance)

    def _learn_each(self, values: Iterable[Any]) -> None:
        for each in values:
            self.learn(each)

    def replaced(self, value: Any) -> Any:
        """Return JSON with each known value replaced, also within texts."""
        return self._replaced(value, "", is_payload=False)

    def _replaced(self, value: Any, field: str, *, is_payload: bool) -> Any:
        if isinstance(value, Mapping):
            return self._object(value, is_payload=is_payload or field in _PAYLOAD)
        if isinstance(value, list | tuple):
            return [self._replaced(each, field, is_payload=is_payload or field in _PAYLOAD) for each in value]
        is_own = is_payload or field in _PAYLOAD
        if isinstance(value, str):
            return value if field in _STRUCTURE and not is_own else self._text(value)
        if is_own and not isinstance(value, bool):
            return self._known.get(_key(value), value)
        return value

    def _object(self, value: Mapping[str, Any], *, is_payload: bool) -> dict[str, Any]:
        found = {
            name: self._replaced(each, name, is_payload=is_payload and name not in ("key", "labels"))
            for name, each in value.items()
        }
        if "key" in value and value.get("labels") and "value" in value:
            found["value"] = self._whole(value["value"])
        return found

    def _whole(self, value: Any) -> Any:
        """Return the stand-in of a value under a label."""
        if isinstance(value, Mapping):
            return {name: self._whole(each) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._whole(each) for each in value]
        return self._known.get(_key(value), value)

    def _text(self, text: str) -> str:
        whole = self._known.get(_key(text))
        if whole is not None:
            return str(whole)
        for shown, fake in self._shown():
            text = re.sub(rf"(?<!\w){re.escape(shown)}(?!\w)", lambda _, fake=fake: fake, text)  # type: ignore[misc]
        return text

    def _shown(self) -> list[tuple[str, str]]:
        """Return how values look in a text, and what to write instead; long ones first."""
        found = [
            (shown, fake if isinstance(fake, str) else json.dumps(fake))
            for (kind, body), fake in self._known.items()
            if kind != "bool" and len(shown := json.loads(body) if kind == "str" else body) >= _LEAST_TEXT
        ]
        return sorted(found, key=lambda each: -len(each[0]))


def _key(value: Any) -> tuple[str, str]:
    return type(value).__name__, json.dumps(value)


def _like(value: Any, chance: random.Random) -> Any:
    """Return another value of the same type and shape."""
    if isinstance(value, bool):
        return not value
    for _ in range(_TRIES):
        fake = _drawn(value, chance)
        if fake != value:
            return fake
    return "·" * len(value) if isinstance(value, str) else value + 1


def _drawn(value: Any, chance: random.Random) -> Any:
    if isinstance(value, int | float):
        fake = json.loads(_digits(json.dumps(value), chance))
        return type(value)(fake)
    day = _day(value)
    if day is not None:
        return (day + datetime.timedelta(days=chance.randint(-3_000, 3_000))).isoformat()
    return "".join(_letter(each, chance) for each in value)


def _digits(number: str, chance: random.Random) -> str:
    """Return a number with other digits; none that it must not begin with."""
    mantissa, mark, exponent = number.partition("e")
    drawn = "".join(chance.choice("123456789") if each.isdigit() else each for each in mantissa)
    return drawn + mark + exponent


def _day(text: str) -> datetime.date | None:
    try:
        return datetime.date.fromisoformat(text) if len(text) == len("2026-11-27") else None
    except ValueError:
        return None


def _letter(char: str, chance: random.Random) -> str:
    for letters in (string.digits, string.ascii_lowercase, string.ascii_uppercase):
        if char in letters:
            return chance.choice(letters)
    return chance.choice(string.ascii_lowercase) if char.isalpha() else char
