"""What all routes of the page share: connections, templates, and who is asking."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Coroutine, Mapping
from typing import Any, Self

import msgspec
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from mesh.bus.connection import Bus
from mesh.bus.roles import ADMIN
from mesh.client import Client
from mesh.errors import MeshError, UsageWrong
from mesh.ops.feed import IndexFeed, end
from mesh.ops.log import checked_id
from mesh.service.printable import short
from mesh.ui import Keys, Options
from mesh.ui.security import Security, Visit
from mesh.ui.story import Stories, environment


class ReadOnly(MeshError, code="ui.read_only"):
    """The page only shows; the text tells how it could act."""


class Page:
    """One served page: `async with Page(keys, options, port) as page`.

    Args:
        port: the port that it listens on.
    """

    def __init__(self, keys: Keys, options: Options, port: int) -> None:
        self.keys, self.options = keys, options
        self.security = Security(options, port)
        self.stopping = asyncio.Event()
        """Set when the page ends, which ends all streams."""
        self._templates = environment()
        self._stack = contextlib.AsyncExitStack()
        self._buses: dict[str, asyncio.Task[Bus | None]] = {}
        self._clients: dict[str, asyncio.Task[Client]] = {}
        self.streams = Counter[str]()
        """Number of open live views, by session."""
        self._work = set[asyncio.Task[None]]()

    async def __aenter__(self) -> Self:
        """Connect. Raises as `Access.connect`."""
        self.bus = await self._stack.enter_async_context(await self.keys.reader.connect())
        """A viewer's or an operator's connection, for everything that is shown."""
        self.stories = Stories(self.bus)
        feed = IndexFeed(self.bus, self.options.store, anew=self.options.rebuild)
        self.feed = await self._stack.enter_async_context(feed)
        feeding = asyncio.create_task(self.feed.run())

        self._stack.push_async_callback(end, feeding)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.stopping.set()
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        await self._stack.aclose()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do some work that outlives its request. It is cancelled when the page ends."""
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    # --- connections ------------------------------------------------------------------------------

    async def bus_of(self, name: str) -> Bus | None:
        """Return the shared connection of a name; None without its key. Raises as `Access.connect`."""
        opening = self._buses.get(name)
        if opening is None or (opening.done() and opening.exception() is not None):
            opening = self._buses[name] = asyncio.create_task(self._connect(name))
        return await asyncio.shield(opening)

    async def _connect(self, name: str) -> Bus | None:
        access = self.keys.of(name)
        return None if access is None else await self._stack.enter_async_context(await access.connect())

    async def client_of(self, name: str) -> Client | None:
        """Return the shared client of a name, like `bus_of`."""
        bus = await self.bus_of(name)
        if bus is None:
            return None
        if name not in self._clients:
            self._clients[name] = asyncio.create_task(Client.on(bus, name))
        return await asyncio.shield(self._clients[name])

    async def operator(self) -> Bus:
        """Return the connection that the page acts with. Raises ReadOnly."""
        name = self.keys.operator
        bus = None if name is None or not self.options.allow_write else await self.bus_of(name)
        if bus is None:
            raise ReadOnly("this page is read-only: start it with --allow-write and an operator's key")
        return bus

    async def admin(self) -> Bus:
        """Return the admin's connection. Raises ReadOnly."""
        await self.operator()
        bus = await self.bus_of(ADMIN)
        if bus is None:
            raise ReadOnly("this needs the admin's key, which this page does not hold: --admin-key FILE")
        return bus

    # --- answers ----------------------------------------------------------------------------------

    def render(self, request: Request, template: str, *, status: int = 200, **context: Any) -> Response:
        """Return a page, or a piece of one, made by a template."""
        visit: Visit = request.scope["mesh.visit"]
        request.scope["mesh.visit"] = msgspec.structs.replace(visit, told="")  # it is shown once
        # A view that has just read the queue has counted it; others use the feed, which may lag a moment.
        for_people = self.feed.index.count("status:human")
        made = self._templates.get_template(template).render(
            {"for_people": for_people} | context,
            path=request.url.path,
            query=dict(request.query_params),
            csrf=self.security.csrf(visit),
            by=self.person(request),
            done=visit.told,
            can_write=self.options.allow_write and self.keys.operator is not None,
            has_token=self.options.token is not None,
        )
        return HTMLResponse(made, status)

    def done(self, request: Request, path: str, words: str) -> Response:
        """Return the answer to an obeyed form: go to a view, which reports it."""
        request.scope["mesh.visit"] = msgspec.structs.replace(
            request.scope["mesh.visit"], told=short(words, 300)
        )
        return RedirectResponse(path, 303)

    def person(self, request: Request) -> str:
        """Return the name under which a visitor acts; empty if none was given."""
        visit: Visit = request.scope["mesh.visit"]
        return self.options.by or visit.by

    def login(self, request: Request, goes_on: str, *, wrong: bool) -> Response:
        """Return the form that asks for the token; `wrong`: another one was shown."""
        return self.render(request, "login.html", status=403 if wrong else 200, next=goes_on, wrong=wrong)

    def error(self, request: Request, status: int, text: str, code: str, *, awaits: str = "") -> Response:
        """Return the page that reports an error; it reloads until the request that it `awaits` is there."""
        return self.render(
            request, "error.html", status=status, status_code=status, text=text, code=code, awaits=awaits
        )


class RequestIdConvertor(Convertor[str]):
    """A request's id in a path, checked before any route sees it: `{request:request_id}`."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return checked_id(value)

    def to_string(self, value: str) -> str:
        return checked_id(value)


register_url_convertor("request_id", RequestIdConvertor())


def is_piece(request: Request) -> bool:
    """Return True if htmx asks for a piece of a page, to insert it into the current one."""
    return "hx-request" in request.headers


# --- what visitors enter --------------------------------------------------------------------------


MOST = 2**53
"""The largest number that every browser writes exactly."""


def number(fields: Mapping[str, str], name: str, otherwise: int | None) -> int | None:
    """Return a non-negative whole number; `otherwise` if the field is empty. Raises UsageWrong."""
    value = fields.get(name, "").strip()
    if not value:
        return otherwise
    if not (value.isascii() and value.isdecimal()) or len(value) > 16 or int(value) > MOST:
        raise UsageWrong(f"{name} is a whole number, not {value[:40]!r}")
    return int(value)
