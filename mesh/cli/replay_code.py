"""`mesh replay --agent`: agents' code on this disk, over what a log recorded."""

import functools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from mesh import ops
from mesh.cli.exits import Exit, Leave
from mesh.cli.junit import JunitReport
from mesh.cli.options import READERS, Where, agreed, file_at
from mesh.cli.output import emit, note, paged, say, table, write_page
from mesh.errors import UsageWrong
from mesh.replay.code import Replayed
from mesh.replay.differences import wants_a_model
from mesh.replay.export import Requests, of_shares
from mesh.replay.outside import KINDS as OUTSIDE
from mesh.replay.processes import LIMIT_S, RoundTally, replay_file
from mesh.replay.worker import Job
from mesh.service.printable import counted
from mesh.settings import ARTIFACTS, load_settings, store_in
from protocol.domain.budget import NOTHING, plus
from protocol.wire.commands import Usage
from protocol.wire.ids import is_name

if TYPE_CHECKING:
    from mesh.ops.where import Filter

_LIVE_LIMIT_S = 120.0
"""How long a round may be silent whose model is asked."""
_REPORTED_EACH = 10_000
"""Rounds between two remarks on how far it is."""


def pairs_of(what: str, given: Iterable[str]) -> dict[str, str]:
    """Return `NAME=VALUE` pairs by name. Raises UsageWrong."""
    found: dict[str, str] = {}
    for each in given:
        name, _, value = each.partition("=")
        if not is_name(name) or not value:
            raise UsageWrong(f"not an agent with its {what}: {each!r}; write billing={_EXAMPLES[what]}")
        if name in found:
            raise UsageWrong(f"{name} has two {what}s")
        found[name] = value
    return found


_EXAMPLES = {"code": "shop.billing:agent", "allowance": "clock,files"}


