"""Where attacks are tried: the mesh as it ships, and meshes that each lack one protection.

An attack that has no effect proves nothing until the same attack has had one. So each is run twice, and
what it did is read by the admin from the streams themselves, never from what the attacker was told.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

from mesh.bus import roles
from mesh.bus.connection import Bus
from mesh.bus.streams import is_journal_stream, kind_of, offers_to, stream_table
from mesh.errors import ApiCode, ApiError, BusError
from mesh.testing import EmbeddedBus
from protocol.wire.config import Fleet

KEPT = ("LOG", "PROP", "CTL", "STEPS", "ENDS", "DEAD")


def kind(stream: str) -> str:
    """Return the name of a stream; of one that is a sender's own, what it holds."""
    return "STEPS" if is_journal_stream(stream) else kind_of(stream) or stream


def one_account(mesh: EmbeddedBus, *, permissions: bool) -> str:
    """Return a configuration without the walls between accounts, and if asked without permissions too."""
    everybody = roles.Grants(roles.CORE, None, None)
    users = []
    for role, name in roles.members(mesh.fleet):
        granted = roles.grants(role, name, offers_to(mesh.fleet, name))
        if granted.publish is not None:  # without a wall there is no other name for the API
            publish = tuple(subject.replace(roles.OUTSIDE_API, roles.API) for subject in granted.publish)
            granted = granted._replace(publish=publish)
        users.append(roles.user(mesh.keys[name].public, granted if permissions else everybody))
    listed = "\n".join(users)
    return (
        f"accounts {{ ALL {{ jetstream: enabled, users: [\n{listed}\n] }}, SYS {{}} }}\nsystem_account: SYS\n"
    )


class LooseMesh(EmbeddedBus):
    """A mesh with other accounts than the shipped ones."""

    def __init__(self, fleet: Fleet, directory: Path, *, permissions: bool) -> None:
        super().__init__(fleet, directory)
        self.server._accounts = one_account(self, permissions=permissions)


class Scene:
    """One mesh, with a way to see everything that was stored in it."""

    def __init__(self, mesh: EmbeddedBus, *, shipped: bool) -> None:
        self.mesh = mesh
        self.shipped = shipped
        self.expected: set[tuple[str, str]] = set()
        """Stream and subject of what the victims of the running attack store themselves."""
        self._stack = contextlib.AsyncExitStack()
        self._buses: dict[str, Bus] = {}

    async def bus(self, name: str) -> Bus:
        """Return the connection of `name`, one for each scene."""
        if name not in self._buses:
            self._buses[name] = await self._stack.enter_async_context(self.mesh.connected_as(name))
        return self._buses[name]

    async def admin(self) -> Bus:
        return await self.bus("admin")

    async def __aenter__(self) -> "Scene":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    # --- what is stored ---------------------------------------------------------------------------

    async def snapshot(self) -> "Snapshot":
        admin = await self.admin()
        streams = {name: await admin.api(f"STREAM.INFO.{name}") for name in stream_table(self.mesh.fleet)}
        consumers: dict[str, Any] = {}
        for name in streams:
            for each in (await admin.api(f"CONSUMER.LIST.{name}"))["consumers"] or ():
                consumers[f"{name}/{each['name']}"] = each["config"]
        states = {name: info["state"] for name, info in streams.items()}
        return Snapshot(
            {name: state["last_seq"] for name, state in states.items()},
            {
                name: states[name]["last_seq"] - states[name]["messages"]
                for name in states
                if kind(name) in KEPT
            },
            {name: info["config"] for name, info in streams.items()},
            consumers,
        )

    async def stored_since(self, before: "Snapshot") -> list[tuple[str, str]]:
        """Return stream and subject of every message stored since, however it came there.

        One that is gone again was replaced by a newer one of its subject, which is listed.
        """
        admin = await self.admin()
        found = []
        for stream, last in before.last_seq.items():
            info = await admin.api(f"STREAM.INFO.{stream}")
            sequences = range(last + 1, info["state"]["last_seq"] + 1)
            found += [(kind(stream), await self._subject(stream, seq)) for seq in sequences]
        return [each for each in found if each[1]]

    async def _subject(self, stream: str, seq: int) -> str:
        try:
            got = await (await self.admin()).api(f"STREAM.MSG.GET.{stream}", {"seq": seq})
        except ApiError as error:
            if error.err_code != ApiCode.NO_MESSAGE_FOUND:
                raise
            return ""
        subject: str = got["message"]["subject"]
        return subject


class Snapshot(NamedTuple):
    last_seq: dict[str, int]
    removed: dict[str, int]
    """How many messages are gone from the streams that nothing may vanish from while nobody consumes."""
    configs: dict[str, Any]
    consumers: dict[str, Any]


async def attempt(
    bus: Bus, subject: str, data: bytes = b"", headers: dict[str, str] | None = None, *, reply: str = ""
) -> None:
    """Publish as an attacker does: whatever the bus says to it, and then until the bus has handled it."""
    with contextlib.suppress(BusError):
        if reply:
            bus.send(subject, data, headers, reply=reply)
        else:
            await bus.request(subject, data, headers, timeout_s=0.3)
    await bus.flush()


async def told(bus: Bus, subject: str, data: bytes = b"") -> list[bytes]:
    """Return everything that is answered to a request, statuses left out."""
    got: list[bytes] = []
    inbox = await bus.subscribe(bus.new_inbox(), lambda m: None if m.status else got.append(m.data))
    bus.send(subject, data, reply=inbox.subject)
    await bus.flush()
    await quiet(bus)
    await inbox.close()
    return got


async def quiet(bus: Bus) -> None:
    """Wait until what is under way through the server's own queues has come to rest.

    JetStream answers some calls after the connection's PONG. Two answered calls later it has: they take
    the same way through the same queues.
    """
    for _ in range(2):
        with contextlib.suppress(BusError):
            await bus.request("$JS.API.STREAM.INFO.NONE", timeout_s=0.1)
        await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def heard_on(bus: Bus, subject: str) -> AsyncIterator[list[tuple[str, bytes]]]:
    """Listen on `subject`, or to nothing where that is denied; gives what is heard."""
    heard: list[tuple[str, bytes]] = []
    try:
        subscription = await bus.subscribe(
            subject, lambda message: heard.append((message.subject, message.data))
        )
    except BusError:
        yield heard
        return
    yield heard
    await subscription.close()
