"""Provisioning: to the table, once, and never over somebody's data; prices from the file to new requests."""

import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mesh import ops
from mesh.bus.connection import Bus
from mesh.bus.provision import Change, provision
from mesh.bus.schedules import stored_schedules
from mesh.bus.streams import SCHEMA, Limits, Storage, consumer_table, steps_of, stream_table
from mesh.errors import ApiError, NewerSchema, OtherPartitions, StoreTooSmall, UnsafeChange
from mesh.fleet.file import FleetFile, parse_fleet
from mesh.fleet.setup import apply
from mesh.testing import EmbeddedBus
from protocol.wire import subjects
from protocol.wire.commands import Submit
from protocol.wire.config import AgentEntry, Fleet
from protocol.wire.events import RequestOpened
from protocol.wire.ids import AgentName
from protocol.wire.prices import assumed_cache_prices
from protocol.wire.subjects import FLEET as FLEET_SUBJECT
from protocol.wire.subjects import inbox, intent_inbox, partition, prop
from tests.guard.stage import Stage
from tests.servers import FLEET, fresh, until


def taking(**intents: tuple[str, ...]) -> Fleet:
    """Return the fleet with agents that list these intents."""
    agents = {
        name: msgspec.structs.replace(entry, intents=intents.get(name))
        for name, entry in FLEET.agents.items()
    }
    return msgspec.structs.replace(FLEET, agents=agents)


async def state(admin: Bus) -> dict[str, Any]:
    """Return every stream's configuration and state, and every consumer's configuration."""
    seen: dict[str, Any] = {}
    for name in stream_table(FLEET):
        info = await admin.api(f"STREAM.INFO.{name}")
        seen[name] = (info["config"], info["state"])
        listed = (await admin.api(f"CONSUMER.LIST.{name}"))["consumers"] or []
        seen[f"{name} consumers"] = sorted((each["name"], str(each["config"])) for each in listed)
    return seen


@contextlib.asynccontextmanager
async def updated(admin: Bus, stream: str, **fields: object) -> AsyncIterator[None]:
    """Change a stream for the length of a block."""
    config: Mapping[str, Any] = (await admin.api(f"STREAM.INFO.{stream}"))["config"]
    await admin.api(f"STREAM.UPDATE.{stream}", {**config, **fields})
    try:
        yield
    finally:
        await admin.api(f"STREAM.UPDATE.{stream}", config)


async def test_a_second_run_finds_nothing_to_do_and_changes_nothing(server: EmbeddedBus) -> None:
    async with server.connected_as("admin") as admin:
        before = await state(admin)
        assert await provision(admin, FLEET) == []
        assert await state(admin) == before


async def test_everything_in_the_table_is_there(server: EmbeddedBus) -> None:
    async with server.connected_as("admin") as admin:
        for name, wanted in stream_table(FLEET).items():
            stands = (await admin.api(f"STREAM.INFO.{name}"))["config"]
            assert stands["metadata"]["mesh.schema"] == str(SCHEMA)
            for field in ("subjects", "storage", "discard", "max_msgs_per_subject"):
                assert stands.get(field) == wanted.get(field, stands.get(field))
        names = {(stream, name) for stream, name, _ in consumer_table(FLEET)}
        assert {("PROP-a", "g0"), ("CTL", "g3"), ("CTL-c1", "g0"), ("TIMER", "g1"), ("LOG", "in-a")} <= names
        for stream, name in names:
            await admin.api(f"CONSUMER.INFO.{stream}.{name}")


async def test_a_dry_run_says_what_it_would_do_and_does_nothing(own_server: EmbeddedBus) -> None:
    grown = {**FLEET.agents, "new": AgentEntry(name=AgentName("new"))}
    fleet = msgspec.structs.replace(FLEET, agents=grown, log_max_age_s=FLEET.log_max_age_s * 2)
    async with own_server.connected_as("admin") as admin:
        before = await state(admin)
        planned = await provision(admin, fleet, dry_run=True)
        assert await state(admin) == before
        changes = {(change.action, change.what) for change in planned}
        journals = [steps_of(agent) for agent in FLEET.agents]
        ages = {
            ("update", f"stream {name}") for name in ("LOG", "ENDS", "ASKS", "ANCHORS", "DEAD", *journals)
        }
        consumers = {("create", f"consumer PROP-new/g{n}") for n in range(fleet.partitions)}
        own = {("create", "stream PROP-new"), ("create", "stream STEPS-new"), *consumers}
        assert changes == {("create", "consumer LOG/in-new"), ("write", FLEET_SUBJECT), *ages, *own}
        assert await provision(admin, fleet) == planned
        assert await provision(admin, fleet, dry_run=True) == []


