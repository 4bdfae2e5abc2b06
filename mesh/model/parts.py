"""Parts that vendors share: a prompt as a dialogue, a streamed reply, and values read from foreign bytes.

Foreign bytes become calls, texts and counts that can be kept.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Container, Mapping, Sequence
from typing import Any

import msgspec

from mesh.model.port import PastReply, Prompt, PromptFile, PromptWithFiles, Reply, ToolCall
from protocol.wire import codec
from protocol.wire.commands import MAX_MODEL_CHARS
from protocol.wire.errors import Malformed
from protocol.wire.handoff import check_nesting

MOST_TOKENS = 10**9
"""Limit of one kind in one reply, a thousand times the longest context. A larger count is cut to it."""
LONGEST_NAME = 128
"""Twice the length of a tool's name: a longer name names no tool, and is not repeated in full."""
NOT_DONE = "Not done. Ask for it again if it is still wanted."
GO_ON = "Go on."
NOTHING = "(nothing)"
"""Replaces an empty text, and a reply of which nothing can be sent back."""
_LONGEST_TOOL = 64
_LONGEST_STOP = 64
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_REPLY_ID = re.compile(r"[A-Za-z0-9._:/-]{1,128}")
_NO_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_NO_JSON = "the arguments are no JSON that can be read"
_NO_OBJECT = "the arguments are no object"


class Unreadable(Exception):
    """The events are not a message of the API. The text names the fault, and repeats nothing of the reply."""


class BrokenOff(Exception):
    """The stream ended before the message did."""


class Dialogue(ABC):
    """A prompt as the messages of a vendor's API, in which the two sides alternate.

    Every call is answered before any other message; a call without a result gets an error as its result.
    """

    def __init__(self, prompt: Prompt, *begun: dict[str, Any]) -> None:
        self.messages = list(begun)
        self._open: list[str] = []
        """Ids of the last reply's calls that have no result yet."""
        self._files = prompt.files if isinstance(prompt, PromptWithFiles) else ()
        texts = [prompt.brief]
        for each in prompt.transcript:
            if isinstance(each, PastReply):
                self._end_message(texts)
                texts = []
                self._add_reply(each)
            elif each.call in self._open:
                self._open.remove(each.call)
                self._answer(each.call, each.text, is_error=each.is_error)
            else:  # a remark
                texts.append(each.text)
        self._end_message(texts)

    def _end_message(self, texts: list[str]) -> None:
        """Complete what goes to the model, so that it is the model's turn to speak."""
        for call in self._open:
            self._answer(call, NOT_DONE, is_error=True)
        self._open = []
        self._say(texts)
        if self._files:  # behind the brief
            self._show(self._files)
            self._files = ()

    @abstractmethod
    def _add_reply(self, said: PastReply) -> None:
        """Add a reply, and note its calls in `_open`."""

    @abstractmethod
    def _answer(self, call: str, text: str, *, is_error: bool) -> None:
        """Add the result of a call."""

    @abstractmethod
    def _say(self, texts: list[str]) -> None:
        """Add texts for the model. If there is nothing to reply to, ask it to go on."""

    @abstractmethod
    def _show(self, files: Sequence[PromptFile]) -> None:
        """Add files to the newest message, each behind its label."""


class Streamed(ABC):
    """A reply while its events arrive."""

    ended = False
    """True once later events do not belong to the reply."""

    def take(self, event: Mapping[str, Any]) -> str:
        """Add an event; return its piece of text, which may be empty. Raises Unreadable."""
        try:
            return self._added(event)
        except (AttributeError, KeyError, TypeError, ValueError) as wrong:
            raise Unreadable(f"an event that is none: {type(wrong).__name__}") from wrong

    def whole(self, body: bytes) -> str:
        """Take a whole message, sent in place of a stream; return its text. Raises Unreadable."""
        try:
            return self._taken(msgspec.json.decode(body))
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as wrong:
            raise Unreadable("an answer that is no JSON") from wrong
        except (AttributeError, KeyError, TypeError, ValueError) as wrong:
            raise Unreadable(f"a message that is none: {type(wrong).__name__}") from wrong

    @abstractmethod
    def _taken(self, message: Any) -> str:
        """Take a whole message; return its text."""

    @abstractmethod
    def _added(self, event: Mapping[str, Any]) -> str:
        """Add an event; return its piece of text."""

    @abstractmethod
    def reply(self, *, asked: str, taken: frozenset[str]) -> Reply:
        """Return the whole reply. Raises BrokenOff, Unreadable.

        Args:
            asked: the model that was asked, for a reply that names none.
            taken: ids of calls in other replies of the same conversation.
        """


# --- texts ----------------------------------------------------------------------------------------


def encodable(text: str) -> str:
    """Return a text that UTF-8 can encode: surrogate pairs are joined, a lone surrogate is replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def non_empty(text: str) -> str:
    """Return a text as vendors accept it: it must not be empty."""
    return encodable(text) if text.strip() else NOTHING


def tool_name(name: str) -> str:
    """Return a tool's name as it can be sent back to a vendor."""
    return _NO_NAME.sub("_", name)[:_LONGEST_TOOL] or "_"


def stop_of(reason: str) -> str:
    return encodable(reason)[:_LONGEST_STOP]


def model_of(named: object, asked: str) -> str:
    """Return the model that a reply names, or the model that was asked if it names none."""
    is_model = isinstance(named, str) and len(named) <= MAX_MODEL_CHARS and _MODEL.fullmatch(named)
    return str(named) if is_model else asked


def id_of(named: object) -> str:
    """Return the vendor's id of a reply; empty if it is none that can be shown and looked up."""
    return named if isinstance(named, str) and _REPLY_ID.fullmatch(named) else ""


def text_of(part: Mapping[str, Any], name: str) -> str:
    """Return a text field of a block or a message. Raises Unreadable."""
    found = part.get(name)
    if not isinstance(found, str):
        raise Unreadable(f"`{name}` is no text")
    return found


def value_of(written: str) -> Any:
    """Return JSON as a value; None if it cannot be read."""
    try:
        return msgspec.json.decode(written)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None


# --- calls and counts -----------------------------------------------------------------------------


def call_of(name: str, made: str, given: object, taken: Container[str]) -> ToolCall:
    """Return a call, with an id that is not `taken`.

    Args:
        made: the vendor's id.
        given: the arguments as a value; None if they are not JSON.
    """
    number = 0
    while not _ID.fullmatch(made) or made in taken:
        number += 1
        made = f"call_{number}"
    arguments, why = _arguments(given)
    return ToolCall(made, encodable(name)[:LONGEST_NAME], arguments, why)


def _arguments(given: object) -> tuple[Mapping[str, Any], str]:
    """Return a call's arguments; or empty ones, and the reason."""
    if given is None:
        return {}, _NO_JSON
    if not isinstance(given, Mapping):
        return {}, _NO_OBJECT
    try:
        for value in given.values():
            check_nesting(value)
        return msgspec.json.decode(msgspec.json.encode(given)), ""
    except Malformed as deep:
        return {}, f"the arguments cannot be used: {deep}"
    except codec.UNWRITABLE:
        return {}, _NO_JSON


def count_of(counts: object, name: str) -> int:
    found = counts.get(name) if isinstance(counts, Mapping) else None
    if not isinstance(found, int | float) or not found >= 0:  # NaN is not a count either
        return 0
    return int(min(found, MOST_TOKENS))
