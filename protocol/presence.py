"""What a running agent shows of itself: its card, and its live output. No verdict rests on either."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec


class Card(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last one published under an agent's name, by whichever instance started last."""

    v: int = 1
    name: str
    version: str
    description: str = ""
    prompt_version: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()
    """{name, description, effect} of each."""
    instance: str = ""
    model: str = ""
    """What drives it: `scripted`, a model's id, or empty."""
    no_rules: bool = False
    """Of an agent with a model: that it has no rules which could stand in for it."""


What = Literal["model", "tool"]


class LiveNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened in a running turn. Whose it is, the subject says."""

    v: int
    turn: str
    round: int
    n: int
    """Counts the notes of one run of a round, from 0; a gap means that some were lost."""
    at: int
    """UTC µs, by the agent's clock."""
    kind: Literal["began", "step", "text", "ended"]
    what: What | Literal[""] = ""
    """Of a step: what was called."""
    name: str = ""
    """Of a step: the tool's name, or the model's."""
    state: Literal["", "called", "returned", "failed"] = ""
    """Of a step. A tool's own no is `failed`, too."""
    text: str = ""
    """Of text: what the model has said since the note before."""
    again: bool = False
    """Of text: what this reply said before is void, because another model begins anew."""
    move: str = ""
    """Of an end: the move that was proposed."""
    to: str = ""
    """Of an end: whom the move names."""
    failed: str = ""
    """Of an end without a move: why, a code."""