async def test_on_an_empty_server_a_dry_run_names_all_of_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    mesh = EmbeddedBus(FLEET, tmp_path_factory.mktemp("empty"))
    async with mesh.server, mesh.connected_as("admin") as admin:
        planned = await provision(admin, FLEET, dry_run=True)
        assert len(planned) == len(stream_table(FLEET)) + len(tuple(consumer_table(FLEET))) + 1
        assert (await admin.api("INFO"))["streams"] == 0


async def test_the_fleet_is_written_once_and_only_when_it_differs(own_server: EmbeddedBus) -> None:
    async with own_server.connected_as("admin") as admin:
        last = (await admin.api("STREAM.INFO.CONF"))["state"]["last_seq"]
        await provision(admin, msgspec.structs.replace(FLEET, revision=last))  # as it was read back
        assert (await admin.api("STREAM.INFO.CONF"))["state"]["last_seq"] == last
        await provision(admin, msgspec.structs.replace(FLEET, entry=AgentName("b")))
        assert (await admin.api("STREAM.INFO.CONF"))["state"]["last_seq"] == last + 1
    async with own_server.connected_as("guard") as guard:
        read = await guard.request(f"$JS.API.DIRECT.GET.CONF.{FLEET_SUBJECT}")
        assert msgspec.json.decode(read.data, type=Fleet).entry == "b"


@pytest.mark.parametrize(
    ("stream", "fields", "fleet_age", "named"),
    [
        pytest.param("DEAD", {"max_age": 0}, 1.0, "max_age", id="keeps-less-long"),
        pytest.param("PROP-a", {"max_bytes": 2 << 30}, 1.0, "max_bytes", id="holds-less"),
        pytest.param("CARDS", {"max_msg_size": -1}, 1.0, "max_msg_size", id="takes-smaller-ones"),
        pytest.param("CARDS", {"subjects": ["mesh.card.*", "x.>"]}, 1.0, "subjects", id="other-subjects"),
        pytest.param("CARDS", {"discard": "new"}, 1.0, "discard", id="other-discard"),
        pytest.param("LOG", {}, 0.5, "max_age", id="a-fleet-that-forgets-sooner"),
    ],
)
async def test_an_unsafe_change_is_refused_and_nothing_is_written(
    server: EmbeddedBus, stream: str, fields: dict[str, object], fleet_age: float, named: str
) -> None:
    new = AgentEntry(name=AgentName("new"))  # something else there is to do
    age = FLEET.log_max_age_s * fleet_age
    fleet = msgspec.structs.replace(FLEET, agents={**FLEET.agents, "new": new}, log_max_age_s=age)
    async with server.connected_as("admin") as admin, updated(admin, stream, **fields):
        before = await state(admin)
        with pytest.raises(UnsafeChange) as refused:
            await provision(admin, fleet)
        assert refused.value.field == named
        assert await state(admin) == before


async def test_what_could_erase_others_writes_is_switched_off_again(server: EmbeddedBus) -> None:
    async with server.connected_as("admin") as admin:
        before = await state(admin)
        async with updated(admin, "PROP-a", allow_rollup_hdrs=True, duplicate_window=120 * 10**9):
            assert [change.what for change in await provision(admin, FLEET)] == ["stream PROP-a"]
            assert await state(admin) == before


async def test_a_log_takes_more_inboxes_than_a_server_allows_by_itself(own_server: EmbeddedBus) -> None:
    """nats-server 2.15 gives a stream that sets no limit 1,000 consumers."""
    async with own_server.connected_as("admin") as admin:
        config = (await admin.api("STREAM.INFO.LOG"))["config"]
        await admin.api("STREAM.UPDATE.LOG", config | {"max_consumers": -1})  # as a mesh had it before
        await _inboxes(admin, 0, 1_000 - sum(stream == "LOG" for stream, *_ in consumer_table(FLEET)))
        with pytest.raises(ApiError, match="maximum consumers"):
            await _inboxes(admin, 1_000, 1_001)
        assert [change.what for change in await provision(admin, FLEET)] == ["stream LOG"]
        await _inboxes(admin, 1_000, 1_001)


