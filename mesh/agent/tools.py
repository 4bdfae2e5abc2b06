"""Tools: functions of an agent that a model can call and that leave a trace.

A tool's signature is its contract: the JSON schema that a model reads and the check of its arguments come
from the same annotations. What a tool does to the world is declared, never guessed.

    @tool                        reads only; may run again at will
    @tool(effect="idempotent")   changes the world once for each key, however often it runs
    @tool(effect="reconcilable") changes the world, and can later be asked whether it did
    @tool(effect="once")         changes the world, and cannot be asked whether it did

A tool may wait for an approval before it is called: `approve="human"` or `approve="client"`. `needs_approval`
decides for which arguments.

pydantic is imported when a schema is first needed, not when an agent's module is.
"""

import asyncio
import collections.abc
import inspect
import re
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    Protocol,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
    overload,
)

from mesh.agent._injected import Injected
from mesh.agent._threads import NoThread, Threads
from mesh.agent.errors import EffectUnknown, ResultUnusable, ToolArgumentsInvalid, ToolBusy, ToolTimedOut
from mesh.agent.values import Unfit, mistakes_in, read_as, short

if TYPE_CHECKING:
    from pydantic import BaseModel
    from typing_extensions import ParamSpec, TypeVar

    P = ParamSpec("P", default=...)
    R = TypeVar("R", default=Any)  # so that `Tool` alone is a tool of any signature
    C = TypeVar("C", default=Any)
else:
    from typing import ParamSpec, TypeVar

    P, R, C = ParamSpec("P"), TypeVar("R"), TypeVar("C")

Effect = Literal["idempotent", "reconcilable", "once"]
"""How a tool changes the world; None for one that only reads."""

Approver = Literal["human", "client"]
"""Who approves a call before it is made: people, or the request's submitter."""

KEY = "idempotency_key"
"""The parameter that the runtime fills in. Models never see it.

Give it a default, or type checkers will expect it in each `turn.call`."""

NAME_SYNTAX = "1 to 64 of a-z A-Z 0-9 _ -"
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class NotDone:
    """The type of `NOT_DONE`."""


NOT_DONE = NotDone()
"""What a tool's `reconcile` returns for an effect that did not happen."""


