"""`mesh replay --policy …` and `--fleet …`: what would have gone another way."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from mesh.cli.exits import Exit, Leave
from mesh.cli.output import emit_parts, note, say, write_page
from mesh.ops.policies import policy_at
from mesh.replay.whatif import Divergence, Summary, judgement_in_words, summary_in_words
from mesh.service.printable import as_program_reads
from protocol.domain.recorded import Other


class Tried(NamedTuple):
    """Something to try, and the file that says it."""

    name: str
    other: Other


def tried_from(policies: Sequence[Path], fleet: Path | None) -> list[Tried]:
    """Return the changes that these files describe. Raises UsageWrong, FleetFileError."""
    tried = [Tried(str(path), Other({"*": policy_at(path)})) for path in policies]
    if fleet is not None:
        from mesh.fleet.file import load_fleet

        file = load_fleet(fleet)
        tried.append(Tried(str(fleet), Other(file.rules, file.fleet)))
    return tried


def tell(
    tried: Sequence[Tried],
    came: Sequence[tuple[Summary, Iterable[Divergence]]],
    *,
    as_json: bool,
    html: Path | None = None,
) -> None:
    """Print the outcome of each change that was tried. Ends with status 1 if anything differs.

    Args:
        html: also write it as a page.
    """
    named = list(zip((each.name for each in tried), came, strict=True))
    if as_json:
        emit_parts(_as_json(named))
    else:
        for name, (summary, found) in named:
            _tell_one(name if len(tried) > 1 else "", summary, found)
    if html is not None:
        from mesh.ui.replayed import tried_as_html

        write_page(html, tried_as_html((name, summary, found) for name, (summary, found) in named))
    if any(summary.differ or summary.unreadable for _, (summary, _) in named):
        raise Leave(Exit.FAILED)


def _as_json(named: Iterable[tuple[str, tuple[Summary, Iterable[Divergence]]]]) -> Iterator[bytes]:
    """Yield a list of objects in parts: a log may have more divergences than fit into memory."""
    for number, (name, (summary, found)) in enumerate(named):
        head = msgspec.json.encode({"tried": name, "summary": as_program_reads(summary)})
        yield (b"," if number else b"[") + head[:-1] + b',"found":['
        for place, each in enumerate(found):
            yield (b"," if place else b"") + msgspec.json.encode(as_program_reads(each))
        yield b"]}"
    yield b"]"


def _tell_one(name: str, summary: Summary, found: Iterable[Divergence]) -> None:
    if name:
        say(f"{name}:")
    for each in found:
        giver = each.agent or each.client
        who = f"{giver} → {each.to}" if each.to else giver
        was, would = judgement_in_words(each.was), judgement_in_words(each.would)
        say(f"{each.request} event {each.n}: was {was}, would be {would}; {who}; the rest is as recorded")
    for request, why in summary.unreadable.items():
        note(f"{request} is not compared: {why}")
    for line in summary_in_words(summary):
        say(line)
