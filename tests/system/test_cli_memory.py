"""What conversations remember, from the command line: listed, shown, forgotten."""

import shlex

from mesh.bus.memory import read_memory
from mesh.cli.exits import Exit
from protocol.wire.events import RequestOpened
from protocol.wire.handoff import Fact
from protocol.wire.moves import Complete
from protocol.wire.records import MemoryRecord
from tests.docs.pages import DOCS, commands, section
from tests.guard.stage import Stage
from tests.servers import PATIENCE_S, eventually
from tests.system.office import Office

LEAVES = (Fact(key="order", value={"no": 7}), Fact(key="name", value="Ada", labels=("pii",)))


async def left(stage: Stage, conversation: str, name: str = "c1", *leaves: Fact) -> str:
    """Let a request of a conversation end with facts, and guards fold its answer; return its id."""
    client, a = await stage.client(name), await stage.actor("a")
    request = await client.submit("hello", conversation=conversation)
    leaves = leaves or LEAVES
    await a.propose(request, await a.work(request), Complete(answer="done", remember=leaves))
    await client.wait(request, timeout_s=PATIENCE_S)
    audit = await stage.bus("audit")

    async def folded() -> bool:
        entries = (await read_memory(audit, name, conversation)).entries
        own = {each.key for each in entries if isinstance(each, MemoryRecord) and each.request == request}
        return own == {fact.key for fact in leaves}

    await eventually(folded)
    return request


async def test_it_is_listed_shown_and_forgotten(office: Office, stage: Stage) -> None:
    request = await left(stage, "a talk")
    for who in ("op", "audit", "c1"):
        listed = await office.mesh("memory", "ls", "--json", who=who)
        mine = next(each for each in listed.json if each["conversation"] == "a talk")
        assert (mine["client"], mine["keys"], mine["last"]) == ("c1", ["name", "order"], "a")
        shown = await office.mesh("memory", "show", "a talk", "--json", who=who)
        assert [(each["key"], each["value"], each["labels"], each["request"]) for each in shown.json] == [
            ("name", "Ada", ["pii"], request),
            ("order", {"no": 7}, [], request),
        ]
    done = await office.mesh("memory", "forget", "a talk", "order", "--by", "kim")
    assert (done.status, done.out) == (Exit.DONE, "c1's conversation a talk has forgotten 1 fact\n"), done
    assert "order" not in (await office.mesh("memory", "show", "a talk")).out
    done = await office.mesh("memory", "forget", "a talk", "--json", who="c1")
    assert done.json == {"client": "c1", "conversation": "a talk", "keys": ["name"], "last": "a"}
    gone = await office.mesh("memory", "show", "a talk")
    assert gone.status == Exit.FAILED, gone
    assert "older than the fleet file lets facts be" in gone.err


async def test_who_spoke_last_is_listed_and_forgotten_without_facts(office: Office, stage: Stage) -> None:
    client, a = await stage.client("c1"), await stage.actor("a")
    request = await client.submit("hello", conversation="just talk", continue_with="last")
    await a.propose(request, await a.work(request), Complete(answer="done"))
    await client.wait(request, timeout_s=PATIENCE_S)

    async def listed() -> list[tuple[str, list[str], str]]:
        found = (await office.mesh("memory", "ls", "--json", who="c1")).json
        return [(each["conversation"], each["keys"], each["last"]) for each in found]

    async def is_listed() -> bool:
        return ("just talk", [], "a") in await listed()

    await eventually(is_listed, PATIENCE_S)
    shown = await office.mesh("memory", "show", "just talk", "--json", who="audit")
    assert (shown.status, shown.json) == (Exit.DONE, [])
    done = await office.mesh("memory", "forget", "just talk")
    assert done.out == "c1's conversation just talk has forgotten 0 facts and who spoke last\n"
    assert ("just talk", [], "a") not in await listed()
    again = await client.submit("hello", conversation="just talk", continue_with="last")
    assert (await stage.reached(again, RequestOpened)).continued is None


async def test_the_commands_of_the_page_list_show_and_forget(office: Office, stage: Stage) -> None:
    await left(stage, "c-1")
    typed = [
        shlex.split(line, comments=True)[1:]
        for line, _ in commands(section((DOCS / "memory.md").read_text(), "Look, and forget"))
    ]
    listed, shown, forgotten = [await office.mesh(*words) for words in typed]
    assert [each.status for each in (listed, shown, forgotten)] == [Exit.DONE] * 3
    assert all("c-1" in each.out for each in (listed, forgotten))
    assert "Ada" in shown.out
    assert (await office.mesh(*typed[1])).status == Exit.FAILED


async def test_the_story_says_what_came_from_the_conversation_and_what_it_remembers(
    office: Office, stage: Stage
) -> None:
    first = await left(stage, "told")
    second = await left(stage, "told", "c1", Fact(key="order", value=8))
    assert "remembered from now on: name, order" in (await office.mesh("request", "show", first)).out
    told = (await office.mesh("request", "show", second)).out
    assert "from the conversation: name, order" in told
    assert "remembered from now on: order" in told


async def test_a_name_that_several_clients_use_wants_the_client(office: Office, stage: Stage) -> None:
    await left(stage, "shared")
    await left(stage, "shared", "c2")
    unclear = await office.mesh("memory", "forget", "shared")
    assert unclear.status == Exit.USAGE, unclear
    assert "c1, c2 have a conversation 'shared': say --client" in unclear.err
    done = await office.mesh("memory", "forget", "shared", "--client", "c2")
    assert done.status == Exit.DONE
    assert (await office.mesh("memory", "show", "shared")).status == Exit.DONE  # c1's is left


async def test_a_client_has_no_part_in_anothers_conversation(office: Office, stage: Stage) -> None:
    await left(stage, "private")
    assert (await office.mesh("memory", "show", "private", who="c2")).status == Exit.FAILED
    for words in (("ls",), ("show", "private"), ("forget", "private")):
        denied = await office.mesh("memory", *words, "--client", "c1", who="c2")
        assert denied.status != Exit.DONE, denied
        assert "not allowed" in denied.err
    assert (await office.mesh("memory", "show", "private")).status == Exit.DONE


async def test_what_is_not_there_is_named(office: Office, stage: Stage) -> None:
    await left(stage, "few")
    missing = await office.mesh("memory", "forget", "few", "order", "never")
    assert (missing.status, "does not remember never" in missing.err) == (Exit.FAILED, True), missing
    nobody = await office.mesh("memory", "ls", "--client", "nobody")
    assert nobody.status == Exit.FAILED
    assert (await office.mesh("memory", "forget", "few", who="audit")).status == Exit.USAGE
