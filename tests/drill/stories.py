"""Stories: what the drill's requests ask for. Each kind goes through something that may break.

Drawn from a seeded generator, so that the same seed asks for the same; what is in the way of it, and
when, differs with the machine.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from protocol.wire.handoff import Budget, Constraints, Fact
from tests.drill.temptations import KEPT, TOKENS_GRANTED, TOKENS_SPENT, UNSEEN

Op = list[Any]
"""One operation of a script: its name and what it needs; `tests.drill.agents` does it."""
Order = Literal["", "cancel", "freeze", "freeze-offer", "thaw-offer", "again-offer", "away-offer", "away-ask"]
"""What its client or an operator does.

`cancel` and `freeze` come as soon as the request is open. `freeze-offer` freezes it between an offer and its
claim; `thaw-offer` does so, too, for longer than the time to claim, and the claim comes after the thaw. With
`again-offer` the claim comes when the offer has come to its agent alone. With `away-offer` and `away-ask` no
guard runs from before the claim or the reply is stored until its time is over.
"""

COMPLETED = ("completed",)
EITHER = ("completed", "failed")


@dataclass(frozen=True)
class Story:
    """One request to be."""

    name: str
    text: str
    script: tuple[Op, ...] = ()
    expected: tuple[str, ...] = COMPLETED
    """Statuses in which it may end; empty: any."""
    facts: tuple[Fact, ...] = ()
    to: str | None = None
    constraints: Constraints = field(default_factory=Constraints)
    policy: str = "default"
    conversation: str | None = None
    order: Order = ""
    twice: bool = False
    """Whether it is sent once more, with the same id and bytes."""
    then: tuple["Story", ...] = ()
    """What is sent after it, each as soon as the one before it rests."""

    @property
    def all_facts(self) -> tuple[Fact, ...]:
        script = (Fact(key="script", value=list(self.script)),) if self.script else ()
        return (*script, *self.facts)


SECRET = Fact(key=UNSEEN, value="123-45-6789", labels=("pii",))
_SLOW = (0.0, 0.0, 0.02, 0.1, 0.4)
_EFFECTS = ("pay", "ship", "post")


class _Draw:
    """What one story draws."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._calls = 0

    def call(self, tool: str) -> Op:
        self._calls += 1
        return [tool, f"c{self._calls}", self._rng.choice(_SLOW)]

    def name(self) -> str:
        """Return a name that no other story draws."""
        return f"talk {self._rng.getrandbits(64):x}"

    def effect(self) -> Op:
        return self.call(self._rng.choice(_EFFECTS))

    def some(self) -> Iterator[Op]:
        """Yield a few calls that may be made anywhere."""
        for tool in self._rng.choices(("look", "model", "deny", *_EFFECTS), k=self._rng.randint(1, 3)):
            yield self.call(tool)


# --- temptations ------------------------------------------------------------------------------------


def _tempt(name: str) -> Op:
    return ["tempt", name]


def _tempted_to_strangers(draw: _Draw) -> dict[str, Any]:
    first = map(_tempt, ("teleport", "stranger", "person", "shut"))
    then = map(_tempt, ("not-a-peer", "other-intent", "ask-stranger"))
    return {"script": (*first, ["to", "back"], *then, draw.effect(), ["to", "vault"], draw.effect())}


def _tempted_beyond_its_terms(draw: _Draw) -> dict[str, Any]:
    first = (
        ["spend", TOKENS_SPENT],
        *map(_tempt, ("more-tokens", "more-time", "more-actions", "other-form")),
    )
    less = {"budget": {"tokens": TOKENS_GRANTED - TOKENS_SPENT - 1}}
    then = map(_tempt, ("drop-kept", "change-kept", "keep-nothing"))
    last = (["to", "vault"], draw.effect())
    return {
        "script": (*first, draw.effect(), ["to", "back", {"constraints": less}], *then, *last),
        "facts": (Fact(key=KEPT, value="as it was"),),
        "constraints": Constraints(
            budget=Budget(tokens=TOKENS_GRANTED), allowed_actions=_EFFECTS, must_carry=(KEPT,)
        ),
    }


