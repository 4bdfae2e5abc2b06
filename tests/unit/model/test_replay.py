"""A conversation goes on in later rounds with what it was told: answers find their own moves, no others."""

import random
from collections import Counter

import pytest
from msgspec.structs import replace

from mesh.agent import Turn
from mesh.agent._steps import digest_of
from mesh.agent.errors import EffectUnknown, InDoubt, ToolError
from mesh.agent.tools import Effect, Tool, tool
from mesh.local.in_memory import turn_of
from mesh.model.loop import drive
from mesh.model.port import Hear, Model, Prompt, Reply, ToolCall, ToolResult
from mesh.testing import MemorySteps, turn
from mesh.testing.harness import replied
from protocol.wire.commands import Report, Usage
from protocol.wire.config import AgentEntry
from protocol.wire.event_parts import RoundOutcome
from protocol.wire.handoff import Refusal, Rule
from protocol.wire.moves import Ask, Complete, Escalate, Move, Transfer
from protocol.wire.prices import MTOK, Price, Tokens
from tests.certain import is_
from tests.unit.model.doubles import TalkingModel, calls, says

TO_B = Transfer(to_agent="b", summary="Do it.")  # type: ignore[arg-type]
GIVE = calls(("transfer_to_b", {"summary": "Do it."}))


def told(model: TalkingModel) -> list[ToolResult]:
    return [each for each in model.prompts[-1].transcript if isinstance(each, ToolResult)]


mails: list[str] = []


@pytest.fixture(autouse=True)
def _no_mails() -> None:
    mails.clear()


@tool
async def find() -> str:
    """Find it."""
    return "found"


@tool(effect="idempotent")
async def send(text: str) -> str:
    """Send a mail."""
    mails.append(text)
    return "sent"


class Flaky:
    """A tool that breaks, or says no, the first time it runs."""

    def __init__(self, first: Exception) -> None:
        self.ran = 0

        @tool
        async def find() -> str:
            """Find it."""
            self.ran += 1
            if self.ran == 1:
                raise first
            return "found"

        self.tool = find


@pytest.mark.parametrize("first", [ConnectionError("down"), ToolError("Not on a Sunday.")])
async def test_what_a_tool_failed_of_is_told_again_in_a_later_round_and_the_answer_finds_its_move(
    first: Exception,
) -> None:
    steps, flaky = MemorySteps(), Flaky(first)
    model = TalkingModel(calls(("find", {})), GIVE)
    given = turn(peers=["b"], steps=steps)
    assert await drive(given, model, instructions="", tools=[flaky.tool]) == TO_B
    then = TalkingModel(says("by myself"))
    later = turn(peers=["b"], steps=steps, refused=[(TO_B, "size")])
    assert await drive(later, then, instructions="", tools=[flaky.tool]) == Complete(answer="by myself")
    assert flaky.ran == 1
    assert [each.is_error for each in told(then)] == [True, True]
    assert told(then)[-1].text.startswith("rule size refused transfer to b")


async def test_what_a_tool_failed_of_is_recorded_before_the_model_sees_it() -> None:
    steps, flaky = MemorySteps(), Flaky(ConnectionError("down"))
    first = TalkingModel(calls(("find", {})), says("It is down."))
    await drive(turn(steps=steps), first, instructions="", tools=[flaky.tool])
    again = TalkingModel()  # the same round, delivered again: nobody is asked
    move = await drive(turn(steps=steps), again, instructions="", tools=[flaky.tool])
    assert (move, flaky.ran) == (Complete(answer="It is down."), 1)


async def test_code_that_is_no_models_tries_a_refused_read_anew_in_a_later_round() -> None:
    steps, flaky = MemorySteps(), Flaky(ToolError("Not on a Sunday."))
    with pytest.raises(ToolError):
        await turn(steps=steps).call(flaky.tool)
    assert await turn(steps=steps, refused=[(TO_B, "size")]).call(flaky.tool) == "found"


async def test_a_conversation_under_another_prompt_begins_anew_and_its_first_move_counts() -> None:
    steps = MemorySteps()
    await drive(turn(peers=["b"], steps=steps), TalkingModel(GIVE), instructions="Old.", tools=())
    then = TalkingModel(says("by myself"))
    later = turn(peers=["b"], steps=steps, refused=[(TO_B, "depth")])
    assert await drive(later, then, instructions="New.", tools=()) == Complete(answer="by myself")
    assert "round 0 refused: rule depth refused transfer to b" in then.prompts[0].brief
    assert then.prompts[0].transcript == ()
    silent = TalkingModel()  # delivered again, while somebody has joined
    again = turn(peers=["b", "c"], steps=steps, refused=[(TO_B, "depth")])
    assert await drive(again, silent, instructions="New.", tools=()) == Complete(answer="by myself")
    third = TalkingModel(says("really"))
    refused: list[tuple[Move, str]] = [(TO_B, "depth"), (Complete(answer="by myself"), "size")]
    last = turn(peers=["b", "c"], steps=steps, refused=refused)
    assert await drive(last, third, instructions="New.", tools=()) == Complete(answer="really")
    assert third.prompts[0].brief == then.prompts[0].brief