@dataclass(frozen=True)
class Tool(Generic[P, R, C]):
    """A function with what a model and the journal need to know about it. Calling it calls the function.

    Type checkers know its parameters and its result: `turn.call(add, a=1, c="2")` is a mistake before
    anything runs. `R` is the result, `C` what calling it returns: for an async function, a coroutine.
    """

    name: str
    description: str
    effect: Effect | None
    fn: Callable[P, C]
    reconcile: Callable[[str], Any] | None = None
    """For a reconcilable effect: returns the result of the one with this key; `NOT_DONE` if there is none."""
    approve: Approver | None = None
    """Who has to approve a call before it is made; None: no approval is needed."""
    needs_approval: Callable[[Mapping[str, Any]], bool] | None = None
    """Returns True for arguments that need the approval; None: all do."""
    approve_within_s: float | None = None
    """After how long a missing answer counts as a no (s); None: as long as people's time, or the request's
    deadline, allows."""
    timeout_s: float | None = None
    """How long one call may take (s); None: as long as the round."""
    secret: tuple[str, ...] = ()
    """Names of arguments that are in no record and in no question for an approval."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        return self.fn(*args, **kwargs)

    def named(self, given: tuple[Any, ...], by_name: dict[str, Any]) -> dict[str, Any]:
        """Return a call's arguments by name. Raises ToolArgumentsInvalid for surplus positions."""
        if not given:
            return by_name
        try:
            return dict(inspect.signature(self.fn).bind_partial(*given, **by_name).arguments)
        except TypeError as wrong:
            raise ToolArgumentsInvalid(self.name, (str(wrong),)) from wrong

    @cached_property
    def takes_key(self) -> bool:
        return KEY in inspect.signature(self.fn).parameters

    @cached_property
    def injected(self) -> Injected:
        """The parameters that the runtime fills in, besides the key."""
        return Injected.of_function(self.fn)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """JSON schema of the arguments that a model gives, an object."""
        return untitled(self._form(hidden=self.injected.names).model_json_schema())

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as the function takes them. Raises ToolArgumentsInvalid."""
        from pydantic import ValidationError

        try:
            found = self._arguments.model_validate(dict(arguments))
        except ValidationError as wrong:
            raise ToolArgumentsInvalid(self.name, mistakes_in(wrong)) from wrong
        return {str(field.alias): getattr(found, own) for own, field in type(found).model_fields.items()}

    async def run(
        self, arguments: Mapping[str, Any], *, idempotency_key: str = "", turn: object = None
    ) -> Any:
        """Check the arguments, run the function (in a thread unless it is async), return its result.

        The time limit starts with the function; waiting for a thread may take as long again.

        Args:
            turn: as a tool sees it; for a tool that takes it.

        Raises ToolArgumentsInvalid, ToolBusy, ToolTimedOut, EffectUnknown for an effect that took too long,
        and the function's own errors. A thread cannot be stopped; what it does later is not waited for.
        """
        given = self.check(arguments)
        if self.takes_key:
            given[KEY] = idempotency_key
        if self.injected.turn:
            given[self.injected.turn] = turn
        call: Callable[..., Any] = self.fn
        answer: Awaitable[Any]
        if inspect.iscoroutinefunction(call):
            answer = call(**given)
        else:
            try:
                answer = await self._threads.begin(
                    partial(call, **given), name=idempotency_key, within_s=self.timeout_s
                )
            except NoThread as none:
                raise ToolBusy(f"{self.name} was not called: {none}") from none
        try:
            async with asyncio.timeout(self.timeout_s) as limit:
                with _contained(self.name):
                    value = await answer
                    return await value if inspect.isawaitable(value) else value
        except TimeoutError:
            if not limit.expired():
                raise  # the tool's own time limit
        why = f"{self.name} gave no answer within {self.timeout_s:g} s"
        raise ToolTimedOut(why) if self.effect is None else EffectUnknown(why)

    def result(self, value: Any) -> Any:
        """Return a recorded result with the type of the tool's annotation. Raises ResultUnusable."""
        if self._returns is None:
            return value
        try:
            return read_as(self._returns, value)
        except Unfit as wrong:
            raise ResultUnusable(self.name, wrong.mistakes) from wrong

    @cached_property
    def _returns(self) -> Any:
        """The type that results are read back as; None for JSON types and unresolvable annotations."""
        try:
            kind = get_type_hints(self.fn, include_extras=True).get("return")
        except (NameError, TypeError, AttributeError):
            return None
        return None if _is_json(kind) else kind

    def is_under_way(self, key: str) -> bool:
        """Return True if a thread of this process is still working on the effect with this key."""
        return key in self._threads.under_way

    async def ask(self, key: str) -> Any:
        """Return what became of the effect with this key, according to the tool's `reconcile`."""
        assert self.reconcile is not None
        is_async = inspect.iscoroutinefunction(self.reconcile)
        asked = self.reconcile(key) if is_async else await self._asking.begin(partial(self.reconcile, key))
        with _contained(self.name):
            found = await asked
            return await found if inspect.isawaitable(found) else found

    @cached_property
    def _threads(self) -> Threads:
        return Threads()

    @cached_property
    def _asking(self) -> Threads:
        """The threads of `reconcile`, which is asked about effects that do not end."""
        return Threads()

    @cached_property
    def _arguments(self) -> "type[BaseModel]":
        return self._form(hidden={self.injected.turn})

    def _form(self, hidden: Container[str] = ()) -> "type[BaseModel]":
        """Return the arguments except the hidden ones, as a pydantic model.

        Its fields have neutral names and the parameters' as aliases, so a parameter may be called `schema` or
        `copy` without hiding an attribute of pydantic's.
        """
        from pydantic import ConfigDict, Field, create_model
        from pydantic.fields import FieldInfo

        hints = get_type_hints(self.fn, include_extras=True)
        fields: dict[str, Any] = {}
        for index, parameter in enumerate(inspect.signature(self.fn).parameters.values()):
            if parameter.name == KEY or parameter.name in hidden:
                continue
            kind, default = hints[parameter.name], parameter.default
            if isinstance(default, FieldInfo):  # `= Field(5, ge=1)`, as with pydantic's own models
                own = (Annotated[kind, default], Field(alias=parameter.name))
            else:
                given = ... if default is parameter.empty else default
                own = (kind, Field(given, alias=parameter.name))
            fields[f"argument_{index}"] = own
        return create_model(self.name, __config__=ConfigDict(extra="forbid"), **fields)


_JSON = frozenset({str, int, float, bool, type(None), None, Any, object, dict, list, Mapping, Sequence})


def _is_json(kind: Any) -> bool:
    """Return True if values of a type are the same after a round trip through JSON."""
    if kind in _JSON or is_typeddict(kind):
        return True
    origin, given = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _is_json(given[0])
    if origin is Literal:
        return all(type(each) in (str, int, bool, type(None)) for each in given)
    is_container = origin in (dict, list, Union, UnionType, collections.abc.Mapping, collections.abc.Sequence)
    return is_container and all(map(_is_json, given))


@contextmanager
def _contained(name: str) -> Iterator[None]:
    """Contain what a tool does: a `sys.exit` or a cancelled task in it ends neither process nor turn."""
    try:
        yield
    except SystemExit as left:
        raise RuntimeError(f"{name} wanted to end the process") from left
    except asyncio.CancelledError as lost:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise  # the call itself is cancelled
        raise RuntimeError(f"{name} waited for what was cancelled") from lost


def is_tool_name(text: str) -> bool:
    """Return True if a tool of this name can be offered to a model (`NAME_SYNTAX`)."""
    return _NAME.fullmatch(text) is not None