def _tempted_unseen(draw: _Draw) -> dict[str, Any]:
    then = map(_tempt, ("bring-unseen", "drop-unseen", "remember-unseen"))
    last = (["blind", UNSEEN], draw.effect(), ["to", "vault"], ["sees", UNSEEN], draw.effect())
    return {"script": (["to", "back"], *then, *last), "facts": (SECRET,)}


def _beyond_all_terms(draw: _Draw) -> dict[str, Any]:
    asked = Constraints(must_carry=("what-nobody-has",))
    return {"script": (draw.effect(),), "constraints": asked, "expected": ("refused",)}


# --- conversations ------------------------------------------------------------------------------------


def _remembered(draw: _Draw) -> dict[str, Any]:
    """The next request of the conversation begins with what this one left, and no other conversation does."""
    own, other = draw.name(), draw.name()
    recalls = Story("recalls", "drill: recalls", (["sees", "seen"], draw.effect()), conversation=own)
    stranger = Story("is-a-stranger", "drill: is-a-stranger", (["blind", "seen"],), conversation=other)
    return {
        "script": (draw.effect(), ["to", "back"], draw.call("model"), ["remember", "seen"]),
        "conversation": own,
        "then": (recalls, stranger),
    }


# --- trees --------------------------------------------------------------------------------------------


def _task(name: str, to: str, *script: Op, **rest: Any) -> dict[str, Any]:
    return {"name": name, "to": to, "script": list(script), **rest}


def _delegates(draw: _Draw) -> dict[str, Any]:
    left = _task("left", "back", *draw.some(), draw.effect())
    right = _task("right", "vault", draw.call("model"), draw.effect())
    third = {**_task("third", "", draw.effect()), "intent": "store", "to": None}
    plan = ["delegate", [left, right, third]]
    return {"script": (draw.call("model"), plan, draw.effect()), "policy": "tree"}


def _delegates_in_turn(draw: _Draw) -> dict[str, Any]:
    first = [
        "delegate",
        [_task("one", "back", draw.effect()), _task("two", "vault", *draw.some())],
        {"join": "any"},
    ]
    then = ["delegate", [_task("three", "back", draw.effect(), uses=["one"])]]
    return {"script": (first, ["gather"], draw.effect(), then), "policy": "tree"}


def _nested(draw: _Draw) -> dict[str, Any]:
    deep = [_task("deep", "vault", draw.call("model"), draw.effect())]
    left = _task("left", "back", draw.effect(), ["delegate", deep], draw.effect())
    right = _task("right", "vault", draw.effect(), ["retry"], draw.effect())
    return {"script": (["delegate", [left, right]], draw.effect()), "policy": "tree"}


def _tasks_fail(draw: _Draw) -> dict[str, Any]:
    gives_up = _task("gives-up", "back", draw.effect(), ["fail"])
    breaks = _task("breaks", "vault", ["break-for-good"])
    return {"script": (["delegate", [gives_up, breaks]], ["all-failed"], draw.effect()), "policy": "tree"}


def _calls_off(draw: _Draw) -> dict[str, Any]:
    slow = _task("slow", "vault", draw.effect(), ["slow", 6.0], draw.call("model"))
    quick = _task("quick", "back", draw.effect())
    plan = ["delegate", [slow, quick], {"join": "any"}]
    return {"script": (plan, ["call-off", "slow"], draw.effect()), "policy": "tree"}


def _answers_early(draw: _Draw) -> dict[str, Any]:
    """Two levels are still at work when the root answers."""
    deep = [_task("deep", "vault", ["slow", 6.0], draw.call("model"))]
    slow = _task("slow", "back", draw.effect(), ["delegate", deep], draw.call("model"))
    plan = ["delegate", [slow, _task("quick", "vault", draw.effect())], {"join": "any"}]
    return {"script": (plan, draw.effect()), "policy": "tree"}


