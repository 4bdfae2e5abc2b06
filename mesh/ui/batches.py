"""Views: one action for all requests of a filter, from the choice to what came of each.

Whoever chooses sees how many requests it is for, and the first of them. Then exactly these messages are sent,
under one batch, after one confirmation in the same session. They are kept in the page's memory until then:
a filter that is read again may find others. What a batch did is in the log, and goes on from anywhere.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from mesh.bus.connection import Bus
from mesh.errors import Impossible, MeshError, NotFound, UsageWrong
from mesh.ops import bulk, dead_letters
from mesh.ops.batch import QUIET_S, Batch, Came, checked_batch, new_batch
from mesh.ops.bulk import Chosen, Deed
from mesh.ops.queue import people_of
from mesh.ops.where import parse
from mesh.service.logs import get_logger
from mesh.service.printable import as_text
from mesh.ui.page import Page, is_piece, number
from mesh.ui.people import decision_in
from mesh.ui.security import Visit

_log = get_logger(__name__)
USUAL_LIMIT, MOST = 1_000, 10_000
"""How many requests a batch is for unless the visitor says otherwise, and at most."""
MOST_KEPT = 20
"""Batches that the page remembers; the oldest is forgotten."""
_SHOWN = 200
"""Requests whose outcome is listed."""


class ManyAction(NamedTuple):
    """What can be done to many requests, or to many dead letters."""

    do: str
    done: str
    about: str
    deed: Callable[[Mapping[str, str], str], Deed] | None
    """Returns it for a filled form and the name of who acts, or raises UsageWrong; None for dead letters."""
    what: str = "request"


def _reason(form: Mapping[str, str]) -> str:
    return form.get("reason", "").strip()


ACTIONS = {
    "cancel": ManyAction(
        "cancel",
        "cancelled",
        "open requests end",
        lambda form, by: bulk.cancelling(by=by, reason=_reason(form)),
    ),
    "freeze": ManyAction(
        "freeze",
        "frozen",
        "open requests wait; nothing is lost",
        lambda form, by: bulk.freezing(by=by, reason=_reason(form)),
    ),
    "thaw": ManyAction(
        "thaw",
        "thawed",
        "frozen requests go on",
        lambda form, by: bulk.thawing(by=by, reason=_reason(form)),
    ),
    "rerun": ManyAction(
        "rerun",
        "rerun",
        "those that came to nothing begin anew; their effects can happen again",
        lambda form, by: bulk.Rerunning(),
    ),
    "resolve": ManyAction(
        "resolve",
        "resolved",
        "every escalation of each is decided so",
        lambda form, by: bulk.resolving({"by": by, **decision_in(form)}),
    ),
    "resend": ManyAction("put back", "decided", "messages that were not decided since", None, "letter"),
}
_IN_THE_LIST = ("cancel", "freeze", "thaw", "rerun")
"""Those that the list of requests offers; the others begin at the views of people and of dead letters."""


class KeptBatch:
    """A batch on the page: chosen, then running, then done or stopped.

    Args:
        session: the id of the session that chose it. No other may confirm it.
        by: the name under which that was.
        said: what each of the messages says, by field.
    """

    def __init__(
        self,
        action: ManyAction,
        where: str,
        chosen: Chosen,
        *,
        session: str,
        by: str,
        said: Mapping[str, str] | None = None,
    ) -> None:
        self.action, self.where, self.chosen = action, where, chosen
        self.session, self.by, self.said = session, by, said or {}
        self.name = chosen.batch or new_batch()
        """Its id; of letters, whose messages keep the ids that they have, only the page knows it."""
        self.state: Literal["chosen", "running", "done", "stopped"] = "chosen"
        self.trouble = ""
        """Why it stopped."""
        self._sending: Batch | None = None

    @property
    def came(self) -> list[Came]:
        """Return what came of each message that was sent."""
        return [] if self._sending is None else self._sending.came

    def begin(self, bus: Bus, *, quiet_s: float = QUIET_S) -> None:
        """Be running from now on: nobody else begins it.

        Args:
            quiet_s: how long the next decision is waited for.
        """
        self.state, self.trouble = "running", ""
        self._sending = Batch(bus, self.chosen.orders, quiet_s=quiet_s)

    async def run(self) -> None:
        """Send what was chosen, and wait for the decisions."""
        assert self._sending is not None
        try:
            await self._sending.run()
        except (MeshError, TimeoutError) as error:
            self.state, self.trouble = "stopped", str(error)
        except BaseException:
            self.state, self.trouble = "stopped", "it was interrupted"
            raise
        else:
            self.state = "done"


class KeptBatches:
    """The batches that the page remembers."""

    def __init__(self) -> None:
        self._kept = OrderedDict[str, KeptBatch]()

    def add(self, batch: KeptBatch) -> None:
        """Remember a batch, in place of the oldest that is not running. Raises Impossible if all are."""
        if len(self._kept) >= MOST_KEPT:
            idle = next((name for name, each in self._kept.items() if each.state != "running"), None)
            if idle is None:
                raise Impossible("too many batches are running on this page: wait for one of them")
            del self._kept[idle]
        self._kept[batch.name] = batch

    def get(self, name: str) -> KeptBatch:
        """Return a batch. Raises NotFound, UsageWrong."""
        if (found := self._kept.get(checked_batch(name))) is None:
            raise NotFound(
                f"this page does not remember {name}: choose again. What it did is in the list of requests, "
                f"under batch={name}"
            )
        return found


def routes(page: Page) -> list[Route]:
    kept = KeptBatches()

    async def new(request: Request) -> Response:
        return await _form(page, request, request.query_params)

    async def choose(request: Request) -> Response:
        await page.operator()
        form = request.scope["mesh.form"]
        try:
            batch = await _chosen(page, form, _visit(request), page.person(request))
        except UsageWrong as wrong:
            return await _form(page, request, form, wrong=str(wrong))
        kept.add(batch)
        return RedirectResponse(f"/batches/{batch.name}", 303)

    async def one(request: Request) -> Response:
        batch = kept.get(request.path_params["batch"])
        came = batch.came
        told = [each for each in came if each.outcome != "done" or each.decided_in != each.request]
        return page.render(
            request,
            "batch_piece.html" if is_piece(request) else "batch.html",
            batch=batch,
            counts=Counter(each.outcome for each in came),
            came=told[:_SHOWN],
            more=len(told) - _SHOWN,
            may_confirm=_may_confirm(page, request, batch),
        )

    async def confirm(request: Request) -> Response:
        batch = kept.get(request.path_params["batch"])
        if not _may_confirm(page, request, batch):
            raise Impossible(f"{batch.by} chose it, in another session; nothing was done: choose it yourself")
        bus = await _bus_for(page, batch.action)
        if batch.state in ("chosen", "stopped") and batch.chosen.orders:
            if batch.action.deed is None:  # the log of requests has no place for who did it
                _log.info("ui_dead_letters_resent", by=batch.by, letters=batch.chosen.requests)
            batch.begin(bus)
            page.run(batch.run())
        return RedirectResponse(f"/batches/{batch.name}", 303)

    return [
        Route("/batches/new", new),
        Route("/batches", choose, methods=["POST"]),
        Route("/batches/{batch}", one),
        Route("/batches/{batch}", confirm, methods=["POST"]),
    ]


def _visit(request: Request) -> Visit:
    visit: Visit = request.scope["mesh.visit"]
    return visit


def _may_confirm(page: Page, request: Request, batch: KeptBatch) -> bool:
    return (batch.session, batch.by) == (_visit(request).id, page.person(request))


async def _bus_for(page: Page, action: ManyAction) -> Bus:
    """Return the connection that may do it. Raises ReadOnly."""
    return await (page.admin() if action.deed is None else page.operator())


async def _chosen(page: Page, form: Mapping[str, str], visit: Visit, by: str) -> KeptBatch:
    """Return what a form asks for. Raises UsageWrong, Impossible, ReadOnly, OldForm, BusError."""
    action, where = ACTIONS.get(form.get("do", "")), form.get("where", "").strip()
    if action is None:
        raise UsageWrong("choose what to do")
    if not where:
        raise UsageWrong("say which requests: every request of the mesh is too many")
    wanted, limit = parse(where), number(form, "limit", USUAL_LIMIT)
    if limit is None or not 1 <= limit <= MOST:
        raise UsageWrong(f"a batch is for 1 to {MOST:,} {action.what}s")
    folder = page.options.store
    if action.deed is None:
        code = form.get("code", "").strip() or None
        bus = await _bus_for(page, action)
        chosen = await dead_letters.choose(bus, wanted, code=code, limit=limit, folder=folder)
    else:
        deed = action.deed(form, by)
        bus = await _bus_for(page, action)
        chosen = await bulk.choose(bus, deed, wanted, limit=limit, folder=folder)
    return KeptBatch(action, where, chosen, session=visit.id, by=by, said=_said(action, form))


def _said(action: ManyAction, form: Mapping[str, str]) -> dict[str, str]:
    """Return what the messages of a form say, as far as the visitor chose it."""
    fields: Mapping[str, Any] = {"reason": _reason(form)}
    if action is ACTIONS["resolve"]:
        fields = decision_in(form)
    elif action is ACTIONS["rerun"] or action is ACTIONS["resend"]:
        fields = {}
    return {name: as_text(value) for name, value in fields.items() if value}


async def _form(page: Page, request: Request, given: Mapping[str, str], *, wrong: str = "") -> Response:
    return page.render(
        request,
        "batch_new.html",
        status=400 if wrong else 200,
        given=given,
        wrong=wrong,
        actions={name: ACTIONS[name] for name in _IN_THE_LIST},
        agents=sorted((await people_of(page.bus)).agents) if given.get("do") == "resolve" else [],
        limit=USUAL_LIMIT,
        most=MOST,
    )
