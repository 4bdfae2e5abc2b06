"""`mesh replay --policy …` and `--fleet …`: what would have gone another way."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mesh.cli.exits import Exit, Leave
from mesh.cli.output import emit, note, say, write_page
from mesh.ops.policies import policy_at
from mesh.replay.whatif import Divergence, Summary, judgement_in_words, summary_in_words
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
    came: Sequence[tuple[Summary, list[Divergence]]],
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
        emit([{"tried": name, "summary": summary, "found": found} for name, (summary, found) in named])
    else:
        for name, (summary, found) in named:
            _tell_one(name if len(tried) > 1 else "", summary, found)
    if html is not None:
        from mesh.ui.replayed import tried_as_html

        write_page(html, tried_as_html((name, summary, found) for name, (summary, found) in named))
    if any(summary.differ or summary.unreadable for _, (summary, _) in named):
        raise Leave(Exit.FAILED)


def _tell_one(name: str, summary: Summary, found: Sequence[Divergence]) -> None:
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