async def _inboxes(admin: Bus, first: int, end: int) -> None:
    """Make inboxes of agents that are in no fleet."""
    for number in range(first, end):
        config = {
            "durable_name": f"in-{number}",
            "ack_policy": "explicit",
            "filter_subject": f"mesh.evt.{number}.*",
        }
        await admin.api(f"CONSUMER.CREATE.LOG.in-{number}", {"stream_name": "LOG", "config": config})


async def test_a_consumer_whose_lease_was_changed_is_put_right(server: EmbeddedBus) -> None:
    async with server.connected_as("admin") as admin:
        stands = (await admin.api("CONSUMER.INFO.LOG.in-a"))["config"]
        body = {"stream_name": "LOG", "config": {**stands, "ack_wait": 60 * 10**9}, "action": "update"}
        await admin.api("CONSUMER.CREATE.LOG.in-a", body)
        assert [change.what for change in await provision(admin, FLEET)] == ["consumer LOG/in-a"]
        assert (await admin.api("CONSUMER.INFO.LOG.in-a"))["config"]["ack_wait"] == 6 * 10**9


async def test_the_consumer_of_an_intent_comes_with_the_first_agent_that_lists_it_and_goes_with_the_last(
    own_server: EmbeddedBus,
) -> None:
    async def listed(admin: Bus) -> dict[str, str]:
        consumers = (await admin.api("CONSUMER.LIST.LOG"))["consumers"]
        return {each["name"]: each["config"]["filter_subject"] for each in consumers if "any" in each["name"]}

    review, read_on = "any-review", intent_inbox("read on")
    async with own_server.connected_as("admin") as admin:
        assert await listed(admin) == {f"in-{name}": inbox(name) for name in (review, read_on)}
        assert [change.action for change in await provision(admin, taking(a=("review", "read on")))] == [
            "write"
        ]
        fleet = taking(e=("read on",))
        planned = await provision(admin, fleet, dry_run=True)
        assert [change[:2] for change in planned] == [
            ("write", FLEET_SUBJECT),
            ("delete", f"consumer LOG/in-{review}"),
        ]
        assert await provision(admin, fleet) == planned
        assert await listed(admin) == {f"in-{read_on}": inbox(read_on)}
        assert await provision(admin, fleet) == []


async def test_leases_are_the_fleets_and_follow_it(own_server: EmbeddedBus) -> None:
    fleet = msgspec.structs.replace(FLEET, lease_s=30.0, guard_lease_s=1.5)
    async with own_server.connected_as("admin") as admin:
        done = {change.what for change in await provision(admin, fleet)}
        assert {"consumer LOG/in-a", "consumer PROP-a/g0", "consumer CTL/g3", "consumer TIMER/g1"} <= done
        for consumer, wait_s in (("LOG.in-a", 30), ("PROP-a.g0", 1.5), ("TIMER.g1", 1.5)):
            stands = (await admin.api(f"CONSUMER.INFO.{consumer}"))["config"]
            assert stands["ack_wait"] == wait_s * 10**9
        assert await provision(admin, fleet) == []


async def test_streams_of_a_newer_version_are_left_alone(server: EmbeddedBus) -> None:
    newer = {"mesh.schema": str(SCHEMA + 1)}
    async with server.connected_as("admin") as admin, updated(admin, "DEAD", metadata=newer):
        with pytest.raises(NewerSchema):
            await provision(admin, FLEET)


async def test_only_the_admin_provisions(server: EmbeddedBus) -> None:
    async with server.connected_as("guard") as guard:
        with pytest.raises(Exception, match="not allowed"):
            await provision(guard, FLEET)


async def test_names_that_clash_are_refused_before_anything_is_written(server: EmbeddedBus) -> None:
    async with server.connected_as("admin") as admin:
        with pytest.raises(ValueError, match="named 'a'"):
            await provision(admin, msgspec.structs.replace(FLEET, clients=(AgentName("a"),)))


async def test_more_replicas_than_servers_is_the_servers_refusal(server: EmbeddedBus) -> None:
    async with server.connected_as("admin") as admin:
        with pytest.raises(ApiError):
            await provision(admin, FLEET, Storage(replicas=3))


