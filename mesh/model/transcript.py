"""What was said in a conversation: its last exchanges, kept in the conversation's own memory.

An answer leaves them behind as facts, and the next request of the conversation begins with these. There is
one fact for each set of labels. An exchange has the labels of all that its agent was shown, since its words
may repeat any of it. So an agent sees the exchanges that it is cleared for, and can only add to what it sees.

Questions and replies of a turn that passes the work on travel in the same facts until the answer.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from mesh.agent.turn import Turn
from mesh.errors import ArtifactError
from mesh.model.context_window import estimated_tokens
from mesh.service.logs import get_logger
from protocol.wire.handoff import TEXT_FACT, Artifact, Fact, Rule
from protocol.wire.ids import AgentName, RequestId, derive, submitted_ms
from protocol.wire.moves import Complete, Escalate, HandBack, Move, Transfer

_log = get_logger(__name__)

TRANSCRIPT: Final = "transcript"
"""The fact that holds what was said; of exchanges with labels its key goes on with `:` and these."""
INLINE_BYTES: Final = 16 << 10
"""What a fact holds of it as JSON, at most. More lies in the store of artifacts."""
TOKENS: Final = 8_000
"""What a brief shows of it, at most, by the estimate of the context window."""
SAID_CHARS: Final = 4_000
"""What is kept of one thing that was said. The rest is cut, and the cut is named."""
_KEY_CHARS = 128
_BY_THE_CLIENT = "client"


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that was said."""

    by: str
    """`client`, or the agent's name."""
    text: str


class Exchange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was said in one request."""

    request: str
    at: int
    """When it was submitted, by its id (UTC ms)."""
    said: tuple[Said, ...]


class KeptTranscript(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The value of a fact that holds exchanges."""

    exchanges: tuple[Exchange, ...] = ()
    """The oldest first."""
    artifact: Artifact | None = None
    """Where they lie if they are too large for a fact."""
    left_out: int = 0
    """Earlier exchanges that are kept no more."""
    open: tuple[Said, ...] = ()
    """What earlier turns of the request under way asked and were told."""


_EXCHANGES = msgspec.json.Decoder(tuple[Exchange, ...])


def is_transcript(key: str) -> bool:
    return key == TRANSCRIPT or key.startswith(f"{TRANSCRIPT}:")


def exchanges_in(facts: Mapping[str, Any]) -> tuple[list[Exchange], bool]:
    """Return the exchanges that facts hold, the oldest first, and True if more lie in the store.

    Args:
        facts: of a conversation's memory, by key. What is no transcript is passed over.
    """
    found, elsewhere = list[Exchange](), False
    for key, value in facts.items():
        if is_transcript(key):
            try:
                kept = msgspec.convert(value, KeptTranscript)
            except msgspec.ValidationError:
                continue
            found += kept.exchanges
            elsewhere |= kept.artifact is not None
    return sorted(found, key=lambda exchange: exchange.at), elsewhere