async def test_work_that_a_person_gives_again_begins_with_what_they_said() -> None:
    steps, escalate = MemorySteps(), Escalate(summary="Too hard.")
    asking = TalkingModel(calls(("escalate", {"reason": "Too hard."})))
    await drive(turn(steps=steps), asking, instructions="", tools=())
    said = RoundOutcome(round=0, how="resolved", move=escalate, reply="use the other account", by="Ada")
    given_anew = turn(steps=steps, past=[said], from_agent="human", move="resolve", summary="Too hard.")
    then = TalkingModel(says("Done."))
    assert await drive(given_anew, then, instructions="", tools=()) == Complete(answer="Done.")
    assert "use the other account" in then.prompts[0].brief


async def test_an_approval_that_could_not_be_asked_for_answers_its_call_and_no_move() -> None:
    @tool(effect="idempotent", approve="client")
    async def pay(cents: int) -> str:
        """Pay."""
        return "paid"

    steps = MemorySteps()
    model = TalkingModel(calls(("pay", {"cents": 5})))
    with pytest.raises(Exception, match="pay needs the approval") as stopped:
        await drive(turn(steps=steps), model, instructions="", tools=[pay])
    ask: Ask = stopped.value.ask  # type: ignore[attr-defined]
    refusal = Refusal(rule=Rule.ASKS, detail="has asked 3 times")
    past = [RoundOutcome(round=0, how="refused", move=ask, refusal=refusal)]
    then = TalkingModel(says("It was not paid."))
    answer = Complete(answer="It was not paid.")
    assert await drive(turn(steps=steps, past=past), then, instructions="", tools=[pay]) == answer
    assert [each.name for each in told(then)] == ["pay"]


async def test_what_came_of_a_move_is_told_though_the_code_no_longer_comes_to_it() -> None:
    steps = MemorySteps()
    look = TalkingModel(calls(("find", {})), GIVE)

    await drive(turn(peers=["b"], steps=steps), look, instructions="", tools=[find])

    @tool(name="find", description="Find it.")
    async def other(where: str = "here") -> str:
        return where

    changed = turn(peers=["b"], steps=steps, refused=[(TO_B, "depth")])
    other_schema = TalkingModel(says("by myself"))
    assert await drive(changed, other_schema, instructions="", tools=[other]) == Complete(answer="by myself")
    assert "rule depth refused transfer to b" in other_schema.prompts[0].brief


async def test_a_dialogue_has_its_calls_from_move_to_move() -> None:
    steps, ask = MemorySteps(), Ask(to_agent="client", question="Which?")  # type: ignore[arg-type]

    asking = calls(("ask", {"question": "Which?"}))
    first = TalkingModel(calls(("find", {}), ("find", {})), asking)
    assert await drive(turn(steps=steps), first, instructions="", tools=[find], max_calls=2) == ask
    then = TalkingModel(calls(("find", {}), ("find", {})), says("The red one."))
    later = turn(steps=steps, past=[replied(ask, "red")])
    answer = Complete(answer="The red one.")
    assert await drive(later, then, instructions="", tools=[find], max_calls=2) == answer


def world(effect: Effect, broken: Exception) -> tuple[list[int], Tool]:
    done: list[int] = []

    @tool(effect=effect)
    async def charge(cents: int) -> str:
        """Charge."""
        done.append(cents)
        raise broken

    return done, charge


@pytest.mark.parametrize(
    ("effect", "broken", "raised"),
    [
        pytest.param("once", ConnectionError("reset"), InDoubt, id="nobody-knows-how-far-it-came"),
        pytest.param("idempotent", TimeoutError(), EffectUnknown, id="the-next-round-tries-it-under-its-key"),
    ],
)
async def test_an_effect_that_breaks_is_not_tried_again_by_the_model(
    effect: Effect, broken: Exception, raised: type[Exception]
) -> None:
    done, charge = world(effect, broken)
    model = TalkingModel(calls(("charge", {"cents": 5})), says("It did not work."))
    with pytest.raises(raised, match="charge"):
        await drive(turn(steps=MemorySteps()), model, instructions="", tools=[charge])
    assert (done, len(model.prompts)) == ([5], 1)


async def test_code_that_catches_what_an_effect_raised_comes_to_no_move() -> None:
    done, charge = world("once", ConnectionError("reset"))
    given = turn(steps=MemorySteps())
    with pytest.raises(InDoubt):
        await given.call(charge, cents=5)
    with pytest.raises(InDoubt):
        await given.execution.journal.finish()
    assert done == [5]