async def test_limits_beyond_the_store_are_refused_and_say_what_to_do(own_server: EmbeddedBus) -> None:
    """The server sets room aside for each limit: a stream below its own never finds the store full."""
    beyond = Limits(step_bytes=1 << 60)
    grown = {**FLEET.agents, "new": AgentEntry(name=AgentName("new"))}
    async with own_server.connected_as("admin") as admin:
        for agent, fleet in (("a", FLEET), ("new", msgspec.structs.replace(FLEET, agents=grown))):
            with pytest.raises(
                StoreTooSmall, match=f"stream STEPS-{agent} may take {1 << 60} bytes.*steps_mib"
            ):
                await provision(admin, fleet, Storage(limits_of={agent: beyond}))


async def test_a_store_without_room_for_all_streams_gets_none_of_them(tmp_path: Path) -> None:
    mesh = EmbeddedBus(FLEET, tmp_path)
    await mesh.server.start()
    try:
        async with mesh.connected_as("admin") as admin:
            third = shutil.disk_usage(tmp_path).free // 3  # the server promises three quarters
            parts = {name: Limits(step_bytes=third) for name in FLEET.agents}
            with pytest.raises(StoreTooSmall, match=f"STEPS-.* may take {third} bytes of .* together"):
                await provision(admin, FLEET, Storage(limits_of=parts))
            assert not (await admin.api("STREAM.NAMES"))["streams"]
            await admin.api("STREAM.CREATE.ROOM", {"name": "ROOM", "subjects": ["mesh.room"], "max_bytes": 9})
            await provision(admin, FLEET)
            assert "ROOM" not in (await admin.api("STREAM.NAMES"))["streams"]
    finally:
        await mesh.server.kill()


