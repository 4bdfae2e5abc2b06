"""Refusals: the rule that failed, the numbers it rests on, and what would be allowed."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec


class Rule(StrEnum):
    """Stable names, in the order in which they are tried; `known_policy` is for submits."""

    KNOWN_POLICY = "known_policy"
    KNOWN_MOVE = "known_move"
    KNOWN_AGENT = "known_agent"
    AGENT_AVAILABLE = "agent_available"
    DEPTH = "depth"
    CYCLE = "cycle"
    HAND_BACK = "hand_back"
    NO_RETURN = "no_return"
    ASKS = "asks"
    BUDGET = "budget"
    CONSTRAINTS = "constraints"
    MUST_CARRY = "must_carry"
    ACTIONS = "actions"
    SIZE = "size"


class Refusal(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Why something was refused, for the agent that asked and for whoever reads the log."""

    rule: Rule
    detail: str
    """One sentence with the numbers and the path in it."""
    numbers: Mapping[str, Any] = {}
    """The same numbers for programs: `{"depth": 6, "max_depth": 5}`."""
    hint: str = ""
    """What would be allowed instead."""
