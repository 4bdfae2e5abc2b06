"""A context window: it fits a task, a plan and many results into one prompt, and names what it left out.

The task and the plan are always included. Of each result the summary is included; the full text only of
results in hand. What does not fit is left out whole and named. A model never sees half of something as if it
were all of it.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from mesh.agent.errors import Permanent

CHARS_PER_TOKEN = 4
"""For English, as most estimators have it; some models take a token for 3.5 characters."""


def estimated_tokens(text: str) -> int:
    """Return the approximate number of tokens in a text: a quarter of its UTF-8 bytes.

    Code, numbers and rare words take more. Bytes are counted instead of characters, so that scripts beyond
    Latin are not estimated at a fraction of their cost. `ContextWindow.keep` leaves room for the error.
    """
    return ceil(len(text.encode("utf-8", "replace")) / CHARS_PER_TOKEN)


class ContextTooSmall(Permanent, code="context.too_small"):
    """The task and the plan alone exceed the window: no choice of results can help."""

    def __init__(self, needed: int, limit: int) -> None:
        super().__init__(f"task and plan take {needed} tokens, and the context window has room for {limit}")
        self.needed, self.limit = needed, limit


class Passage(NamedTuple):
    """One result, as it may be shown."""

    name: str
    """Its name where it is left out."""
    summary: str
    text: str = ""
    """All of it; shown only if it is in hand. Empty if there is only a summary."""
    in_hand: bool = False
    """True for what the next step works on."""


class Fitted(NamedTuple):
    """What fits."""

    text: str
    tokens: int
    left_out: tuple[str, ...]
    """What the text does not have: `summary of <name>`, then `full text of <name>`."""


@dataclass(frozen=True)
class ContextWindow:
    """How much of a model's context a prompt's variable part may take.

    Args:
        max_tokens: size of the window: the model's own, or this prompt's share of it.
        keep: how much of the window is filled, 0 to 1. The rest is for what is not counted here
            (instructions, tools, the reply) and for an estimate that is too low.
        count: returns the tokens of a text. The default estimates; your own tokenizer can be exact.

    Raises ValueError for numbers out of range.
    """

    max_tokens: int
    keep: float = 0.8
    count: Callable[[str], int] = estimated_tokens

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or not 0 < self.keep <= 1:
            raise ValueError(f"max_tokens is 1 or more, keep between 0 and 1: {self.max_tokens}, {self.keep}")

    @property
    def limit(self) -> int:
        """Tokens that may be filled."""
        return int(self.max_tokens * self.keep)

    def fit(self, task: str, plan: str = "", passages: Iterable[Passage] = ()) -> Fitted:
        """Return what fits: task and plan, then summaries, then the full text of what is in hand.

        If not all summaries fit, those in hand come first, and then the newest. The text keeps the order of
        `passages`. It ends with a line that names what was left out. If those names would leave no room for a
        single summary, the line counts them. It is omitted if even that does not fit.

        Raises ContextTooSmall if task and plan alone take more than `limit`.
        """
        known = tuple(passages)
        bare = _joined(task, plan)
        if not self._fits(bare):
            raise ContextTooSmall(self.count(bare), self.limit)
        for counted in (False, True):
            shown = self._fullest(_Draft(bare, known, counted))
            if self._fits(shown.text) and (shown.summaries or not known or counted):
                return Fitted(shown.text, self.count(shown.text), shown.left_out)
        return Fitted(bare, self.count(bare), _Draft(bare, known).left_out)

    def _fits(self, text: str) -> bool:
        return self.count(text) <= self.limit

    def _fullest(self, draft: "_Draft") -> "_Draft":
        """Return a draft with as much as fits beside its note on what is left out."""
        known = draft.known
        ranked = sorted(range(len(known)), key=lambda at: (not known[at].in_hand, -at))
        drafts = [draft._replace(summaries=frozenset(ranked[:count])) for count in range(len(known) + 1)]
        draft = drafts[bisect_left(drafts, True, lo=1, key=lambda each: not self._fits(each.text)) - 1]
        for at in sorted(draft.summaries):
            more = draft._replace(texts=draft.texts | {at})
            if known[at].in_hand and known[at].text and self._fits(more.text):
                draft = more
        return draft


class _Draft(NamedTuple):
    """A text, and which results it shows, by place."""

    bare: str
    known: Sequence[Passage]
    counted: bool = False
    """True if what is left out is counted instead of named."""
    summaries: frozenset[int] = frozenset()
    texts: frozenset[int] = frozenset()

    def _lacking(self) -> tuple[list[str], list[str]]:
        """Return the names of summaries, and of full texts, that are not shown."""
        places = list(enumerate(self.known))
        summaries = [each.name for at, each in places if at not in self.summaries]
        return summaries, [
            each.name for at, each in places if each.in_hand and each.text and at not in self.texts
        ]

    @property
    def left_out(self) -> tuple[str, ...]:
        summaries, texts = self._lacking()
        return (*(f"summary of {name}" for name in summaries), *(f"full text of {name}" for name in texts))

    @property
    def text(self) -> str:
        known = self.known
        shown = [f"- {each.name}: {each.summary}" for at, each in enumerate(known) if at in self.summaries]
        results = "\n".join(("Results:", *shown)) if shown else ""
        full = (f"Full text of {known[at].name}:\n{known[at].text}" for at in sorted(self.texts))
        return _joined(self.bare, results, *full, self._remark())

    def _remark(self) -> str:
        summaries, texts = self._lacking()
        if not summaries and not texts:
            return ""
        names = (("summary of", summaries), ("full text of", texts))
        named = "; ".join(f"{what} {', '.join(which)}" for what, which in names if which)
        left_out = f"{len(summaries)} summaries, {len(texts)} full texts" if self.counted else named
        return f"Left out, as it does not fit: {left_out}."


def _joined(*blocks: str) -> str:
    return "\n\n".join(block for block in blocks if block)
