"""Facts from the command line: `key=text`, or `key:=json` for anything that is not text."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

FactOption = Annotated[
    list[str] | None,
    typer.Option("--fact", metavar="K=V", help="A fact: key=text, or key:=json.", show_default=False),
]


def parse_facts(given: Sequence[str] | None) -> dict[str, Any]:
    """Return facts by key. Raises UsageWrong."""
    import msgspec

    from mesh.ops.errors import UsageWrong

    facts: dict[str, Any] = {}
    for each in given or ():
        key, equals, value = each.partition("=")
        if not equals or not key.rstrip(":"):
            raise UsageWrong(f"not a fact: {each!r}; write key=text or key:=json")
        is_json, key = key.endswith(":"), key.rstrip(":")
        if key in facts:
            raise UsageWrong(f"two facts are called {key!r}")
        try:
            facts[key] = msgspec.json.decode(value) if is_json else value
        except msgspec.DecodeError as wrong:
            raise UsageWrong(f"{key}: not JSON: {value!r}") from wrong
    return facts
