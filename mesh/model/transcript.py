"""A conversation's transcript: its last exchanges, kept in the conversation's own memory.

An answer leaves them behind as facts, and the next request of the conversation begins with these. There is
one fact for each set of labels. An exchange has all labels that its agent was shown, since its words may
repeat any of it. So an agent sees the exchanges that it is cleared for, and can only add to those.

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
"""Key of the fact with the exchanges; for exchanges with labels `:` and the labels are appended."""
INLINE_BYTES: Final = 16 << 10
"""Limit of a fact's exchanges as JSON. Larger ones are kept in the artifact store."""
TOKENS: Final = 8_000
"""Limit of the exchanges in a brief, by the estimate of the context window."""
SAID_CHARS: Final = 4_000
"""Limit of one utterance. The rest is cut, and the cut is named."""
_KEY_CHARS = 128
_BY_THE_CLIENT = "client"


class Utterance(msgspec.Struct, frozen=True, omit_defaults=True):
    """One utterance."""

    by: str
    """`client`, or the agent's name."""
    text: str


class Exchange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The utterances of one request."""

    request: str
    at: int
    """When the request was submitted, by its id (UTC ms)."""
    said: tuple[Utterance, ...]


class KeptTranscript(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The value of a fact that holds exchanges."""

    exchanges: tuple[Exchange, ...] = ()
    """Oldest first."""
    artifact: Artifact | None = None
    """Where they are stored if they are too large for a fact."""
    left_out: int = 0
    """Number of earlier exchanges that are no longer kept."""
    open: tuple[Utterance, ...] = ()
    """Questions and replies of earlier turns of the current request."""


_EXCHANGES = msgspec.json.Decoder(tuple[Exchange, ...])


def is_transcript(key: str) -> bool:
    return key == TRANSCRIPT or key.startswith(f"{TRANSCRIPT}:")


def exchanges_in(facts: Mapping[str, Any]) -> tuple[list[Exchange], bool]:
    """Return the exchanges that facts hold, oldest first, and True if more are in the artifact store.

    Args:
        facts: of a conversation's memory, by key. Other facts than transcripts are skipped.
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
        most: number of exchanges to keep.
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
        """Return the conversation so far for a brief, oldest first; what is left out is named first."""
        exchanges = list[Exchange]()
        for kept in self._kept.values():
            exchanges += await self._exchanges(kept)
        exchanges.sort(key=lambda exchange: exchange.at)
        under_way = [each for stored in self._kept.values() for each in stored.open]
        room = TOKENS - sum(estimated_tokens(each.text) for each in under_way)
        shown = list[Exchange]()
        for exchange in reversed(exchanges[-self._most :]):
            room -= sum(estimated_tokens(each.text) for each in exchange.said)
            if room < 0:
                break
            shown.insert(0, exchange)
        left_out = len(exchanges) - len(shown) + sum(kept.left_out for kept in self._kept.values())
        return tuple(self._lines(shown, under_way, left_out))

    def _lines(
        self, shown: Sequence[Exchange], under_way: Sequence[Utterance], left_out: int
    ) -> Iterator[str]:
        if left_out:
            yield f"({left_out} earlier exchange{'s' if left_out > 1 else ''} left out)"
        yield from (f"({why})" for why in self._unreadable)
        for exchange in shown:
            yield from (f"{each.by}: {each.text}" for each in exchange.said)
        yield from (f"{each.by}: {each.text}" for each in under_way)

    async def _exchanges(self, kept: KeptTranscript) -> tuple[Exchange, ...]:
        """Return the exchanges of a fact. What cannot be read is named, and does not stop the turn."""
        if kept.artifact is None:
            return kept.exchanges
        try:
            return _EXCHANGES.decode(await self._turn.load(kept.artifact))
        except (ArtifactError, msgspec.MsgspecError) as error:
            why = error.code if isinstance(error, ArtifactError) else "unreadable"
            if (note := f"earlier exchanges cannot be read: {why}") not in self._unreadable:
                self._unreadable.append(note)
                _log.warning("transcript_unreadable", agent=self._turn.agent, code=why)
            return ()

    # --- adding -----------------------------------------------------------------------------------

    async def left_by(self, move: Move, asked: Sequence[Utterance]) -> Move:
        """Return a move with what it adds to the transcript.

        Args:
            asked: this turn's questions and replies.
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
        utterances = [Utterance(_BY_THE_CLIENT, text)] if isinstance(text, str) else []
        utterances += [each for stored in self._kept.values() for each in stored.open]
        utterances += [*asked, Utterance(self._turn.agent, _as_text(move.answer))]
        now = Exchange(
            request=self._turn.request,
            at=submitted_ms(RequestId(self._turn.request)),
            said=tuple(map(_cut, utterances)),
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
        """Return what is kept after one more exchange, as an artifact if it is too large for a fact."""
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


def _cut(utterance: Utterance) -> Utterance:
    """Return an utterance as one line of limited length."""
    text = " ".join(utterance.text.split())
    if len(text) > SAID_CHARS:
        text = f"{text[:SAID_CHARS]}… (cut: {len(text)} characters)"
    return Utterance(utterance.by, text)


def _as_text(value: Any) -> str:
    """Return an answer or a reply as text, which is JSON unless it is a string."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def client_exchange(question: str, agent: str, reply: Any, *, expired: bool) -> tuple[Utterance, Utterance]:
    """Return a question and its reply as utterances."""
    return Utterance(agent, question), Utterance(_BY_THE_CLIENT, "(no reply)" if expired else _as_text(reply))