def _delivers_early(draw: _Draw) -> dict[str, Any]:
    """A task delivers while one of its own is still at work."""
    own = [_task("slow", "vault", ["slow", 6.0], draw.call("model")), _task("quick", "vault", draw.effect())]
    left = _task("left", "back", ["delegate", own, {"join": "any"}], draw.effect())
    return {"script": (["delegate", [left]], draw.effect()), "policy": "tree"}


def _whole_tree(draw: _Draw) -> dict[str, Any]:
    deep = [_task("deep", "vault", ["slow", 6.0], draw.call("model"))]
    plan = [_task("left", "back", ["delegate", deep]), _task("right", "vault", draw.effect(), ["slow", 6.0])]
    return {"script": (["delegate", plan], draw.effect()), "policy": "tree"}


def _within_budget(draw: _Draw) -> dict[str, Any]:
    """Each task wants more model calls than its part of what the root was given."""
    plan = [
        _task("left", "back", *(draw.call("model") for _ in range(4))),
        _task("right", "vault", *(draw.call("model") for _ in range(4))),
    ]
    return {
        "script": (["delegate", plan], draw.call("model")),
        "policy": "tree",
        "constraints": Constraints(budget=Budget(model_calls=CALLS_GRANTED)),
    }


BRIEFLY_S = 3.0
"""How long a question or an approval waits where its answer comes in time and no guard runs."""
CALLS_GRANTED = 6
"""Model calls of a tree whose agents would make nine."""


def _offers(draw: _Draw, *, slow_s: float = 0.0) -> Op:
    """Return a plan of two reads, of which no agent may have both."""
    said = (["slow", slow_s],) if slow_s else ()
    offers = [
        {**_task(name, "", draw.call("look"), ["board", name], *said, draw.call("model")), "intent": "read"}
        for name in ("one", "two")
    ]
    return ["delegate", [{**offer, "to": None} for offer in offers]]


def _rare_offers(order: Order, *names: str, expected: tuple[str, ...] = COMPLETED) -> dict[str, Any]:
    """Return a story whose reads all go to the agent that the drill plays."""
    offers = [{**_task(name, "", ["board", name]), "intent": "rare", "to": None} for name in names]
    return {
        "script": (["delegate", offers], ["none-failed"]),
        "policy": "brief-swarm",
        "order": order,
        "expected": expected,
    }


def _tempted_in_a_tree(draw: _Draw) -> dict[str, Any]:
    one = _task("one", "back", _tempt("too-low"), _tempt("complete-a-task"), draw.effect())
    reads = _task("reads", "vault", _tempt("write"), draw.call("look"), read_only=True)
    terms = map(_tempt, ("task-stranger", "task-itself", "more-than-granted", "deliver-the-whole"))
    first = (*map(_tempt, ("same-name", "too-many", "nobody-can")), *terms)
    open_ = [
        "delegate",
        [_task("slow", "vault", ["slow", 8.0]), _task("quick", "back", draw.effect())],
        {"join": "any"},
    ]
    last = (["gather"], draw.effect())
    return {
        "script": (*first, ["delegate", [one, reads]], _tempt("revise"), open_, _tempt("leave-open"), *last),
        "constraints": Constraints(budget=Budget(tokens=TOKENS_GRANTED)),
        "policy": "low-tree",
    }


