"""Parameters of tools that the runtime fills in: facts of the turn, and the turn itself.

No model sees or sets them, so no text can make a tool act for another person.
"""

import inspect
from collections.abc import Callable, Mapping, Set
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from mesh.agent.errors import ToolArgumentsInvalid
from mesh.agent.values import FromFact


class GivenToTools:
    """Base of `Turn`: a parameter with this annotation gets the turn."""


class Injected(NamedTuple):
    """The parameters of a function that the runtime fills in."""

    facts: Mapping[str, str]
    """Parameters filled from facts, with the keys of the facts."""
    turn: str
    """The parameter that gets the turn; empty if there is none."""

    @classmethod
    def of_function(cls, function: Callable[..., Any]) -> "Injected":
        """Find them in a signature. Raises TypeError if two parameters want the turn."""
        hints = get_type_hints(function, include_extras=True)
        hints.pop("return", None)
        facts = {
            name: each.key
            for name, hint in hints.items()
            if get_origin(hint) is Annotated
            for each in hint.__metadata__
            if isinstance(each, FromFact)
        }
        turns = [name for name, hint in hints.items() if _is_turn(hint)]
        if len(turns) > 1:
            raise TypeError(f"{function.__name__}: one parameter gets the turn, not {' and '.join(turns)}")
        return cls(facts, "".join(turns))

    @property
    def names(self) -> Set[str]:
        return {*self.facts, self.turn} - {""}

    def with_facts(
        self,
        tool: str,
        function: Callable[..., Any],
        given: Mapping[str, Any],
        facts: Mapping[str, Any],
        *,
        for_model: bool,
    ) -> Mapping[str, Any]:
        """Return the arguments including those filled from facts, without the turn, which is not an argument.

        Args:
            facts: of the turn, by key.
            for_model: True if a model gave the arguments: it may set none of these.

        Raises ToolArgumentsInvalid.
        """
        if for_model and (extra := sorted(self.names & given.keys())):
            raise ToolArgumentsInvalid(tool, tuple(f"{name}: not an argument of yours" for name in extra))
        if self.turn in given:  # code may pass it, for its type checker
            given = {name: value for name, value in given.items() if name != self.turn}
        if not self.facts:
            return given
        found = {name: facts[key] for name, key in self.facts.items() if key in facts}
        defaults = inspect.signature(function).parameters
        lacking = (self.facts.keys() - found.keys()) - given.keys()
        if wanted := sorted(name for name in lacking if defaults[name].default is inspect.Parameter.empty):
            missing = tuple(f"the fact {self.facts[name]} is needed, and is not there" for name in wanted)
            raise ToolArgumentsInvalid(tool, missing)
        return {**found, **given}


def _is_turn(hint: Any) -> bool:
    """Return True for `Turn`, and for `Turn | None`."""
    kinds = set(get_args(hint)) - {NoneType} if get_origin(hint) in (Union, UnionType) else {hint}
    return len(kinds) == 1 and all(
        isinstance(kind, type) and issubclass(kind, GivenToTools) for kind in kinds
    )