async def test_an_effect_behind_a_move_waits_until_the_model_knows_what_came_of_it() -> None:
    steps = MemorySteps()
    both = calls(("transfer_to_b", {"summary": "Do it."}), ("send", {"text": "b has it"}))
    await drive(turn(peers=["b"], steps=steps), TalkingModel(both), instructions="", tools=[send])
    then = TalkingModel(says("by myself"))
    later = turn(peers=["b"], steps=steps, refused=[(TO_B, "depth")])
    await drive(later, then, instructions="", tools=[send])
    assert mails == []
    assert told(then)[-1].text.startswith("Not done: it was said together with a move")


async def test_an_effect_that_was_said_together_with_a_call_that_failed_waits() -> None:
    flaky = Flaky(ToolError("There is no such order."))
    model = TalkingModel(calls(("find", {}), ("send", {"text": "it is on its way"})), says("There is none."))
    await drive(turn(steps=MemorySteps()), model, instructions="", tools=[flaky.tool, send])
    assert mails == []
    assert told(model)[-1].text.startswith("Not taken: an earlier call of this reply failed")


async def test_a_result_that_is_too_large_is_told_so() -> None:
    @tool
    async def dump() -> str:
        """Everything."""
        return "x" * (600 * 1024)

    model = TalkingModel(calls(("dump", {})), says("ok"))
    await drive(turn(steps=MemorySteps()), model, instructions="", tools=[dump])
    assert told(model)[-1].text.startswith("dump returned 614402 bytes; at most ")


async def test_a_tool_that_may_no_longer_be_called_is_told_so() -> None:
    steps = MemorySteps()
    ask = Ask(to_agent="client", question="Which?")  # type: ignore[arg-type]
    await drive(
        turn(steps=steps), TalkingModel(calls(("ask", {"question": "Which?"}))), instructions="", tools=[find]
    )
    later = turn(steps=steps, past=[replied(ask, "red")])
    own = AgentEntry(name=later.agent, actions=())
    fleet = replace(later.execution.fleet, agents={later.agent: own})  # as the fleet file now says
    later = turn_of(later.request, later.execution.work, fleet, steps)
    model = TalkingModel(calls(("find", {})), says("I may not."))
    assert await drive(later, model, instructions="", tools=[find]) == Complete(answer="I may not.")
    assert told(model)[-1].text == "find is not among the allowed actions"
    assert later.execution.report.actions == ()


async def test_arguments_that_nobody_can_read_are_the_calls_result() -> None:
    reply = calls(("transfer_to_b", {}))
    lost = Reply(
        calls=tuple(type(call)(call.id, call.name, {}, "its arguments are no JSON") for call in reply.calls)
    )
    model = TalkingModel(lost, says("ok"))
    await drive(turn(peers=["b"]), model, instructions="", tools=())
    assert (told(model)[-1].text, told(model)[-1].is_error) == ("its arguments are no JSON", True)


async def test_a_reply_goes_to_the_conversation_that_asked_for_it() -> None:
    steps, ask = MemorySteps(), Ask(to_agent="client", question="Good?")  # type: ignore[arg-type]

    async def work(given: Turn, drafts: TalkingModel, reviews: TalkingModel) -> Move:
        draft = is_(await drive(given, drafts, instructions="Draft.", tools=()), Complete)
        return await drive(given, reviews, instructions=f"Review: {draft.answer}", tools=())

    asking = calls(("ask", {"question": "Good?"}))
    assert await work(turn(steps=steps), TalkingModel(says("a draft")), TalkingModel(asking)) == ask
    drafts, reviews = TalkingModel(), TalkingModel(says("It is good."))
    later = turn(steps=steps, past=[replied(ask, "yes")])
    assert await work(later, drafts, reviews) == Complete(answer="It is good.")
    assert told(reviews)[-1].text == '"yes"'


async def test_one_conversation_that_begins_anew_leaves_the_other_where_it_was() -> None:
    steps, ask = MemorySteps(), Ask(to_agent="client", question="Good?")  # type: ignore[arg-type]
    asking = calls(("ask", {"question": "Good?"}))

    async def work(given: Turn, how: str, first: TalkingModel, second: TalkingModel) -> Move:
        await drive(given, first, instructions=how, tools=())
        return await drive(given, second, instructions="Second.", tools=())

    await work(turn(steps=steps), "Old.", TalkingModel(says("one")), TalkingModel(asking))
    second = TalkingModel(says("done"))
    later = turn(steps=steps, past=[replied(ask, "yes")])
    await work(later, "New.", TalkingModel(says("one anew")), second)
    assert [each.text for each in told(second)] == ['"yes"']