def allowed_in(given: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return by agent what its code may read outside its record. Raises UsageWrong."""
    found = {name: tuple(kinds.split(",")) for name, kinds in pairs_of("allowance", given).items()}
    for kind in (kind for kinds in found.values() for kind in kinds):
        if kind not in OUTSIDE:
            raise UsageWrong(f"--allow knows no {kind!r}: there are {', '.join(OUTSIDE)}")
    return found


async def replay_code(
    where: Where,
    source: str | Path | None,
    agents: Iterable[str],
    *,
    everything: bool,
    wanted: "Filter | None",
    since: int | None,
    allow: Iterable[str],
    jobs: int | None,
    limit: float | None,
    live_model: int | None,
    yes: bool,
    junit: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Replay agents' code over a source, and print the outcome."""
    if (source is None) != everything:
        raise UsageWrong("either a request or a file, or --all")
    code = pairs_of("code", agents)
    job = Job(path="", agents=code, since=since or 0, allowed=allowed_in(allow), artifacts=artifacts())
    with ops.recording.recorded_file() as kept:
        if isinstance(source, Path):
            path = file_at(source).absolute()
        else:
            path = kept
            async with await where.connect(*READERS) as bus:
                requests = () if source is None else (source,)
                with path.open("wb") as file:
                    async for line in ops.recording.recorded_lines(bus, requests, code, since=job.since):
                        file.write(line + b"\n")
        only = None if wanted is None else await _wanted_in(path, wanted)
        job = replace(job, path=str(path), only=only)
        run = functools.partial(
            replay_file, jobs=jobs or min(os.cpu_count() or 1, 8), keep_same=junit is not None
        )
        tally = await run(job, limit_s=limit or LIMIT_S, on_round=_Progress())
        if live_model is not None and (rounds := _to_ask(tally, live_model)):
            await _require_yes(rounds, yes=yes)
            again = await run(_asking(job, rounds), limit_s=limit or _LIVE_LIMIT_S)
            tally.replace(rounds, again)
            note(f"the model was asked: {_cost_in_words(again.models)}")
    if junit is not None:
        write_junit(junit, tally)
    if as_json:
        emit(as_program_reads(tally))
    else:
        _print(tally)
    if html is not None:
        from mesh.ui.replayed import code_as_html

        write_page(html, code_as_html(tally))
    if tally.different:
        raise Leave(Exit.FAILED)
    if not tally.judged:
        note("nothing was replayable" if tally.rounds else f"no round of {', '.join(code)} is there")
        raise Leave(Exit.NOTHING_JUDGED)


# --- asking a model anew --------------------------------------------------------------------------------


def _to_ask(tally: RoundTally, turns: int) -> list[Replayed]:
    """Return the rounds of the first so many turns in which a model would be asked otherwise."""
    wanting = [each for each in tally.different if each.difference and wants_a_model(each.difference)]
    named = list(dict.fromkeys((each.request, each.turn) for each in wanting))
    if not named:
        note("no turn asks its model otherwise than it did, so none is asked")
    elif len(named) > turns:
        note(f"{counted(len(named), 'turn')} ask the model otherwise; {turns} of them ask it anew")
    chosen = frozenset(named[:turns])
    return [each for each in wanting if (each.request, each.turn) in chosen]


async def _require_yes(rounds: Sequence[Replayed], *, yes: bool) -> None:
    """Say what asking may cost, and ask. Raises UsageWrong without a terminal, Leave for a no."""
    then = functools.reduce(plus, (each.models or NOTHING for each in rounds), NOTHING)
    turns = len({(each.request, each.turn) for each in rounds})
    note(f"{counted(turns, 'turn')} ask the model anew. In the record they cost {_cost_in_words(then)}")
    if not yes and not await agreed("ask it", "to ask it"):
        note("no model was asked")
        raise Leave(Exit.FAILED)


def _asking(job: Job, rounds: Sequence[Replayed]) -> Job:
    live = tuple((each.request, each.turn, each.round) for each in rounds)
    return replace(job, only=tuple({request for request, _, _ in live}), live=live)


def _cost_in_words(usage: Usage) -> str:
    calls, tokens = counted(usage.model_calls, "call"), counted(usage.tokens, "token")
    return f"{calls}, {tokens}, {usage.nano_dollars / 1e9:.6f} dollars"


async def _wanted_in(path: Path, wanted: "Filter") -> tuple[str, ...]:
    """Return the requests of a file to which a filter applies. Raises ExportInvalid."""
    found = await of_shares(path, functools.partial(_ids, wanted))
    return tuple(request for share in found for request in share)


def _ids(wanted: "Filter", requests: Requests) -> list[str]:
    headers = (ops.log.header_of(bodies[0]) for _, bodies in requests if ops.where.is_wanted(wanted, bodies))
    return [header.request for header in headers if header is not None]


def artifacts() -> str:
    """Return the named store of artifacts, or the folder of this project; empty if there is none."""
    named = load_settings().artifacts
    if not named and not (Path.cwd() / ARTIFACTS).is_dir():
        return ""
    return store_in(named or "", Path.cwd())


class _Progress:
    """Remarks on the progress of a long replay."""

    def __init__(self) -> None:
        self._reported = 0

    def __call__(self, rounds: int) -> None:
        if rounds - self._reported >= _REPORTED_EACH:
            self._reported = rounds
            note(f"{counted(rounds, 'round')} so far")


# --- for people -----------------------------------------------------------------------------------------


def _print(tally: RoundTally) -> None:
    with paged():
        heads, rows = tally.table()
        if rows:
            table(heads, rows)
        by_request = tally.by_request
        for first, *rest in by_request:
            more = f" (and in {counted(len(rest), 'later round')})" if rest else ""
            say(line_of(first) + more)
            if first.difference is not None and first.difference.diff and len(by_request) == 1:
                for line in first.difference.diff.splitlines():
                    say(f"    {line}")
    for (agent, why), count in sorted(tally.reasons.items()):
        of = f" of {agent}" if agent else ""
        note(f"{counted(count, 'round' if agent else 'request')}{of} not replayable: {why}")


def line_of(each: Replayed) -> str:
    """Return what differs in a round, in one line."""
    assert each.difference is not None
    version = f" v{each.version}→disk" if each.version else ""
    verdict = f"; {each.difference.verdict}" if each.difference.verdict else ""
    what = f"{each.difference.kind}: {each.difference.says}{verdict}"
    return f"{each.request}  event {each.n}  {each.agent}{version}  {what}"


# --- for programs ---------------------------------------------------------------------------------------


def as_program_reads(tally: RoundTally) -> dict[str, Any]:
    """Return everything about a replay of agents' code."""
    return {
        "rounds": [
            {"agent": agent, "kind": kind, "count": count}
            for (agent, kind), count in sorted(tally.rounds.items())
        ],
        "different": [_fields(each) for each in tally.different],
        "not_replayable": [
            {"agent": agent, "why": why, "count": count}
            for (agent, why), count in sorted(tally.reasons.items())
        ],
    }


def _fields(each: Replayed) -> dict[str, Any]:
    assert each.difference is not None
    known = each._asdict()
    return {name: known[name] for name in ("request", "agent", "turn", "round", "n", "version")} | (
        each.difference._asdict()
    )


def write_junit(path: Path, tally: RoundTally) -> None:
    """Write a report in the form that CI servers read: a suite per agent, a case per round."""
    report = JunitReport()

    def named(request: str, n: int | None) -> str:
        return request if n is None or n < 0 else f"{request} event {n}"

    for request, agent, n in tally.same or ():
        report.passed(agent or "log", named(request, n))
    for each in tally.different:
        assert each.difference is not None
        report.failed(
            each.agent or "log",
            named(each.request, each.n),
            kind=each.difference.kind,
            message=line_of(each),
            text=each.difference.diff,
        )
    for each in (*tally.left_out, *tally.unreadable):
        report.skipped(each.agent or "log", named(each.request, each.n), why=each.why)
    report.write(path)