STORIES: dict[str, Callable[[_Draw], dict[str, Any]]] = {
    "plain": lambda draw: {"script": (*draw.some(),)},
    "every-tool": lambda draw: {
        "script": tuple(draw.call(tool) for tool in ("look", "model", "pay", "ship", "post", "deny"))
    },
    "chain": lambda draw: {
        "script": (*draw.some(), ["to", "back"], *draw.some(), ["to", "vault"], draw.effect())
    },
    "there-and-back": lambda draw: {
        "script": (["to", "back"], draw.effect(), ["back"], *draw.some(), ["to", "vault"], draw.effect())
    },
    "refused": lambda draw: {
        "script": (*draw.some(), _tempt("itself"), draw.effect(), ["to", "vault"], draw.call("model"))
    },
    "retried": lambda draw: {
        "script": (draw.call("model"), draw.effect(), ["retry"], *draw.some(), ["retry"], draw.effect())
    },
    "broken": lambda draw: {"script": (draw.effect(), ["broken"], *draw.some())},
    "asks-client": lambda draw: {
        "script": (draw.call("model"), ["ask", "client"], draw.effect(), ["ask", "client"], draw.effect())
    },
    "asks-human": lambda draw: {"script": (*draw.some(), ["ask", "human"], draw.effect())},
    "approved": lambda draw: {"script": (draw.call("model"), draw.call("sign"), draw.effect())},
    "escalates": lambda draw: {
        "script": (draw.effect(), ["escalate", "on"], *draw.some(), ["to", "back"], draw.effect())
    },
    "escalates-for-good": lambda draw: {"script": (draw.effect(), ["escalate", "answer"])},
    "withheld": lambda draw: {
        "script": (
            ["sees", "ssn"],
            ["to", "back"],
            ["blind", "ssn"],
            draw.effect(),
            ["to", "vault"],
            ["sees", "ssn"],
            *draw.some(),
        ),
        "facts": (SECRET,),
    },
    "withheld-from-the-first": lambda draw: {
        "script": (["blind", "ssn"], ["to", "vault"], ["sees", "ssn"], draw.effect()),
        "facts": (SECRET,),
        "to": "back",
    },
    # The fleet file labels it: it is withheld, though nobody who brings it says a label.
    "labelled": lambda draw: {
        "script": (
            ["sees", "phone"],
            ["to", "back"],
            ["blind", "phone"],
            draw.effect(),
            ["to", "vault"],
            ["sees", "phone"],
        ),
        "facts": (Fact(key="phone", value="555-0100"),),
    },
    "gives-up": lambda draw: {"script": (*draw.some(), ["fail"]), "expected": ("failed",)},
    "cancelled": lambda draw: {
        "script": (draw.call("model"), ["slow", 1.0], draw.effect(), draw.effect()),
        "order": "cancel",
        "expected": ("cancelled", "completed"),
    },
    "frozen": lambda draw: {
        "script": (draw.effect(), ["slow", 0.5], ["to", "vault"], draw.effect()),
        "order": "freeze",
    },
    "expires": lambda draw: {
        "script": (draw.effect(), ["slow", 8.0], draw.effect()),
        "constraints": Constraints(max_resolution_time_s=1.5),
        "expected": ("expired",),
    },
    "remembered": _remembered,
    "tempted-to-strangers": _tempted_to_strangers,
    "tempted-in-circles": lambda draw: {
        "script": (
            *map(_tempt, ("itself", "back-from-first")),
            ["to", "back"],
            _tempt("on-path"),
            ["back"],
            _tempt("same-edge"),
            ["to", "back"],
            _tempt("back-same-edge"),
            ["to", "vault"],
            _tempt("back-to-other"),
            draw.effect(),
        )
    },
    "tempted-past-the-seal": lambda draw: {
        "script": (
            ["to", "back", {"no_return": True}],
            _tempt("past-seal"),
            draw.effect(),
            ["to", "vault", {"return_to": "front"}],
            _tempt("past-seal"),
            draw.effect(),
        )
    },
    "tempted-too-deep": lambda draw: {
        "script": (["to", "back"], draw.effect(), ["back"], _tempt("one-more-hop"), draw.effect()),
        "policy": "tight",
    },
    "tempted-back-too-deep": lambda draw: {
        "script": (["to", "back"], ["to", "vault"], draw.effect(), _tempt("one-hop-back"), draw.effect()),
        "policy": "tight",
    },
    "tempted-to-ask": lambda draw: {
        "script": (["ask", "client"], draw.effect(), _tempt("one-more-question"), draw.effect()),
        "policy": "tight",
    },
    "tempted-beyond-its-terms": _tempted_beyond_its_terms,
    "tempted-unseen": _tempted_unseen,
    "tempted-with-bulk": lambda draw: {
        "script": (
            _tempt("bulk"),
            _tempt("codeword"),
            ["to", "back"],
            draw.effect(),
            _tempt("remember-nothing"),
        ),
        "policy": "tight",
    },
    "tempted-to-lie": lambda draw: {
        "script": (draw.effect(), _tempt("lie")),
        "facts": (Fact(key="person", value="answer"),),
        "constraints": Constraints(allowed_actions=_EFFECTS),
        "policy": "strict",
    },
    "delegates": _delegates,
    "delegates-in-turn": _delegates_in_turn,
    "nested": _nested,
    "tasks-fail": _tasks_fail,
    "calls-off": _calls_off,
    "answers-early": _answers_early,
    "delivers-early": _delivers_early,
    "tree-cancelled": lambda draw: {
        **_whole_tree(draw),
        "order": "cancel",
        "expected": ("cancelled", "completed"),
    },
    "tree-frozen": lambda draw: {**_delegates(draw), "order": "freeze"},
    "tree-expires": lambda draw: {
        **_whole_tree(draw),
        "constraints": Constraints(max_resolution_time_s=2.0),
        "expected": ("expired",),
    },
    "tree-within-budget": _within_budget,
    # Slow, so that the drill's own agent claims a read while another has it in hand.
    "swarm-reads": lambda draw: {"script": (_offers(draw, slow_s=2.0), draw.effect()), "policy": "swarm"},
    "swarm-cancelled": lambda draw: {
        "script": (_offers(draw, slow_s=6.0), draw.effect()),
        "policy": "swarm",
        "order": "cancel",
        "expected": ("cancelled", "completed"),
    },
    "swarm-frozen": lambda draw: {
        "script": (_offers(draw), draw.effect()),
        "policy": "swarm",
        "order": "freeze",
    },
    # Freeze or claim may come too late here, when a fault holds it up; `claims_count` knows if it did.
    "swarm-frozen-before-claim": lambda draw: _rare_offers("freeze-offer", "one", "two", expected=EITHER),
    "swarm-thawed-before-claim": lambda draw: _rare_offers("thaw-offer", "one", expected=EITHER),
    "swarm-offered-again": lambda draw: _rare_offers("again-offer", "one", expected=EITHER),
    "swarm-claimed-without-guards": lambda draw: _rare_offers("away-offer", "one", expected=EITHER),
    "replied-without-guards": lambda draw: {
        "script": (["ask", "client", {"expires_s": BRIEFLY_S}], draw.effect()),
        "order": "away-ask",
    },
    "approved-without-guards": lambda draw: {
        "script": (draw.call("model"), draw.call("seal"), draw.effect()),
        "order": "away-ask",
    },
    "tempted-in-a-tree": _tempted_in_a_tree,
    "of-no-policy": lambda draw: {
        "script": (draw.effect(),),
        "policy": "never-written",
        "expected": ("refused",),
    },
    "to-nobody": lambda draw: {"script": (draw.effect(),), "to": "nobody", "expected": ("refused",)},
    "to-the-shut": lambda draw: {"script": (draw.effect(),), "to": "shut", "expected": ("refused",)},
    "beyond-all-terms": _beyond_all_terms,
}
"""How each kind of story is made."""


def story(name: str, rng: random.Random) -> Story:
    """Return a story of a kind."""
    return Story(name=name, text=f"drill: {name}", twice=rng.random() < 0.1, **STORIES[name](_Draw(rng)))


def stories(count: int, rng: random.Random) -> list[Story]:
    """Return `count` stories: every kind about equally often, in a drawn order."""
    names: list[str] = []
    while len(names) < count:
        names += rng.sample(tuple(STORIES), len(STORIES))
    return [story(name, rng) for name in names[:count]]
