"""Writes `corpus.jsonl` from `facts.toml`: `python -m tests.unit.agents.research.corpus_maker`.

The same table gives the same bytes. Each subject has eight documents of different sources and years, and each
document a few of its facts. So every fact is said several times, in other words. Where the table has a
dispute, some of these documents say otherwise.
"""

import json
import random
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.research.library import CORPUS

HERE = Path(__file__).parent
SEED = 1871
FACTS_A_DOCUMENT = 3

Table = Mapping[str, Any]


@dataclass(frozen=True)
class Source:
    """Who publishes documents, in which years, and how their titles and asides read."""

    name: str
    kind: str
    years: range
    titles: tuple[str, ...]
    asides: tuple[str, ...]


SOURCES = (
    Source(
        "Gazetteer of the Corran Isles",
        "gazetteer",
        range(1990, 2001),
        ("{name}", "{name}: an entry"),
        ("Corrections are welcome at the editor's desk.", "The entry was written by a neighbour."),
    ),
    Source(
        "Corran Courier",
        "newspaper",
        range(1994, 2021),
        ("A day at {name}", "What readers ask about {name}", "{name} in the news"),
        (
            "A reader from the west side wrote to us about it.",
            "The weather kept most people indoors, though not our reporter.",
            "There was tea for all who came.",
        ),
    ),
    Source(
        "Isles Survey Office",
        "report",
        range(1996, 2022),
        ("Survey sheet: {name}", "Returns for {name}"),
        ("The sheet was checked by a second clerk.", "Returns are kept in the office for inspection."),
    ),
    Source(
        "The Slow Traveller",
        "guide",
        range(1992, 2019),
        ("On foot to {name}", "{name}, unhurried"),
        (
            "Bring a coat, for the wind has opinions.",
            "The path is muddy after rain, and the better for it.",
            "Few places reward a slow afternoon as well.",
        ),
    ),
    Source(
        "Isles Council",
        "minutes",
        range(1998, 2023),
        ("Minutes: {name}", "Item for decision: {name}"),
        ("The item was carried without a vote.", "Two members spoke, and the item was put back."),
    ),
    Source(
        "Corran History Society",
        "journal",
        range(1995, 2020),
        ("Notes on {name}", "{name}: a short history"),
        ("The society thanks the family who lent their papers.", "Much remains to be read in the archive."),
    ),
    Source(
        "Norring Almanac",
        "almanac",
        range(2000, 2024),
        ("{name}, from the almanac", "Almanac: {name}"),
        ("The almanac appears each autumn.", "Tide tables are at the end of the volume."),
    ),
    Source(
        "School of Tolm",
        "essay",
        range(2002, 2022),
        ("Our trip to {name}", "{name}: a class essay"),
        ("We ate our sandwiches in the rain.", "Our teacher says that it looks best in autumn."),
    ),
)
NOTICE = Source("Isles Survey Office", "correction", range(2024, 2025), ("Correction: {name}",), ())
NOTICE_TEXT = "The office has measured and read again. Other figures in earlier sheets and pages were wrong."


def documents(table: Table) -> Iterator[dict[str, Any]]:
    """Yield every document, as one line of the file has it."""
    chance = random.Random(SEED)
    disputes = {(each["subject"], each["attribute"]): each for each in table["disputes"]}
    number = 0
    for kind, subjects in table["subjects"].items():
        for name, facts in subjects.items():
            for document in _of_subject(name, facts, table["attributes"][kind], disputes, chance):
                number += 1
                yield {"id": f"d-{number:04}", **document}


def _of_subject(
    name: str,
    facts: Mapping[str, Any],
    said: Mapping[str, Any],
    disputes: Mapping[tuple[str, str], Mapping[str, Any]],
    chance: random.Random,
) -> Iterator[dict[str, Any]]:
    years = _years(chance)
    chosen = _dealt(tuple(facts), len(SOURCES), chance)
    for place, source in enumerate(SOURCES):
        sentences = []
        for attribute in chosen[place]:
            value = facts[attribute]
            if dispute := disputes.get((name, attribute)):
                telling = [at for at in range(len(SOURCES)) if attribute in chosen[at]]
                if place in _deviating(dispute["how"], telling, years):
                    value = dispute["other"]
            sentences.append(chance.choice(said[attribute]["say"]).format(name=name, value=value))
        sentences.insert(chance.randrange(len(sentences) + 1), chance.choice(source.asides))
        yield _document(source, name, years[place], " ".join(sentences), chance)
    for (subject, attribute), dispute in disputes.items():
        if subject == name and dispute["how"] == "correction":
            right = chance.choice(said[attribute]["say"]).format(name=name, value=facts[attribute])
            yield _document(NOTICE, name, NOTICE.years[0], f"{NOTICE_TEXT} {right}", chance)


def _document(source: Source, name: str, year: int, text: str, chance: random.Random) -> dict[str, Any]:
    title = chance.choice(source.titles).format(name=name)
    return {"title": title, "source": source.name, "kind": source.kind, "year": year, "text": text}


def _years(chance: random.Random) -> list[int]:
    """Return a year for each source, all different: so that "before" and "since" are plain."""
    while True:
        years = [chance.choice(source.years) for source in SOURCES]
        if len(set(years)) == len(years):
            return years


def _dealt(attributes: Sequence[str], hands: int, chance: random.Random) -> list[list[str]]:
    """Return for each document the attributes that it tells; each is told about equally often."""
    pack: list[str] = []
    dealt = []
    for _ in range(hands):
        hand: list[str] = []
        while len(hand) < FACTS_A_DOCUMENT:
            if not pack:
                pack = chance.sample(list(attributes), len(attributes))
            hand.append(next(each for each in (*pack, *attributes) if each not in hand))
            if hand[-1] in pack:
                pack.remove(hand[-1])
        dealt.append(hand)
    return dealt


def _deviating(how: str, telling: Sequence[int], years: Sequence[int]) -> set[int]:
    """Return which of the documents that tell a fact say otherwise."""
    by_year = sorted(telling, key=lambda place: years[place])
    if how == "superseded":
        return set(by_year[: len(by_year) // 2])
    return {by_year[1], by_year[-2]} if len(by_year) > 3 else {by_year[1]}  # never cleanly before or after


def written(table: Table) -> str:
    """Return the whole file."""
    return "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in documents(table))


def read_table() -> Table:
    return tomllib.loads((HERE / "facts.toml").read_text(encoding="utf-8"))


if __name__ == "__main__":
    CORPUS.write_text(written(read_table()), encoding="utf-8")