async def test_the_store_is_never_without_a_stream_once_it_had_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that deletes its only stream removes the folder of streams while it makes the next one."""
    mesh = EmbeddedBus(FLEET, tmp_path)
    await mesh.server.start()
    try:
        async with mesh.connected_as("admin") as admin:
            ask, left = admin.api, list[object]()

            async def noting(verb: str, *args: Any, **options: Any) -> Any:
                answer = await ask(verb, *args, **options)
                if verb.startswith("STREAM.DELETE."):
                    left.append((await ask("STREAM.NAMES"))["streams"])
                return answer

            monkeypatch.setattr(admin, "api", noting)
            await provision(admin, FLEET)
        assert left
        assert all(left)
    finally:
        await mesh.server.kill()


@pytest.mark.parametrize("partitions", [1, 4, 64])
async def test_a_message_is_stored_in_the_partition_that_the_protocol_computes(
    tmp_path: Path, partitions: int
) -> None:
    requests = [fresh() for _ in range(100)]
    mesh = EmbeddedBus(msgspec.structs.replace(FLEET, partitions=partitions), tmp_path)
    async with mesh, mesh.connected_as("c1") as client, mesh.connected_as("admin") as admin:
        for request in requests:
            await client.publish_durable(prop("c1", request), b"{}")
            await client.publish_durable(subjects.ctl("c1", request), b"{}")
        for kind in ("prop", "ctl"):
            said = {"subjects_filter": f"mesh.{kind}.>"}
            info = await admin.api(f"STREAM.INFO.{kind.upper()}-c1", said)
            stored = {f"mesh.{kind}.{partition(each, partitions)}.c1.{each}" for each in requests}
            assert set(info["state"]["subjects"]) == stored
        for stream in ("PROP-c1", "CTL", "TIMER"):
            consumers = (await admin.api(f"CONSUMER.LIST.{stream}"))["consumers"]
            assert len(consumers) == partitions


@pytest.mark.parametrize("lost", [(), ("TIMER",), ("CONF",)])
async def test_a_mesh_keeps_its_number_of_partitions(own_server: EmbeddedBus, lost: tuple[str, ...]) -> None:
    async with own_server.connected_as("admin") as admin:
        for stream in lost:
            await admin.api(f"STREAM.DELETE.{stream}")
        before = (await admin.api("STREAM.LIST"))["streams"]
        with pytest.raises(OtherPartitions, match=r"partitions = 4.*a new mesh") as refused:
            await provision(admin, msgspec.structs.replace(FLEET, partitions=16))
        assert (refused.value.current, refused.value.wanted) == (4, 16)
        left = (await admin.api("STREAM.LIST"))["streams"]
        assert [(each["config"], each["state"]) for each in left] == [
            (each["config"], each["state"]) for each in before
        ]


FILE = 'name = "desk"\nentry = "a"\n[agents.a]\n[clients.c1]\n[operators.op]\n'
WRITTEN = Change("write", subjects.PRICES)


def said(prices: str) -> FleetFile:
    return parse_fleet(FILE + prices)


SCHEDULES = """
[clients.app]
[schedules.nightly]
client = "app"
cron = "@daily"
text = "the report"
[schedules.weekly]
client = "app"
cron = "@weekly"
text = "the report"
"""


async def test_schedules_come_to_the_bus_and_leave_it_with_the_fleet_file(tmp_path: Path) -> None:
    both, one = said(SCHEDULES), said(SCHEDULES.partition("[schedules.weekly]")[0])
    async with EmbeddedBus(both.fleet, tmp_path / "mesh") as mesh, mesh.connected_as("admin") as admin:
        await admin.api("STREAM.DELETE.CONF")  # as on a new server
        await apply(admin, both)
        assert {each.name: each.schedule for each in await stored_schedules(admin)} == both.planned
        assert await apply(admin, both) == []
        assert await apply(admin, one) == [Change("write", "mesh.conf.schedule.weekly")]
        assert {each.name: each.schedule for each in await stored_schedules(admin)} == one.planned
        assert await apply(admin, one) == []
        await apply(admin, both)
        assert {each.name: each.schedule for each in await stored_schedules(admin)} == both.planned


async def test_what_was_submitted_for_a_time_stays_whatever_the_fleet_file_says(tmp_path: Path) -> None:
    both, none = said(SCHEDULES), said(SCHEDULES.partition("[schedules.nightly]")[0])
    async with EmbeddedBus(both.fleet, tmp_path / "mesh") as mesh, mesh.connected_as("admin") as admin:
        await apply(admin, both)
        at = time.time_ns() // 1000 + 3_600_000_000
        later = await ops.schedules.submit_at(admin, Submit(text="once"), at, client="app", by="ada")
        await apply(admin, none)
        assert [each.name for each in await stored_schedules(admin)] == [later.schedule]


async def test_prices_that_are_taken_out_of_the_fleet_file_are_gone(tmp_path: Path) -> None:
    priced, bare = said("[prices]\nm = {input = 1, output = 2}\n"), said("")
    async with EmbeddedBus(bare.fleet, tmp_path / "mesh") as mesh:
        stage = Stage(mesh)
        await stage.open()
        admin, guard = await stage.bus("admin"), await stage.guard()

        async def opened() -> RequestOpened:
            request = await (await stage.client()).submit("hello")
            (event,) = await stage.reaches(request, "request.opened")
            assert isinstance(event, RequestOpened)
            return event

        try:
            await apply(admin, bare)
            await stage.ready(guard)
            assert WRITTEN not in await apply(admin, bare)
            assert await apply(admin, priced) == [WRITTEN]
            await until(lambda: bool(guard._context._prices))
            assert (await opened()).work.prices == {"m": {"input": 1, "output": 2, **assumed_cache_prices(1)}}
            assert await apply(admin, bare, dry_run=True) == [WRITTEN]
            assert await apply(admin, bare) == [WRITTEN]
            await until(lambda: not guard._context._prices)
            event = await opened()
            assert (event.prices, event.work.prices) == ({}, {})
            assert await apply(admin, bare) == []
        finally:
            await stage.close()


async def test_setup_writes_anew_what_guards_cannot_read(tmp_path: Path) -> None:
    file = said("[prices]\nm = {input = 1, output = 2}\n[policies.strict]\nmax_depth = 2\n")
    documents = (subjects.FLEET, subjects.PRICES, subjects.policy("strict"), subjects.policy("default"))
    async with EmbeddedBus(file.fleet, tmp_path / "mesh") as mesh:
        stage = Stage(mesh)
        await stage.open()
        admin, guard = await stage.bus("admin"), await stage.guard()
        try:
            await apply(admin, file)
            await stage.ready(guard)
            for document in documents:
                await admin.publish_durable(document, b"?")
            await until(lambda: len(guard._context._unreadable) == 2)
            assert {change.what for change in await apply(admin, file)} >= set(documents)
            await until(lambda: not guard._context._unreadable)
            for policy in ("default", "strict"):
                request = await (await stage.client()).submit("hello", policy=policy)
                await stage.reaches(request, "request.opened")
            assert await apply(admin, file) == []
        finally:
            await stage.close()
