"""Python values as JSON: an author's objects become facts; facts and results are read back as objects.

pydantic objects, dataclasses and msgspec structs become JSON objects. Dates, decimals and enums become JSON
strings or numbers. pydantic is imported when a value is first read as a type.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import msgspec

from mesh.agent.errors import FactUnusable, UnknownFact
from mesh.service.printable import one_line
from protocol.wire.codec import non_finite
from protocol.wire.commands import Usage
from protocol.wire.event_parts import TaskError, TaskResult, TaskStatus
from protocol.wire.handoff import Artifact, Fact
from protocol.wire.ids import AgentName

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")

Facts = Mapping[str, Any] | Iterable[Fact] | None
"""Facts as authors give them: by key, or as `Fact` with labels."""

Remembered = Mapping[str, Any] | Iterable[Fact | str] | None
"""What a conversation remembers: facts as above, or keys of facts that the turn was given."""

_KEPT = 256
_MOST_MISTAKES = 5
_SHOWN_CHARS = 300
_AS_IT_IS = frozenset({str, int, bool, type(None)})


class FromFact(NamedTuple):
    """Marks a parameter that takes the value of a fact: `customer: Annotated[str, FromFact("customer_id")]`.

    Models neither see nor set it. Its value counts as an argument: in what is recorded, in a question for an
    approval, and in an effect's key.
    """

    key: str


class KnownFacts(dict[str, Any]):
    """Facts by key; the error for an unknown key names the known ones."""

    def __missing__(self, key: str) -> Any:
        raise UnknownFact(key, self)


class Unfit(Exception):
    """A value does not have the type that it is read as.

    Args:
        mistakes: each as `where: what`, without the value.
    """

    def __init__(self, mistakes: tuple[str, ...]) -> None:
        super().__init__("; ".join(mistakes))
        self.mistakes = mistakes


class NotFinite(ValueError):
    """A value contains NaN or infinity, which JSON cannot hold; the text says where."""


def jsonable(value: Any, where: str) -> Any:
    """Return an author's value as JSON values; `where` names it in an error.

    Raises TypeError for an object that has no JSON form, and NotFinite.
    """
    if type(value) in _AS_IT_IS:
        return value
    plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_dumped)
    require_finite(plain, where)
    return plain


def require_finite(plain: Any, where: str) -> None:
    """Raise NotFinite for JSON that holds NaN or infinity; `where` names the value in the error."""
    if place := non_finite(plain, where):
        raise NotFinite(f"{place}: NaN and infinity are no numbers in JSON; a number has to be finite")


def _dumped(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if dump is None or isinstance(value, type):
        wanted = "JSON values, pydantic objects, dataclasses and msgspec structs can be handed on"
        raise TypeError(f"a {type(value).__name__} is no JSON value: {wanted}")
    return dump(mode="json")


def facts_of(given: Facts) -> tuple[Fact, ...]:
    """Return facts as a handoff holds them. Raises as `jsonable` for a value that has no JSON form."""
    if given is None:
        return ()
    if isinstance(given, Mapping):
        return tuple(Fact(key=key, value=jsonable(value, f"facts.{key}")) for key, value in given.items())
    return tuple(
        fact
        if (value := jsonable(fact.value, f"facts.{fact.key}")) is fact.value
        else msgspec.structs.replace(fact, value=value)
        for fact in given
    )


def remembered_of(given: Remembered) -> tuple[tuple[Fact, ...], tuple[str, ...]]:
    """Return new facts, and the keys of known ones. Raises TypeError as `facts_of`, and for a string."""
    if isinstance(given, str):
        raise TypeError(f"remember is a mapping or a list: say [{given!r}]")
    if given is None or isinstance(given, Mapping):
        return facts_of(given), ()
    listed = tuple(given)
    facts = facts_of(each for each in listed if isinstance(each, Fact))
    return facts, tuple(dict.fromkeys(each for each in listed if isinstance(each, str)))


def read_as(kind: type[T], value: Any) -> T:
    """Return a JSON value as an object of `kind`: msgspec reads structs, pydantic all other types.

    Raises Unfit.
    """
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as wrong:
            raise Unfit((str(wrong),)) from wrong
    from pydantic import ValidationError

    adapter: TypeAdapter[T] = _adapter(cast(Any, kind))
    try:
        return adapter.validate_json(msgspec.json.encode(value))
    except ValidationError as wrong:
        raise Unfit(mistakes_in(wrong)) from wrong


@lru_cache(_KEPT)
def _adapter(kind: Any) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


# --- what is wrong with a value --------------------------------------------------------------------


def mistakes_in(wrong: "ValidationError") -> tuple[str, ...]:
    """Return each mistake as `where: what`, without the value: a model knows what it wrote."""
    found = wrong.errors(include_url=False, include_context=False, include_input=False)
    return few([f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in found])


def few(mistakes: Sequence[str]) -> tuple[str, ...]:
    """Return the first mistakes, each shortened, and how many more there are: a model pays for every word."""
    more = len(mistakes) - _MOST_MISTAKES
    return (*map(short, mistakes[:_MOST_MISTAKES]), *([f"and {more} more"] if more > 0 else []))


def short(text: str, chars: int = _SHOWN_CHARS) -> str:
    """Return a foreign text as one printable line of bounded length."""
    line = one_line(text[: chars * 4])
    return line if len(line) <= chars and len(text) <= chars * 4 else f"{line[:chars]}…"


# --- results of tasks -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Result:
    """How a task ended. A failure is an error with a code, never a sentence that a model wrote about it."""

    name: str
    status: TaskStatus
    agent: AgentName
    """The agent that had it last."""
    told: TaskResult
    """All of it, as the guard reported it."""

    @property
    def delivered(self) -> bool:
        """True for a success."""
        return self.status == "delivered"

    @property
    def error(self) -> TaskError | None:
        """Why it failed: `code`, `message`, `agent`, `attempts`, `lineage`, and `origin`, the error below."""
        return self.told.error

    @property
    def summary(self) -> str:
        """One line: what the worker found."""
        return self.told.summary

    @property
    def facts(self) -> Mapping[str, object]:
        """Facts by key, values only."""
        return MappingProxyType(KnownFacts((fact.key, fact.value) for fact in self.told.facts))

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        return self.told.artifacts

    @property
    def withheld(self) -> tuple[str, ...]:
        """Labels of the parts that this agent may not see."""
        return () if self.told.withheld is None else self.told.withheld.labels

    @property
    def cost(self) -> Usage:
        """Cost of the task and of all tasks below it."""
        return self.told.cost

    @property
    def attempts(self) -> int:
        return self.told.attempts

    @property
    def duration_s(self) -> float:
        return self.told.duration_s

    def fact(self, key: str, kind: type[T]) -> T:
        """Return a fact as an object of `kind`, as `Turn.fact` does. Raises FactUnusable."""
        return fact_as(self.told.facts, key, kind, withheld=self.withheld, where=f" of task {self.name}")


class Results(dict[str, Result]):
    """Results by task; the error for an unknown name lists the known ones."""

    def __init__(self, told: Iterable[TaskResult]) -> None:
        super().__init__((each.name, Result(each.name, each.status, each.agent, each)) for each in told)

    def __missing__(self, name: str) -> Result:
        raise UnknownFact(name, self, kind="result")


def fact_as(
    facts: Iterable[Fact], key: str, kind: type[T], *, withheld: tuple[str, ...] = (), where: str = ""
) -> T:
    """Return the fact of a key as an object of `kind`.

    Raises FactUnusable if there is no such fact, or it does not fit.
    """
    values = {fact.key: fact.value for fact in facts}
    if key not in values:
        there = f"there are {', '.join(values)}" if values else "there are none"
        hidden = f"; withheld from this agent: {', '.join(withheld)}" if withheld else ""
        raise FactUnusable(f"no fact {key!r}{where}: {there}{hidden}")
    try:
        return read_as(kind, values[key])
    except Unfit as wrong:
        name = getattr(kind, "__name__", str(kind))
        raise FactUnusable(f"the fact {key!r}{where} is no {name}: {wrong}") from wrong


def keys_of(form: Any) -> tuple[str, ...]:
    """Return the keys of the facts that a pydantic model names: its fields, or their aliases.

    Raises TypeError for anything else.
    """
    fields = getattr(form, "model_fields", None)
    if fields is None:
        raise TypeError(f"a form is a pydantic model, not {short(repr(form))}")
    return tuple(field.alias or name for name, field in fields.items())


def form_as(given: Mapping[str, Any], kind: type[T], withheld: tuple[str, ...] = ()) -> T:
    """Return facts by key as an object of a pydantic model. Raises FactUnusable if they do not fit."""
    try:
        return read_as(kind, dict(given))
    except Unfit as wrong:
        hidden = f"; withheld from this agent: {', '.join(withheld)}" if withheld else ""
        raise FactUnusable(f"the facts are no {kind.__name__}: {wrong}{hidden}") from wrong
