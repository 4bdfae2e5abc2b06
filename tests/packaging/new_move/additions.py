"""The move `go_home`, which gives the work back to the first holder: each addition and where it goes."""

from typing import NamedTuple


class Addition(NamedTuple):
    """Text that an author adds to a file, before or after what stands there."""

    file: str
    at: str
    text: str
    after: bool = False


MOVES, EVENTS, RULES = "protocol/wire/moves.py", "protocol/wire/events.py", "protocol/domain/rules.py"
VERDICT, LEDGER, ENTRIES = (
    "protocol/domain/verdict.py",
    "protocol/domain/ledger.py",
    "protocol/views/entries.py",
)
AGENT, MODEL = "mesh/agent/_moves.py", "mesh/model/moves.py"
_IMPORT = "from protocol.wire.moves import GoHome\n"

ADDITIONS = (
    Addition(
        MOVES,
        "class UnknownMove(",
        '''class GoHome(MoveForm, tag="go_home", frozen=True, kw_only=True):
    """Give the work back to its first holder."""

    holders: ClassVar[Mapping[str, Holder]] = {"handoff": "any"}

    summary: str
    facts: tuple[Fact, ...] = ()
    drop: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        return self.summary

    def summarize(self) -> Self:
        return type(self)(summary=cut(self.summary))


''',
    ),
    Addition(MOVES, " | UnknownMove\n", " | GoHome"),
    Addition(
        EVENTS,
        "AnyEvent = (",
        '''class WorkSentHome(RoundEvent, frozen=True, kw_only=True, tag="work.sent_home"):
    """The work went back to its first holder."""

    work: Assignment
    report: Report = Report()
    grounds: Grounds
    added: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


''',
    ),
    Addition(EVENTS, "    | FactsPosted\n", "    | WorkSentHome\n", after=True),
    Addition(EVENTS, "Verdict = (\n    RequestOpened\n", "    | WorkSentHome\n", after=True),
    Addition(RULES, "from protocol.wire.moves import", _IMPORT),
    Addition(
        RULES,
        "    HandBack: _OF_HANDOFFS,\n",
        "    GoHome: (Rule.KNOWN_MOVE, Rule.LABELS, Rule.MUST_CARRY, *_OF_WORK),\n",
    ),
    Addition(VERDICT, "from protocol.wire.moves import", _IMPORT),
    Addition(
        VERDICT,
        "    if type(move) is HandBack:\n",
        "    if type(move) is GoHome:\n        return segment.path[0].agent\n",
    ),
    Addition(
        VERDICT,
        "            case Escalate() as move:\n",
        """            case GoHome() as move:
                first = segment.path[0]
                return self._handoff_of(
                    carried, to=first.agent, summary=move.summary, constraints=first.constraints
                )
""",
    ),
    Addition(
        VERDICT,
        "    def _refused(self",
        """    def _sent_home(self, move: GoHome) -> AnyEvent:
        assert self.handoff is not None
        opened = self.draft.opening(
            events.WorkSentHome, self.handoff, self.carried, path=self.segment.names[:1]
        )
        if isinstance(opened, events.FactsWithheld):
            return opened
        return events.WorkSentHome(
            **opened.envelope,
            work=opened.work,
            turn=self.turn.id,
            round=self.turn.round,
            report=self.report,
            grounds=self.world.grounds,
            added=added(self.before.facts, self.carried.facts),
            dropped=dropped(self.before, self.carried),
        )

""",
    ),
    Addition(VERDICT, "    HandBack: _Verdict._admitted,\n", "    GoHome: _Verdict._sent_home,\n"),
    Addition(VERDICT, "_HANDS_OVER = frozenset({", "GoHome, ", after=True),
    Addition(
        VERDICT,
        "        case events.MoveRefused(move=refused):\n",
        """        case events.WorkSentHome(work=work):
            facts = ledger.added_by(event)
            move = GoHome(summary=work.handoff.summary, facts=facts, drop=event.dropped)
""",
    ),
    Addition(
        LEDGER,
        "    def _on_move_refused(",
        """    def _on_sent_home(self, event: events.WorkSentHome) -> None:
        giver, hidden = self.turns[event.turn], self.take_over(event)
        self.close(giver.id, event)
        self.settle(giver, event.report)
        self.begin(event, giver.segment.pop_to(0), hidden)

""",
    ),
    Addition(LEDGER, "    events.MoveRefused: Ledger", "    events.WorkSentHome: Ledger._on_sent_home,\n"),
    Addition(
        ENTRIES,
        "        case events.MoveRefused(move=move):\n",
        """        case events.WorkSentHome(work=work):
            return _given(work.handoff.move, work.handoff.from_agent, work.handoff)
""",
    ),
    Addition(AGENT, "from protocol.wire.moves import", _IMPORT),
    Addition(
        AGENT,
        "    # --- topologies `supervised`",
        '''    def go_home(self, reason: str, *, facts: Facts = None, drop: Sequence[str] = ()) -> Move:
        """Give the work back to its first holder."""
        return GoHome(summary=line(reason), facts=facts_of(facts), drop=tuple(drop))

''',
    ),
    Addition(
        MODEL,
        "class _Offer(NamedTuple):",
        '''class GoHomeArguments(HandBackArguments):
    """What a model says to send the work home."""


''',
    ),
    Addition(
        MODEL,
        "            case HandBackArguments():\n",
        """            case GoHomeArguments():
                return turn.go_home(args.reason, facts=self._facts(args.facts, args.drop), drop=args.drop)
""",
    ),
    Addition(
        MODEL,
        "        yield _offer(HAND_BACK,",
        '        yield _offer("go_home", "Give the work back to its first holder.", GoHomeArguments)\n',
    ),
)
