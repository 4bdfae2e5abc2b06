"""What happened, in words: a sentence and a tone for each entry of a log, for terminal, page, `why` and logs.

Holders of the request, handed-over facts, every verdict with its rule. The facts come only from
`protocol.views.timeline`, so people and programs read the same. Text of a model, an agent, a client or a
person stays within its line. It cannot look like a line of ours.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from mesh.ops.repeats import Repeat, between, folded
from mesh.service.printable import Line, as_text, clock, counted, given, one_line, short
from protocol.views.spending import Cost
from protocol.views.timeline import StepEntry, Timeline, TimelineEntry, TurnEntry, timeline
from protocol.views.tree import ErrorLevel, TreeNode, flat
from protocol.wire import events
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import Fact
from protocol.wire.ids import HUMAN
from protocol.wire.records import Record

ASKED = "a question waits for its reply"
"""Why a request with an open question waits, in the words of `protocol.views.timeline`."""
OF_TASKS = ("task", "offer", "deliver", "task_failed", "task_cancelled")
"""Moves whose detail is the name of a task."""
WIDTH = 80
"""Columns that no line of a tree exceeds, so that it fits a terminal."""
_NAME_COLUMNS = 44
_STATUS_COLUMNS = 11
FOLLOWED_CHARS = 400
INDENT = "       "
"""The indent of lines below an entry."""
_VALUE_CHARS = 60
_SUMMARY_CHARS = 160
_STEP_CHARS = 128
_CODE_CHARS = 64
_STATUS_STYLE = {
    "open": "yellow",
    "completed": "green",
    "refused": "red",
    "failed": "red",
    "expired": "red",
    "cancelled": "magenta",
    "delivered": "green",
    "ended": "green",
    "doubted": "bold red",
}
"""By the status of a request, or of a task; any other is under way."""
_VERDICT_STYLE = {"admitted": "green", "refused": "bold red", "deferred": "yellow"}


def story(view: Timeline, *, steps: bool = False, now: int = 0, fold: bool = False) -> Iterator[Line]:
    """Yield a whole request, line by line.

    Args:
        steps: True to show each turn's journal below the entries of its rounds.
        fold: True to show repeated entries in one line, without what is below them.
        now: the present (UTC µs), for the duration of open tasks; not before the newest entry.
    """
    yield heading(view)
    newest = max(now, *(move.at for move in view.moves))
    for node in view.tree:
        yield from _tree_node(node, "", "", newest)
    last = {move.turn.id: move.seq for move in view.moves if move.turn is not None}
    before = -1
    for repeat in folded(view.moves) if fold else (Repeat((move,), 1) for move in view.moves):
        move = repeat.entries[-1]
        if repeat.times > 1:
            yield from _repeat(repeat, before, last)
            before = move.seq
            continue
        yield from entry(move, before)
        before = move.seq
        if move.turn is not None and steps:
            yield from (_step(made, move.turn) for made in move.turn.steps)
        if move.turn is not None and last[move.turn.id] == move.seq:
            spent = [_spent(move.turn.usage)] if _cost_anything(move.turn.usage) else []
            if parts := [*spent, *([ran] if (ran := code_of(move.turn.version, move.turn.build)) else [])]:
                yield _beneath(f"{move.turn.agent}'s turn", ", ".join(parts))
    for turn in view.running if steps else ():
        if turn.steps:
            yield Line((f"     {turn.agent} has done so far:", "dim"))
            yield from (_step(made, turn) for made in turn.steps)
    yield from ending(view)


def heading(view: Timeline) -> Line:
    line = Line((view.request, "bold"))
    line.append("  ")
    line.append(view.status, style=_STATUS_STYLE.get(view.status, ""))
    held = f"depth {view.depth}, held by {' → '.join(view.trail) or 'nobody'}"
    if view.tree:
        tasks = sum(node.level > 1 for node in flat(view.tree))
        held = f"led by {' → '.join(node.agent for node in view.tree)}, {counted(tasks, 'task')}"
    line.append(_line(f"  policy {view.policy}, {held}"))
    if view.conversation is not None:
        line.append(_line(f", in conversation {view.conversation}"))
    if view.rerun_of is not None:
        line.append(f", a rerun of {view.rerun_of}")
    if view.forked_from is not None:
        line.append(f", forked from {view.forked_from.request} after event {view.forked_from.n}")
    if view.forks:
        line.append(f", forked as {', '.join(view.forks)}")
    return line


def ending(view: Timeline) -> Iterator[Line]:
    """Yield what a request ended with, or what it waits for."""
    if view.status == "completed":
        first, *rest = (_line(each) for each in as_text(view.answer).split("\n"))
        yield Line(("answer: ", "green"), first)
        yield from (Line(f"        {each}".rstrip()) for each in rest)
    if view.error is not None:
        code, detail = view.error["code"], view.error["detail"]
        parts = (view.status, *([] if code == view.status else [code]), *([detail] if detail else []))
        yield Line((parts[0], "red"), *(f": {_line(part)}" for part in parts[1:]))
    yield from awaited(view)
    if _cost_anything(view.cost):
        yield Line((f"reported cost: {_spent(view.cost)}", "dim"))
    if view.charged != view.cost:
        yield Line((f"charged to the budget: {_spent(view.charged)}", "dim"))


def awaited(view: Timeline) -> Iterator[Line]:
    """Yield what a request waits for, one line each."""
    for waiting in view.waiting:
        line = Line(
            ("waits for ", "yellow"), f"{waiting.for_} since {clock(waiting.since)}: {_line(waiting.why)}"
        )
        if waiting.why == ASKED:
            key = "an operator's key" if waiting.for_ == HUMAN else f"{waiting.for_}'s own key"
            option = "" if waiting.for_ == HUMAN else f" --as {waiting.for_}"
            line.append(f"; it is given under {key}: mesh human reply {view.request} '…'{option}")
        if waiting.served is False:
            line.append(f"; nobody serves {waiting.for_}", style="bold red")
        yield line


def _cost_anything(cost: Cost) -> bool:
    return bool(cost.model_calls or cost.tokens or cost.nano_dollars)


def code_of(version: str, build: str) -> str:
    """Return which code ran, as its agent reported; empty for code without versions."""
    known = f"version {one_line(version)}" if version not in ("", "0") else ""
    return ", ".join(filter(None, (known, f"build {one_line(build)}" if build else "")))


def _spent(cost: Cost) -> str:
    calls, tokens = counted(cost.model_calls, "model call"), counted(cost.tokens, "token")
    return f"{calls}, {tokens}, {cost.nano_dollars / 1e9:.6f}{'?' if cost.unpriced else ''} dollars"


# --- one entry ------------------------------------------------------------------------------------

Tone = Literal["plain", "good", "bad", "asks", "replies", "people", "cold", "back"]
"""The meaning of an entry for a reader; terminal and page give it a colour."""
_TONES: dict[str, Tone] = {
    "turn_failed": "bad",
    "fail": "bad",
    "expire": "bad",
    "cancel": "bad",
    "hand_back": "back",
    "ask": "asks",
    "doubt": "asks",
    "reply": "replies",
    "approve": "replies",
    "deny": "bad",
    "settle": "replies",
    "escalate": "people",
    "fallback": "back",
    "resolve": "people",
    "assign": "people",
    "delegate": "asks",
    "deliver": "replies",
    "join": "replies",
    "task_failed": "bad",
    "task_cancelled": "bad",
    "complete": "good",
    "freeze": "cold",
    "proposal": "cold",
    "thaw": "cold",
}


def tone_of(move: str, *, refused: bool) -> Tone:
    """Return the meaning of an entry for a reader."""
    return "bad" if refused else _TONES.get(move, "plain")


class Detail(NamedTuple):
    """A line below an entry."""

    label: str
    """`task`, `why`, `instead`, `facts`, `dropped`, `withheld`, or where remembered facts come from."""
    text: str
    is_failure: bool = False


def details(move: TimelineEntry) -> Iterator[Detail]:
    """Yield the lines below an entry: why, what would be allowed, and what was handed over."""
    if move.detail:
        failed = move.verdict == "refused" or move.move in ("turn_failed", "task_failed")
        yield Detail("task" if move.move in OF_TASKS else "why", move.detail, failed)
    if move.hint:
        yield Detail("instead", move.hint)
    if move.facts:
        yield Detail("facts", ", ".join(_fact(fact) for fact in move.facts))
    if move.remembered:
        of = "from the conversation" if move.move == "submit" else "remembered from now on"
        yield Detail(of, ", ".join(move.remembered))
    if move.dropped:
        yield Detail("dropped", ", ".join(move.dropped))
    if move.withheld is not None:
        counts = ((move.withheld.facts, "fact"), (move.withheld.artifacts, "artifact"))
        hidden = " and ".join(counted(number, what) for number, what in counts if number)
        yield Detail("withheld", f"{hidden} labelled {', '.join(move.withheld.labels)}")


def numbered(first: int, last: int) -> str:
    """Return the numbers of the events that one entry covers: `4`, or `3-4`."""
    return str(last) if first == last else f"{first}-{last}"


def entry(move: TimelineEntry, before: int) -> Iterator[Line]:
    """Yield one entry: a line, and what was handed over below it.

    Args:
        before: the number of the entry before this one, -1 for the first. An event that withholds facts is
            shown with the next one, as `3-4`, so that no number is left out.
    """
    line = Line((f"{numbered(before + 1, move.seq):>3}  {clock(move.at)}  ", "dim"))
    line.append(_line(between(move)), style="bold")
    line.append(f"  {_line(move.move)}  ", style="cyan")
    line.append(move.verdict, style=_VERDICT_STYLE.get(move.verdict, "dim"))
    if move.rule is not None:
        line.append(f" by rule {move.rule}", style="bold red")
    if move.summary:
        line.append(f"  {short(move.summary, _SUMMARY_CHARS)}")
    yield line
    for each in details(move):
        yield _beneath(each.label, each.text)


def _repeat(repeat: Repeat, before: int, last: Mapping[str, int]) -> Iterator[Line]:
    """Yield entries that repeat: a line, and what their turns cost.

    Args:
        before: the number of the entry before them.
        last: by turn, the number of its last entry, at which its cost is told.
    """
    first, final = repeat.entries[0], repeat.entries[-1]
    line = Line((f"{numbered(before + 1, final.seq):>3}  {clock(first.at)}-{clock(final.at)}  ", "dim"))
    line.append(f"{_line(repeat.words)} ×{repeat.times}", style="bold")
    line.append(f"  {_line(repeat.moves)}", style="cyan")
    yield line
    turns = [move.turn for move in repeat.entries if move.turn and last[move.turn.id] == move.seq]
    spent = Cost(
        nano_dollars=sum(turn.usage.nano_dollars for turn in turns),
        tokens=sum(turn.usage.tokens for turn in turns),
        model_calls=sum(turn.usage.model_calls for turn in turns),
        unpriced=any(turn.usage.unpriced for turn in turns),
    )
    if _cost_anything(spent):
        yield _beneath("their turns", _spent(spent))


def _step(made: StepEntry, turn: TurnEntry) -> Line:
    """Return one step of a journal: its place, its time, how long after the one before, and its result."""
    place, after = f"{made.round}-{made.n}", f"+{made.after / 1e6:.3f} s"
    line = Line((f"       {place:<5} {clock(made.at)}  {after:>10}  ", "dim"))
    called = f"{'effect' if made.kind == 'intent' else made.kind} {made.name}"
    line.append(short(called, _STEP_CHARS), style="cyan")
    if called_with := given(made):
        line.append(f" {short(called_with, _VALUE_CHARS)}")
    if made.kind == "intent":
        doubted = turn.status == "doubted"  # otherwise it may be running
        line.append(*(("  in doubt", "bold red") if doubted else ("  begun", "yellow")))
    elif made.error is not None:
        line.append(f"  refused: {short(made.error, _CODE_CHARS)}", style="red")
    else:
        line.append("  ok", style="green")
    if made.usage is not None:
        line.append(f"  {_spent(made.usage)}", style="dim")
    return line


def _beneath(what: str, text: str) -> Line:
    return Line((f"{INDENT}{what}: ", "dim"), _line(text))


def _line(text: str) -> str:
    """Return all of a text as one line."""
    kept = text[: len(text) - len(text.lstrip(" "))]
    return kept + one_line(text)


def _fact(fact: Fact) -> str:
    labels = f" [{', '.join(fact.labels)}]" if fact.labels else ""
    return f"{_line(fact.key)}={short(as_text(fact.value), _VALUE_CHARS)}{labels}"


class Teller:
    """Shows a growing request: each call returns only the lines that are new."""

    def __init__(self) -> None:
        self._last_shown = -1

    def more(self, happened: Sequence[AnyEvent]) -> tuple[Timeline, list[Line]]:
        """Return the whole timeline, and the lines about its new entries."""
        shown = timeline(happened)
        fresh: list[Line] = []
        for move in shown.moves:
            if move.seq > self._last_shown:
                fresh += entry(move, self._last_shown)
                self._last_shown = move.seq
        return shown, fresh


# --- while it goes on -----------------------------------------------------------------------------


def step_in_lines(made: Record) -> list[str]:
    """Return the lines that a journaled step shows while it is followed; may be none."""
    if made.kind == "model":
        text = made.value.get("text", "") if isinstance(made.value, dict) else ""
        return [asks(made.name), *([short(str(text), FOLLOWED_CHARS)] if text else [])]
    if made.kind == "intent":
        return [f"[{short(made.name, FOLLOWED_CHARS)} …]"]
    if made.kind in ("call", "effect"):
        return [f"[{short(made.name, FOLLOWED_CHARS)}{' failed' if made.error is not None else ''}]"]
    return []


def asks(model: str) -> str:
    """Return what a call of a model shows while it is followed."""
    return f"[asks {short(model, FOLLOWED_CHARS)}]"


class Trouble:
    """Explains a request's events to a submitter who waits."""

    def __init__(self) -> None:
        self._failure = ""
        """The message of the newest failed turn."""
        self._holders: dict[str, str] = {}
        """By turn: if a turn ran out of time, the event does not name its holder."""

    def in_words(self, event: AnyEvent) -> str:
        """Return what the request's next event means; empty if nothing."""
        work = getattr(event, "work", None)
        if work is not None:
            self._holders[work.turn] = event.to
        match event:
            case events.TurnFailed(turn=turn, error=error, retry_at=retry_at):
                self._failure = error.message
                then = "it is not tried again" if retry_at is None else "it is tried again"
                holder = event.sender or self._holders.get(turn, "somebody")
                return f"{holder}'s turn broke: {error.message or error.code}; {then}"
            case events.EscalationRaised(reason=reason, work=work):
                why = work.handoff.summary if reason == "asked" else self._failure or reason
                return f"a person has it ({why}): mesh human show {event.request}"
            case events.TurnSuspended(ask=ask) if ask.to_agent == HUMAN:
                return f"a person was asked: {ask.question}"
            case events.EffectDoubted(effect=effect):
                why = f" ({effect.message})" if effect.message else ""
                return f"nobody knows if {effect.action} happened{why}: mesh doubt ls"
        return ""


