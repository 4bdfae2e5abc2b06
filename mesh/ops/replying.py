"""Replying as the client that was asked, who sees of a request only what is addressed to it."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec

from mesh.agent.reply_schema import ReplyInvalid, SchemaUnusable, check_reply
from mesh.bus.connection import Bus
from mesh.cli.options import Where
from mesh.cli.output import remark, report
from mesh.client.client import Client, outcome_of
from mesh.ops.control import Ears
from mesh.ops.errors import ControlRefused, NotFound, UsageWrong
from mesh.ops.requests import checked_id
from mesh.settings import NoCredentials
from protocol.wire import codec
from protocol.wire.commands import Reply
from protocol.wire.events import AnyEvent, Ended, TurnSuspended

_LOOK_S = 0.05
_LOOKS = 10
"""Before something is said again."""


async def as_client(where: Where, client: str) -> Bus | None:
    """Return a client's connection where nothing says who is asking, and the client's key is at hand."""
    own = where.default_name(client)
    if own == where:
        return None
    try:
        return await own.connect()
    except NoCredentials:
        return None


async def reply_as_client(
    bus: Bus,
    request: str,
    order_for: Callable[[TurnSuspended], Reply],
    *,
    as_json: bool,
    within_s: float = 30.0,
) -> None:
    """Reply to what was asked of the client whose connection this is, and say what came of it.

    Raises NotFound where nothing is asked of it, and ReplyInvalid, ControlRefused, TimeoutError.
    """
    client = Client(bus, bus.name)
    asked = await client.latest(checked_id(request))
    if isinstance(asked, Ended):
        raise NotFound(f"{request} has ended: {outcome_of(asked).status}")
    if not isinstance(asked, TurnSuspended):
        raise NotFound(
            f"nothing in {request} waits for the reply of {bus.name}, as far as {bus.name} may see"
        )
    order = order_for(asked)
    async with await Ears.open(bus, bus.name, request) as ears:
        try:
            async with asyncio.timeout(within_s):
                since = await _until_decided(client, ears, asked, order)
        except TimeoutError:
            raise TimeoutError(
                f"no guard has taken up the reply to {request} within {within_s:g} s"
            ) from None
    status = outcome_of(since).status if isinstance(since, Ended) else None
    ended = "" if status is None else f"; it has ended since: {status}"
    # The event that obeyed it is addressed to the agent: a client may not read it.
    told = {"request": request, "event": None, "ended": status}
    report(told, f"{request} goes on with the reply{ended}", as_json=as_json)


async def _until_decided(client: Client, ears: Ears, asked: TurnSuspended, order: Reply) -> AnyEvent | None:
    """Send a reply until a guard has decided it; return what is addressed to the client since, if anything.

    The turn goes on under its agent's name, where a client cannot look. But whoever says the same again is
    told that it was decided, and that can be heard. Raises ControlRefused when it was over before.
    """
    digest, again = codec.body_digest(codec.encode(order)), False
    while True:
        await client.control(asked.request, order)
        for _ in range(_LOOKS):
            newest = await client.latest(asked.request)
            if newest is not None and newest.id != asked.id:
                return newest
            while (notice := ears.next_notice()) is not None:
                if notice.error is not None and notice.digest == digest:
                    raise ControlRefused(asked.request, notice.error.code, notice.error.detail)
                if notice.ended is None or (notice.ended.turn, notice.ended.round) != (
                    order.turn,
                    order.round,
                ):
                    continue  # about something else
                if again:
                    return None
                over = "somebody else has replied, or the time for it was up"
                raise ControlRefused(asked.request, notice.ended.why, over)
            await asyncio.sleep(_LOOK_S)
        again = True


def read_json(value: str) -> Any:
    """Return a reply that was given as JSON. Raises UsageWrong."""
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError as wrong:
        raise UsageWrong(f"not JSON: {value!r}") from wrong


def check_value(schema: Any, said: Any, value: str, is_json: bool) -> None:
    """Raise ReplyInvalid for a reply that the question does not allow."""
    try:
        check_reply(schema, said)
    except SchemaUnusable as unusable:
        remark(f"mesh: the question's schema cannot be used, so the reply is sent unchecked: {unusable}")
    except ReplyInvalid as wrong:
        hint = ""
        if not is_json:
            with contextlib.suppress(msgspec.DecodeError, ReplyInvalid):
                check_reply(schema, msgspec.json.decode(value))
                hint = "; as JSON it would be allowed: add --json-value"
        asked = msgspec.json.encode(schema).decode()
        raise ReplyInvalid(f"not what {asked} asks for: {wrong}{hint}") from None