def untitled(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a pydantic schema without its generated titles: a model pays for every word."""

    def strip(node: Any) -> Any:
        if isinstance(node, list):
            return [strip(each) for each in node]
        if not isinstance(node, dict):
            return node
        kept = {key: value for key, value in node.items() if key != "title" or not isinstance(value, str)}
        for named in ("properties", "$defs"):  # below these, `title` is a name of the author's
            if isinstance(kept.get(named), dict):
                kept[named] = {key: strip(value) for key, value in kept[named].items()}
        return {key: value if key in ("properties", "$defs") else strip(value) for key, value in kept.items()}

    result: dict[str, Any] = strip(schema)
    return result


class _Making(Protocol):
    """Makes a function a tool; type checkers tell an async function apart."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Tool[P, R, Coroutine[Any, Any, R]]: ...

    @overload
    def __call__(self, fn: Callable[P, R], /) -> Tool[P, R, R]: ...


@overload
def tool(fn: Callable[P, Coroutine[Any, Any, R]], /) -> Tool[P, R, Coroutine[Any, Any, R]]: ...


@overload
def tool(fn: Callable[P, R], /) -> Tool[P, R, R]: ...


@overload
def tool(
    *,
    effect: Effect | None = None,
    reconcile: Callable[[str], Any] | None = None,
    approve: Approver | None = None,
    needs_approval: Callable[[Mapping[str, Any]], bool] | None = None,
    approve_within_s: float | None = None,
    timeout_s: float | None = None,
    secret: Sequence[str] = (),
    name: str | None = None,
    description: str | None = None,
) -> _Making: ...


def tool(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    effect: Effect | None = None,
    reconcile: Callable[[str], Any] | None = None,
    approve: Approver | None = None,
    needs_approval: Callable[[Mapping[str, Any]], bool] | None = None,
    approve_within_s: float | None = None,
    timeout_s: float | None = None,
    secret: Sequence[str] = (),
    name: str | None = None,
    description: str | None = None,
) -> Any:
    """Make a function a tool. Every parameter must be annotated; the docstring is for the model.

    Args:
        effect: how it changes the world; None if it only reads. An idempotent tool may have a parameter
            `idempotency_key: str = ""`, which the runtime fills in: the same key, the same effect.
        reconcile: for a reconcilable effect: a function from the idempotency key to the result, or to
            `NOT_DONE`. It is called when a process died between an effect's beginning and its end.
        approve: who has to approve a call before it is made: `human` or `client`. The turn is suspended until
            they do. The approval covers only these arguments, and counts as an ask.
        needs_approval: returns True for arguments, by name, that need that approval (of a `human`, if
            `approve` is not given). If it raises, that is an error of the code: nothing is called.
        approve_within_s: after how long a missing answer counts as a no (s); None: as long as people's time,
            or the request's deadline, allows.
        timeout_s: how long one call may take (s). A tool that only reads then counts as failed. The outcome
            of an effect is then unknown, as after a crash.
        secret: names of arguments that are in no record, such as a card's number.
        name, description: the function's name and docstring by default. A name is 1 to 64 of
            `a-z A-Z 0-9 _ -`.

    Raises TypeError for a function that a model could not call.
    """

    def make(function: Callable[..., Any]) -> Tool:
        if effect is not None and effect not in get_args(Effect):
            raise TypeError(f"no such effect: {effect!r}; one of {', '.join(get_args(Effect))}")
        if (effect == "reconcilable") != (reconcile is not None):
            raise TypeError("a reconcilable effect, and no other, has a `reconcile`")
        if approve is not None and approve not in get_args(Approver):
            raise TypeError(
                f"nobody is called {approve!r}; approve is one of {', '.join(get_args(Approver))}"
            )
        asks = approve or (None if needs_approval is None else "human")
        if asks is None and approve_within_s is not None:
            raise TypeError(
                "`approve_within_s` is for a tool that waits for an approval: say whose with `approve`"
            )
        if timeout_s is not None and not timeout_s > 0:
            raise TypeError(f"a tool needs some time: timeout_s is {timeout_s:g}")
        _require_callable_by_name(function, effect)
        if isinstance(secret, str) or not set(secret) <= {*inspect.signature(function).parameters} - {KEY}:
            raise TypeError(f"secret is a list of the tool's own parameters, not {secret!r}")
        called = name or function.__name__
        if not is_tool_name(called):
            raise TypeError(
                f"no model can call a tool {short(called)!r}: a name is {NAME_SYNTAX}; see `name`"
            )
        return Tool(
            name=called,
            description=description or inspect.getdoc(function) or "",
            effect=effect,
            fn=function,
            reconcile=reconcile,
            approve=asks,
            needs_approval=needs_approval,
            approve_within_s=approve_within_s,
            timeout_s=timeout_s,
            secret=tuple(secret),
        )

    return make if fn is None else make(fn)


def _require_callable_by_name(function: Callable[..., Any], effect: Effect | None) -> None:
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{function.__name__}: a tool's arguments have names, {parameter} has none")
        if parameter.annotation is parameter.empty:
            raise TypeError(f"{function.__name__}: {parameter.name} has no annotation")
        if parameter.name == KEY and effect not in ("idempotent", "reconcilable"):
            raise TypeError(f"{function.__name__}: only an idempotent or reconcilable effect takes {KEY}")
