"""The port to a model: a prompt in, a reply out.

A `Prompt` holds what a model would be sent and nothing else: no turn, no handoff, no guard. So a test double
knows no more, and can do no more, than a model.
"""

from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from protocol.wire.commands import Usage
from protocol.wire.handoff import Artifact
from protocol.wire.prices import Tokens


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model sees it."""

    name: str
    description: str
    schema: Mapping[str, Any]
    """JSON schema of the arguments, an object."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a model asks for, unchecked."""

    id: str
    """Unique within one transcript."""
    name: str
    arguments: Mapping[str, Any]
    unreadable: str = ""
    """Why the arguments could not be read; they are empty then."""


@dataclass(frozen=True, slots=True)
class PastReply:
    """One reply of the model, in a transcript."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    blocks: tuple[Mapping[str, Any], ...] = ()
    """The reply's parts as its model made them, to be sent back to that model."""
    model: str = ""
    """The model that replied: a vendor binds a model's thoughts to it."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of one call, as text."""

    call: str
    """The call's id; empty for a remark about the whole reply."""
    name: str
    text: str
    """The result: a text as it is, anything else as JSON; or one sentence about the error."""
    is_error: bool = False


Exchange = PastReply | ToolResult


@dataclass(frozen=True, slots=True)
class Prompt:
    """All that a model sees."""

    agent: str
    """The agent that the model speaks as."""
    instructions: str
    """The system text."""
    brief: str
    """The turn as text: the task, the facts, the refusals."""
    tools: tuple[ToolSpec, ...] = ()
    """The only means to act, including moves."""
    transcript: tuple[Exchange, ...] = ()
    """This round's replies and results, in order."""


@dataclass(frozen=True, slots=True)
class PromptFile:
    """A picture or a document that a model is shown."""

    artifact: Artifact
    data: bytes = field(default=b"", repr=False)
    """Its bytes; empty in what is recorded."""
    note: str = ""
    """Why it is not shown; empty if it is."""

    @property
    def label(self) -> str:
        """One line that says which file comes next."""
        name = " ".join(self.artifact.name.split())
        return f"{name} ({self.artifact.media_type}){f': not shown, {self.note}' if self.note else ''}"

    @property
    def base64(self) -> str:
        """Its bytes as base64; where there are none, what stands for them."""
        return b64encode(self.data).decode() or f"({self.artifact.size} bytes, {self.artifact.digest})"

    @property
    def data_uri(self) -> str:
        return f"data:{self.artifact.media_type};base64,{self.base64}"

    @property
    def is_picture(self) -> bool:
        return self.artifact.media_type.startswith("image/")


@dataclass(frozen=True, slots=True)
class PromptWithFiles(Prompt):
    """A prompt with files. A class of its own keeps the digests of all other prompts as they were."""

    files: tuple[PromptFile, ...] = ()
    """Shown behind the brief, in order."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply. Without calls, its text is the answer to the request."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = field(default_factory=Usage)
    """The cost of this reply."""
    tokens: Tokens = field(default_factory=Tokens)
    """The same in detail, if the model gives it."""
    stop: str = ""
    """Why the model stopped, in its own words; may be empty."""
    blocks: tuple[Mapping[str, Any], ...] = ()
    """The reply's parts as the model made them, for the rest of the conversation."""
    model: str = ""
    """The model that replied."""
    asked: str = ""
    """The model that was asked; empty if the replying model's name tells it."""
    id: str = ""
    """The vendor's id of this reply, by which its support finds it; may be empty."""

    def in_transcript(self) -> PastReply:
        return PastReply(self.text, self.calls, self.blocks, self.asked or self.model)


Hear = Callable[[str | None], None]
"""Called with each piece of a reply's text as it arrives; with None when the text so far is void."""


class Model(ABC):
    """Anything that replies. The defaults here are those of a model that costs nothing."""

    mode: str
    """Its name for people: `scripted`, a model's id, …"""
    fallback: str | None = None
    """The model that it asks instead when it fails; None if there is none."""
    provider = ""
    """Its vendor, by the names of OpenTelemetry's conventions."""
    is_billed = False
    """True if its replies cost money."""
    makes_spans = False
    """True if its SDK makes a span for each call."""

    @abstractmethod
    async def reply(self, prompt: Prompt, hear: Hear | None = None) -> Reply:
        """Return one reply. Raises Retry if another attempt may help, Permanent if none can.

        Args:
            hear: called with each piece of text as it arrives, by models that stream; for display only.
        """

    @property
    def address(self) -> str:
        """The host where it is asked; empty if unknown."""
        return ""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """What is asked of the model besides the prompt, for the record; it holds no secrets."""
        return {"model": self.mode}

    def warm(self) -> None:  # noqa: B027 - most models have nothing to load
        """Load what the first reply needs. It takes seconds, so it is called in a thread."""

    def asked_of(self, replied: str) -> str:
        """Return which of this model and its fallback was asked for a reply with the id `replied`."""
        return self.mode

    def alone(self) -> "Model":
        """Return this model without its fallback."""
        return self