PRICES = {"dice": Price(input=MTOK, output=5 * MTOK)}
SEEDS = range(40)


class Crash(BaseException):
    """As by `kill -9`: nothing can catch it and go on."""


class Mortal(MemorySteps):
    """Steps whose process dies at one of them: just before it is stored, or just after."""

    def __init__(self) -> None:
        super().__init__()
        self.puts = 0
        self.dies_at: int | None = None

    async def put(self, request: str, turn: str, name: str, body: bytes) -> None:
        at, self.puts = self.puts, self.puts + 1
        if self.dies_at == 2 * at:
            raise Crash
        await super().put(request, turn, name, body)
        if self.dies_at == 2 * at + 1:
            raise Crash


class Dice(Model):
    """A model that says anything, the same to the same prompt."""

    mode = "dice"

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.asked: Counter[str] = Counter()

    async def reply(self, prompt: Prompt, hear: Hear | None = None) -> Reply:
        digest = digest_of(prompt)
        self.asked[digest] += 1
        dice = random.Random(f"{self._seed} {digest}")
        tokens = Tokens(input=dice.randrange(100), output=1 + dice.randrange(100))
        calls = tuple(self._call(dice, f"{digest[:6]}_{n}") for n in range(dice.choice((0, 1, 1, 2, 3))))
        return Reply(
            text=dice.choice(("", "Well.", "So.")) if calls else dice.choice(("", "The answer.")),
            calls=calls,
            usage=Usage(tokens=tokens.total, model_calls=1),
            tokens=tokens,
            stop=dice.choice(("end_turn",) * 8 + ("max_tokens", "pause_turn")),
            model=self.mode,
        )

    def _call(self, dice: random.Random, id_: str) -> ToolCall:
        name = dice.choice(("look",) * 3 + ("pay",) * 3 + ("flaky", "refuse", "nobody", "transfer_to_b"))
        fits: dict[str, dict[str, object]] = {
            "look": {"n": dice.randrange(3)},
            "pay": {"cents": dice.randrange(3)},
            "transfer_to_b": {"summary": dice.choice(("Do it.", " "))},
        }
        return ToolCall(id_, name, fits.get(name, {}) if dice.random() < 0.9 else {"wrong": 1})


paid: Counter[str] = Counter()
"""By idempotency key: how often the money moved, over all deliveries of a run."""


@tool
async def look(n: int) -> int:
    """Look."""
    return n


@tool
async def flaky() -> None:
    """Break."""
    raise ConnectionError("down")


@tool
async def refuse() -> None:
    """Say no."""
    raise ToolError("Not on a Sunday.")


@tool(effect="idempotent")
async def pay(cents: int, idempotency_key: str) -> str:
    """Pay."""
    if idempotency_key not in paid:  # as a bank does that knows the key
        paid[idempotency_key] += 1
    return f"paid {cents}"


async def run(seed: int, dies_at: int | None) -> tuple[Move, Report, Counter[str], Dice, int]:
    """Run one turn to its end, through a crash; `dies_at` counts twice for each step that is stored."""
    dice, steps, first = Dice(seed), Mortal(), True
    paid.clear()
    while True:
        steps.dies_at, steps.puts = (dies_at if first else None), 0
        given = turn(peers=["b"], steps=steps, prices=PRICES)
        try:
            tools = (look, flaky, refuse, pay)
            move = await drive(given, dice, instructions="Roll.", tools=tools, max_calls=6)
            await given.execution.journal.finish()
        except Crash:
            assert first
            first = False
            continue
        return move, given.execution.report, paid.copy(), dice, steps.puts


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_crash_at_any_step_changes_nothing(seed: int) -> None:
    move, report, moved, dice, puts = await run(seed, None)
    for dies_at in range(2 * puts):
        again = await run(seed, dies_at)
        assert again[:2] == (move, report), dies_at
        assert again[2] == moved, dies_at
        assert set(again[3].asked) == set(dice.asked), dies_at
        assert again[3].asked.total() <= dice.asked.total() + 1, "only what was in the air is asked again"


async def test_the_dice_roll_everything() -> None:
    """What was killed was worth it: every kind of end and of step comes up, and turns of several replies."""
    ends: Counter[str] = Counter()
    deeds: Counter[str] = Counter()
    for seed in SEEDS:
        move, report, moved, dice, puts = await run(seed, None)
        ends[type(move).__name__] += 1
        deeds.update(report.actions)
        deeds["paid"] += moved.total()
        deeds["long"] += dice.asked.total() > 2 and puts > 4
    assert min(ends[kind] for kind in ("Complete", "Transfer", "Escalate")) > 2, ends
    assert min(deeds[what] for what in ("look", "flaky", "refuse", "pay", "paid", "long")) > 5, deeds
