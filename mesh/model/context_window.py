"""A context window: what of a task, a plan and many results fits into one prompt, and what had to stay out.

The task and the plan are always there. Of each result there is its summary; the full text is there only of
those in hand. Whatever does not fit is left out whole and named: a model is never shown half of something
as if it were all of it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from mesh.agent.errors import Permanent

CHARS_PER_TOKEN = 4
"""Of English, as OpenAI's help pages and most estimators have it; with Claude's models it is rather 3.5."""


def estimated_tokens(text: str) -> int:
    """Return about how many tokens a text has: a quarter of its UTF-8 bytes.

    It is an estimate. Code, numbers and rare words take more. Bytes instead of characters, so that scripts
    beyond Latin do not come out at a fraction of what they cost. `ContextWindow.keep` leaves room for it.
    """
    return ceil(len(text.encode("utf-8", "replace")) / CHARS_PER_TOKEN)


class ContextTooSmall(Permanent, code="context.too_small"):
    """The task and the plan alone are more than the window holds: no choice of results can help."""

    def __init__(self, needed: int, limit: int) -> None:
        super().__init__(f"task and plan take {needed} tokens, and the context window has room for {limit}")
        self.needed, self.limit = needed, limit


class Passage(NamedTuple):
    """One result, as it may be shown."""

    name: str
    """By which it is named where it is left out."""
    summary: str
    text: str = ""
    """All of it; shown only if it is in hand. Empty if the summary is all there is."""
    in_hand: bool = False
    """True for what the next step works on."""


class Fitted(NamedTuple):
    """What fits."""

    text: str
    tokens: int
    left_out: tuple[str, ...]
    """What is not in the text: `summary of <name>`, then `full text of <name>`."""


@dataclass(frozen=True)
class ContextWindow:
    """How much of a model's context a prompt's variable part may take.

    Args:
        max_tokens: of the window: the model's, or the share of it that this is to have.
        keep: how much of that is filled, 0 to 1. The rest is for what is not counted here (instructions,
            tools, the reply) and for an estimate that is too low.
        count: returns the tokens of a text. The default estimates; a tokenizer of your own is exact.

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

        Where not all summaries fit, those in hand come first, and then the newest. The text keeps the order
        of `passages`. It ends with a line that names what was left out. Where all those names would leave no
        room for a single summary it counts them, and it is not there if even that does not fit.

        Raises ContextTooSmall if task and plan alone take more than `limit`.
        """
        known = tuple(passages)
        bare = _joined(task, plan)
        if not self._fits(bare):
            raise ContextTooSmall(self.count(bare), self.limit)
        for naming in (_named, _counted):
            chosen = self._chosen(bare, known, naming)
            text = _rendered(bare, known, chosen, naming)
            if self._fits(text) and (chosen.summaries or not known or naming is _counted):
                return Fitted(text, self.count(text), _left_out(known, chosen))
        return Fitted(bare, self.count(bare), _left_out(known, _NOTHING))

    def _fits(self, text: str) -> bool:
        return self.count(text) <= self.limit

    def _chosen(self, bare: str, known: Sequence[Passage], naming: "_Naming") -> "_Chosen":
        """Return as much as fits beside a remark on the rest."""
        ranked = sorted(range(len(known)), key=lambda at: (not known[at].in_hand, -at))
        low, high = 0, len(ranked)
        while low < high:
            middle = (low + high + 1) // 2
            if self._fits(_rendered(bare, known, _Chosen(frozenset(ranked[:middle])), naming)):
                low = middle
            else:
                high = middle - 1
        chosen = _Chosen(frozenset(ranked[:low]))
        for at in sorted(chosen.summaries):
            more = chosen._replace(texts=chosen.texts | {at})
            if known[at].in_hand and known[at].text and self._fits(_rendered(bare, known, more, naming)):
                chosen = more
        return chosen


class _Chosen(NamedTuple):
    """What is shown, by place."""

    summaries: frozenset[int] = frozenset()
    texts: frozenset[int] = frozenset()


_NOTHING = _Chosen()
_Naming = Callable[[Sequence[Passage], _Chosen], str]


def _joined(*blocks: str) -> str:
    return "\n\n".join(block for block in blocks if block)


def _lacking(known: Sequence[Passage], chosen: _Chosen) -> tuple[list[str], list[str]]:
    """Return the names of summaries, and of full texts, that are not shown."""
    summaries = [each.name for at, each in enumerate(known) if at not in chosen.summaries]
    texts = [
        each.name for at, each in enumerate(known) if each.in_hand and each.text and at not in chosen.texts
    ]
    return summaries, texts


def _left_out(known: Sequence[Passage], chosen: _Chosen) -> tuple[str, ...]:
    summaries, texts = _lacking(known, chosen)
    return (*(f"summary of {name}" for name in summaries), *(f"full text of {name}" for name in texts))


def _named(known: Sequence[Passage], chosen: _Chosen) -> str:
    summaries, texts = _lacking(known, chosen)
    lines = [f"summary of {', '.join(summaries)}"] if summaries else []
    lines += [f"full text of {', '.join(texts)}"] if texts else []
    return "; ".join(lines)


def _counted(known: Sequence[Passage], chosen: _Chosen) -> str:
    summaries, texts = _lacking(known, chosen)
    return f"{len(summaries)} summaries, {len(texts)} full texts" if summaries or texts else ""


def _rendered(bare: str, known: Sequence[Passage], chosen: _Chosen, naming: _Naming) -> str:
    summaries = [f"- {each.name}: {each.summary}" for at, each in enumerate(known) if at in chosen.summaries]
    results = "\n".join(("Results:", *summaries)) if summaries else ""
    full = (f"Full text of {known[at].name}:\n{known[at].text}" for at in sorted(chosen.texts))
    left_out = naming(known, chosen)
    return _joined(bare, results, *full, f"Left out, as it does not fit: {left_out}." if left_out else "")