# --- the tree of its tasks ---------------------------------------------------------------------------


def _tree_node(node: TreeNode, first: str, rest: str, now: int) -> Iterator[Line]:
    """Yield a node and all nodes below it.

    Args:
        first, rest: prefix of its first line, and of all others.
        now: the present (UTC µs), for the duration of open tasks.
    """
    who = " → ".join(node.agents) or node.agent or "nobody yet"
    name = f"{node.name} ({who})" if node.name else who
    line = Line(f"{first}{short(name, _NAME_COLUMNS - len(first))}".ljust(_NAME_COLUMNS), "  ")
    line.append(
        node.status[:_STATUS_COLUMNS].ljust(_STATUS_COLUMNS), _STATUS_STYLE.get(node.status, "yellow")
    )
    spent = f"{_tree_cost(node.cost):>10}  {_lasting((node.ended or now) - node.began):>8}"
    line.append(f"  {spent}", "dim")
    yield line
    stem = rest + ("│  " if node.tasks else "   ")
    for what, style in _below(node):
        yield Line((stem, ""), (short(what, WIDTH - len(stem)), style))
    for place, task in enumerate(node.tasks, 1):
        last = place == len(node.tasks)
        yield from _tree_node(task, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "), now)


def _below(node: TreeNode) -> Iterator[tuple[str, str]]:
    if node.revises:
        yield f"revises {node.revises}", "dim"
    if node.chosen:
        yield f"chosen: {node.chosen}", "dim"
    if node.join is not None:
        yield waits(node), "yellow"
    if node.result:
        yield f"result: {node.result}", ""
    for place, level in enumerate(node.errors):
        yield f"{'error' if not place else 'from'}: {channel(level)}", "red"
    if node.why:
        yield _WHY[node.why], "dim"


_WHY = {
    "called_off": "its lead called it off",
    "lead_ended": "its lead's turn is over",
    "request_ended": "the request is over",
}


def waits(node: TreeNode) -> str:
    """Return what a lead waits for."""
    names = [task.name for task in node.tasks if task.is_open]
    if node.join == "all" or node.join is None:
        return f"waits for all of: {', '.join(names)}"
    most = "the first success" if node.join == "any" else counted(int(node.join), "success", "successes")
    return f"waits for {most} of: {', '.join(names)}"


def channel(level: ErrorLevel) -> str:
    """Return how one level of tasks handled a failure."""
    attempts = f", {counted(level.attempts, 'attempt')}"
    failure = f"{level.code} ({' → '.join(level.lineage) or level.agent}{attempts})"
    return f"{failure}: {level.message}" if level.message else failure


def _tree_cost(cost: Cost) -> str:
    if cost.nano_dollars or cost.unpriced:
        return f"${cost.nano_dollars / 1e9:.4f}{'?' if cost.unpriced else ''}"
    return counted(cost.model_calls, "call") if cost.model_calls else ""


def _lasting(us: int) -> str:
    seconds = max(0, us) / 1e6
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h"