class Transcript:
    """The transcript as one turn sees it and adds to it.

    Args:
        most: exchanges that are kept.
        labels: that every exchange gets, besides those of what the turn was shown.
    """

    def __init__(self, turn: Turn, most: int, labels: Sequence[str] = ()) -> None:
        self._turn, self._most = turn, most
        fleet = turn.execution.fleet
        handed = turn.execution.work.handoff
        shown = {label for fact in handed.facts for label in fact.labels}
        shown |= {label for artifact in handed.artifacts for label in artifact.labels}
        self._labels = tuple(sorted({*shown, *labels, *fleet.labels.get(TRANSCRIPT, ())}))
        own = fleet.agents.get(AgentName(turn.agent))
        self._is_cleared = own is None or set(self._labels) <= set(own.clearance) | shown
        self._kept: dict[str, KeptTranscript] = {}
        self._unreadable: list[str] = []
        for fact in handed.facts:
            if is_transcript(fact.key):
                try:
                    self._kept[fact.key] = msgspec.convert(fact.value, KeptTranscript)
                except msgspec.ValidationError:
                    self._unreadable.append(f"{fact.key} is no transcript")

    # --- reading ----------------------------------------------------------------------------------

    async def lines(self) -> tuple[str, ...]:
        """Return what was said so far for a brief, the oldest first; what is left out is named first."""
        exchanges = list[Exchange]()
        for kept in self._kept.values():
            exchanges += await self._exchanges(kept)
        exchanges.sort(key=lambda exchange: exchange.at)
        under_way = [said for kept in self._kept.values() for said in kept.open]
        room = TOKENS - sum(estimated_tokens(said.text) for said in under_way)
        shown = list[Exchange]()
        for exchange in reversed(exchanges[-self._most :]):
            room -= sum(estimated_tokens(said.text) for said in exchange.said)
            if room < 0:
                break
            shown.insert(0, exchange)
        left_out = len(exchanges) - len(shown) + sum(kept.left_out for kept in self._kept.values())
        return tuple(self._told(shown, under_way, left_out))

    def _told(self, shown: Sequence[Exchange], under_way: Sequence[Said], left_out: int) -> Iterator[str]:
        if left_out:
            yield f"({left_out} earlier exchange{'s' if left_out > 1 else ''} left out)"
        yield from (f"({why})" for why in self._unreadable)
        for exchange in shown:
            yield from (f"{said.by}: {said.text}" for said in exchange.said)
        yield from (f"{said.by}: {said.text}" for said in under_way)

    async def _exchanges(self, kept: KeptTranscript) -> tuple[Exchange, ...]:
        """Return the exchanges of a fact. What cannot be read is named, and keeps no turn from its work."""
        if kept.artifact is None:
            return kept.exchanges
        try:
            return _EXCHANGES.decode(await self._turn.load(kept.artifact))
        except (ArtifactError, msgspec.MsgspecError) as error:
            why = error.code if isinstance(error, ArtifactError) else "unreadable"
            if (told := f"earlier exchanges cannot be read: {why}") not in self._unreadable:
                self._unreadable.append(told)
                _log.warning("transcript_unreadable", agent=self._turn.agent, code=why)
            return ()

    # --- adding -----------------------------------------------------------------------------------

    async def left_by(self, move: Move, asked: Sequence[Said]) -> Move:
        """Return a move with what it leaves of the transcript.

        Args:
            asked: what this turn asked and was told.
        """
        if not isinstance(move, Complete | Transfer | HandBack | Escalate):
            return move
        if not self._is_cleared:
            _log.warning("transcript_not_kept", agent=self._turn.agent, labels=self._labels)
            return move
        key = self._key
        kept = self._kept.get(key, KeptTranscript())
        if not isinstance(move, Complete):
            if not asked:
                return move
            value = replace(kept, open=(*kept.open, *map(_cut, asked)))
            return replace(move, facts=(*move.facts, self._fact(key, value)))
        text = self._turn.facts.get(TEXT_FACT)
        said = [Said(_BY_THE_CLIENT, text)] if isinstance(text, str) else []
        said += [each for one in self._kept.values() for each in one.open]
        said += [*asked, Said(self._turn.agent, _as_text(move.answer))]
        now = Exchange(
            request=self._turn.request,
            at=submitted_ms(RequestId(self._turn.request)),
            said=tuple(map(_cut, said)),
        )
        fact = self._fact(key, await self._with(key, kept, now))
        others = tuple(each for each in move.remember if each.key != key)
        return replace(move, remember=(*others, fact))

    @property
    def _key(self) -> str:
        """The key of the fact for the labels of this turn's exchange."""
        if not self._labels:
            return TRANSCRIPT
        key = f"{TRANSCRIPT}:{'+'.join(self._labels)}"
        return key if len(key) <= _KEY_CHARS else f"{TRANSCRIPT}:{derive(*self._labels)}"

    def _fact(self, key: str, value: KeptTranscript) -> Fact:
        return Fact(key=key, value=msgspec.to_builtins(value), labels=self._labels)

    async def _with(self, key: str, kept: KeptTranscript, now: Exchange) -> KeptTranscript:
        """Return what is kept once one more exchange is; as an artifact if it is too large for a fact."""
        everything = [*(each for each in await self._exchanges(kept) if each.request != now.request), now]
        exchanges = everything[-self._most :]
        left_out = kept.left_out + len(everything) - len(exchanges)
        body = msgspec.json.encode(exchanges)
        was_too_much = any(refused.rule == Rule.MEMORY for refused in self._turn.refusals)
        if len(body) <= INLINE_BYTES and not was_too_much:
            return KeptTranscript(exchanges=tuple(exchanges), left_out=left_out)
        try:
            saved = await self._turn.save(
                TRANSCRIPT, body, media_type="application/json", labels=self._labels
            )
        except ArtifactError as error:
            _log.warning("transcript_not_saved", agent=self._turn.agent, code=error.code)
        else:
            return KeptTranscript(artifact=saved, left_out=left_out)
        while exchanges and len(msgspec.json.encode(exchanges)) > INLINE_BYTES:
            left_out += 1
            exchanges = exchanges[1:]
        return KeptTranscript(exchanges=tuple(exchanges), left_out=left_out)


def _cut(said: Said) -> Said:
    """Return what was said on one line, and no more of it than is kept."""
    text = " ".join(said.text.split())
    if len(text) > SAID_CHARS:
        text = f"{text[:SAID_CHARS]}… (cut: {len(text)} characters)"
    return Said(said.by, text)


def _as_text(value: Any) -> str:
    """Return an answer or a reply as text: JSON, if it is none."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def told_by_client(question: str, agent: str, reply: Any, *, expired: bool) -> tuple[Said, Said]:
    """Return a question and its reply."""
    return Said(agent, question), Said(_BY_THE_CLIENT, "(no reply)" if expired else _as_text(reply))
