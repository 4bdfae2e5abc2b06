"""Control messages, and what came of them: the event that one brought about, or why there is none.

What was stored is not yet obeyed. So whoever gives an order waits until the log shows it, or until the
guard says that it will not.
"""

import asyncio

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.roles import GET
from mesh.bus.wire import Incoming
from mesh.cli.errors import ControlRefused
from mesh.client import Client
from mesh.errors import Denied
from mesh.notices import Notice
from protocol import codec, subjects
from protocol.events import AnyEvent
from protocol.ids import control_cause
from protocol.messages import Control

_LOOK_S = 0.1
_NOTICES = msgspec.json.Decoder(Notice)


async def carry_out(bus: Bus, name: str, request: str, control: Control, *, within_s: float = 30.0) -> AnyEvent:
    """Send a control message and return the event that it brought about.

    Args:
        bus: an operator's connection, or that of the client whose request it is.

    Raises ControlRefused when the guard does not obey or there is nothing left to do, TimeoutError
    when no guard has said anything within `within_s`.
    """
    said: asyncio.Queue[Notice] = asyncio.Queue()

    def hear(message: Incoming) -> None:
        if message.data:
            try:
                said.put_nowait(_NOTICES.decode(message.data))
            except msgspec.MsgspecError:
                return  # a note is only ever a hint

    heard = await bus.subscribe(subjects.note(name, request), hear)
    try:
        await Client(bus, name).control(request, control)
        async with asyncio.timeout(within_s):
            while True:
                event = await _brought_about(bus, name, request, control)
                if event is not None:
                    return event
                if not said.empty():
                    _raise(request, said.get_nowait())
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        raise TimeoutError(f"no guard has taken up what was asked of {request} within {within_s:g} s") from None
    finally:
        await heard.close()


def _raise(request: str, notice: Notice) -> None:
    if notice.error is not None:
        raise ControlRefused(request, notice.error.code, notice.error.detail)
    if notice.ended is not None:
        raise ControlRefused(request, notice.ended.why, "it was over before this came")


async def _brought_about(bus: Bus, name: str, request: str, control: Control) -> AnyEvent | None:
    """Return the latest event that names the control message as its cause, None if it is not there yet."""
    cause = control_cause(request, name, control.id)
    for subject in (subjects.evt_of(request), subjects.evt(name, request)):
        try:
            found = await _last(bus, subject, cause)
        except Denied:
            continue  # a client reads what is addressed to it, and nothing else
        if found is not None:
            return found
    return None


async def _last(bus: Bus, subject: str, cause: str) -> AnyEvent | None:
    if "*" in subject:
        body = msgspec.json.encode({"seq": 1, "batch": 1000, "next_by_subj": subject})
        messages = await bus.collect(f"{GET}LOG", body)
    else:
        messages = [await bus.request(f"{GET}LOG.{subject}")]
    for message in reversed(messages):
        if message.status == 0 and message.data:
            event = codec.decode_event(message.data)
            if event.cause == cause:
                return event
    return None
