"""The page's list of requests, filled with made-up rows: how long one page of it takes under each filter.

`python -m bench.listing ROWS FOLDER`; a folder that is filled already is measured as it is.
"""

import itertools
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from mesh.ui.projection import COSTS, Filter, Listed, Projection, words_of

_SHOWN = 51
_ROUNDS = 5
_AT_ONCE = 5_000
_BEGAN = 1_700_000_000_000_000
_AGENTS = ("triage", "billing", "refunds", "legal", "tech")
_STATES = {"completed": 88, "failed": 4, "refused": 4, "open": 2, "human": 1, "expired": 1}


def rows(count: int) -> Iterator[tuple[int, Listed]]:
    """Yield so many requests, each with the place of its first event: six events, a second apart."""
    chance = random.Random(1)
    vocabulary = [f"word{number}" for number in range(5_000)]
    for number in range(1, count + 1):
        status = chance.choices(tuple(_STATES), tuple(_STATES.values()))[0]
        cost = int(chance.lognormvariate(16, 2))
        names, client = chance.sample(_AGENTS, 2), chance.choice(("app", "web", "mail"))
        rule = chance.choice(("max_visits", "max_depth", "actions")) if chance.random() < 0.05 else ""
        text = f"{' '.join(chance.choices(vocabulary, k=12))} please refund"
        tags = {f"status:{status}", f"client:{client}", *(f"agent:{name}" for name in names)}
        tags |= ({f"rule:{rule}"} if rule else set()) | ({"status:open"} if status == "human" else set())
        tags |= {f"cost:{power}" for power in COSTS if cost >= 10**power}
        row = Listed(
            request=f"{client}_{number:026d}",
            last=number * 6 + 5,
            status=status,
            holder="",
            client=client,
            frozen=False,
            opened=_BEGAN + number * 1_000_000,
            at=_BEGAN + number * 1_000_000 + 500,
            events=6,
            type=f"request.{status}",
            nano_dollars=cost,
            tokens=cost // 1_000,
            model_calls=3,
            refusals=int(bool(rule)),
            rule=rule,
            trail=" → ".join(names),
            text=text,
            words=words_of(text),
            tags=" ".join(sorted(tags)),
        )
        yield number * 6, row


def filters(count: int) -> dict[str, Filter]:
    """Return what is asked for; `middle` is a time by which half of the requests were opened."""
    middle = _BEGAN + count // 2 * 1_000_000
    return {
        "all": Filter(),
        "status open": Filter(tags=("status:open",)),
        "an agent": Filter(tags=("agent:legal",)),
        "a rule": Filter(tags=("rule:max_visits",)),
        "agent, status and rule": Filter(tags=("agent:legal", "status:failed", "rule:max_depth")),
        "four tags that few have": Filter(tags=("client:app", "agent:legal", "rule:actions", "status:human")),
        "$1 or more": Filter(nano_dollars=10**9),
        "a word in every text": Filter(text="refund"),
        "a word in one of 400": Filter(text="word4999"),
        "the beginning of 1,111 words": Filter(text="word3"),
        "two words": Filter(text="word4999 word3"),
        "words of all, tags of few": Filter(text="please refund", tags=("status:human", "rule:actions")),
        "words of all, a tag of most, half": Filter(text="refund", tags=("status:completed",), until=middle),
        "younger than half": Filter(since=middle),
        "older than half, an agent": Filter(until=middle, tags=("agent:legal",)),
        "the beginning of an id": Filter(text="app_0000"),
    }


def main(arguments: list[str]) -> None:
    count, folder = int(arguments[0]), Path(arguments[1])
    listed = Projection(folder / "listing.sqlite3", f"{count} rows")
    began = time.perf_counter()
    if listed.seq == 0:
        left = rows(count)
        while part := list(itertools.islice(left, _AT_ONCE)):
            listed.put(part, part[-1][0] + 5)
        sys.stdout.write(f"{count} rows written in {time.perf_counter() - began:.0f} s" + "\n")
    sys.stdout.write(f"{(folder / 'listing.sqlite3').stat().st_size / 1e6:.0f} MB" + "\n")
    sys.stdout.write(
        f"{'a page of requests with':36} {'median':>10} {'worst':>10} {'deep':>10}  (ms, {_ROUNDS} rounds)"
        + "\n"
    )
    for name, wanted in filters(count).items():
        taken = sorted(_timed(listed, wanted, None) for _ in range(_ROUNDS))
        deep = _timed(listed, wanted, count * 3)
        sys.stdout.write(f"{name:36} {taken[_ROUNDS // 2]:10.1f} {taken[-1]:10.1f} {deep:10.1f}" + "\n")
    listed.close()


def _timed(listed: Projection, wanted: Filter, before: int | None) -> float:
    began = time.perf_counter()
    listed.page(wanted, before=before, limit=_SHOWN)
    return (time.perf_counter() - began) * 1_000


if __name__ == "__main__":
    main(sys.argv[1:])
