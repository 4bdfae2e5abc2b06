"""A turn that a model drives, killed at every step and delivered again: the same end, and nothing twice.

The model says what chance gives it, always the same to the same prompt: calls that read, break, change the
world, come in several or make no sense, moves, silence. Whatever it says, a crash changes nothing of it.
"""

import random
from collections import Counter

import pytest

from mesh.agent._step_store import digest_of
from mesh.agent.errors import ToolError
from mesh.agent.tools import tool
from mesh.model.loop import drive
from mesh.model.port import Hear, Prompt, Reply, ToolCall
from mesh.testing import MemorySteps, turn
from protocol.wire.commands import Move, Report, Usage
from protocol.wire.prices import MTOK, Price, Tokens

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


class Dice:
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


class World:
    """What the tools did, over all deliveries."""

    def __init__(self) -> None:
        self.paid: Counter[str] = Counter()
        """By idempotency key: how often the money moved."""

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
            if idempotency_key not in self.paid:  # as a bank does that knows the key
                self.paid[idempotency_key] += 1
            return f"paid {cents}"

        self.tools = (look, flaky, refuse, pay)


async def run(seed: int, dies_at: int | None) -> tuple[Move, Report, World, Dice, int]:
    """Run one turn to its end, through a crash; `dies_at` counts twice for each step that is stored."""
    world, dice, steps, first = World(), Dice(seed), Mortal(), True
    while True:
        steps.dies_at, steps.puts = (dies_at if first else None), 0
        given = turn(peers=["b"], steps=steps, prices=PRICES)
        try:
            move = await drive(given, dice, instructions="Roll.", tools=world.tools, max_calls=6)
            await given.execution.journal.finish()
        except Crash:
            assert first
            first = False
            continue
        return move, given.execution.report, world, dice, steps.puts


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_crash_at_any_step_changes_nothing(seed: int) -> None:
    move, report, world, dice, puts = await run(seed, None)
    for dies_at in range(2 * puts):
        again = await run(seed, dies_at)
        assert again[:2] == (move, report), dies_at
        assert again[2].paid == world.paid, dies_at
        assert set(again[3].asked) == set(dice.asked), dies_at
        assert again[3].asked.total() <= dice.asked.total() + 1, "only what was in the air is asked again"


async def test_the_dice_roll_everything() -> None:
    """What was killed was worth it: every kind of end and of step comes up, and turns of several replies."""
    ends: Counter[str] = Counter()
    deeds: Counter[str] = Counter()
    for seed in SEEDS:
        move, report, world, dice, puts = await run(seed, None)
        ends[type(move).__name__] += 1
        deeds.update(report.actions)
        deeds["paid"] += world.paid.total()
        deeds["long"] += dice.asked.total() > 2 and puts > 4
    assert min(ends[kind] for kind in ("Complete", "Transfer", "Escalate")) > 2, ends
    assert min(deeds[what] for what in ("look", "flaky", "refuse", "pay", "paid", "long")) > 5, deeds
