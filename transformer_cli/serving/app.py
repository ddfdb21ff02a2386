"""The addresses of the service, and what each answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from transformer_cli.attention_maps import page as attention_page
from transformer_cli.errors import DataError, ResourceError, TxError, UsageError
from transformer_cli.files import json_line
from transformer_cli.page import SHARED
from transformer_cli.serving.guard import Guard, failure
from transformer_cli.serving.messages import (
    AttentionRequest,
    Health,
    Refused,
    TranslationRequest,
    check_texts,
    read,
)
from transformer_cli.serving.metrics import Metrics
from transformer_cli.serving.openapi import document
from transformer_cli.serving.queue import Queue, Work
from transformer_cli.serving.service import Service

PAGE = Path(__file__).with_name("page")
POLICY = (
    "default-src 'none'; script-src 'self' {script}; style-src 'self' {style}; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Of the page, and so of the attention page in its frame."""


GONE = 499
"""The status, as others call it, of an answer that nobody waits for."""


class Endpoints:
    """One method for each address."""

    def __init__(self, service: Service, *, tell: Callable[[str], None]) -> None:
        """tell: says what should not have happened."""
        decoding, self.limits = service.settings.decoding, service.settings.serving
        self.service, self.tell, self.metrics = service, tell, Metrics()
        self.queue = Queue(
            most_together=1 if decoding.draws else decoding.batch_size,  # draws go by a line's number
            most_waiting=self.limits.max_waiting,
            deadline_s=self.limits.deadline_s,
            taken=self.metrics.taken,
        )
        self.metrics.watch(lambda: self.queue.n_waiting)
        self.document = json_line(document())

    async def translate(self, request: Request) -> Response:
        asked = await read(request, TranslationRequest, self.limits)
        check_texts(self.limits, texts=asked.texts, prefixes=asked.prefixes or ())
        search = asked.search
        options = search, self.service.check(search, asked.prefixes or ())
        found = await self._turn(request, self.service.translate, options, asked.sentences)
        self.metrics.translated(len(found))
        return _json({"translations": found})

    async def attention(self, request: Request) -> Response:
        asked = await read(request, AttentionRequest, self.limits)
        check_texts(self.limits, text=asked.text, target=asked.target or "")
        media_type = "text/html" if "text/html" in request.headers.get("accept", "") else "application/json"
        wanted = asked.target, asked.to, media_type == "text/html"
        [found] = await self._turn(request, self.service.attention, wanted, [asked.text])
        return Response(found, media_type=media_type)

    async def health(self, request: Request) -> Response:
        run, settings = self.service.runs[0], self.service.settings
        direction = run.config.data.directions[0]
        found = Health(
            status="ok",
            model=self.service.name,
            source=direction.source,
            target=direction.target,
            targets=list(run.targets),
            engine=self.service.translator.name,
            beam_size=settings.decoding.beam_size,
            n_best=self.service.n_best,
            waiting=self.queue.n_waiting,
        )
        return _json(found.model_dump())

    async def count(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type=self.metrics.content_type)

    async def describe(self, request: Request) -> Response:
        return Response(self.document, media_type="application/json")

    async def page(self, request: Request) -> Response:
        script, style = (f"'{value}'" for value in attention_page.PAGE.hashes)
        policy = {"Content-Security-Policy": POLICY.format(script=script, style=style)}
        return Response(_part(PAGE / "page.html"), media_type="text/html", headers=policy)

    async def script(self, request: Request) -> Response:
        parts = (SHARED / "dom.js", PAGE / "page.js")
        return Response("\n".join(map(_part, parts)), media_type="text/javascript")

    async def style(self, request: Request) -> Response:
        parts = (SHARED / "look.css", attention_page.PAGE.folder / "page.css", PAGE / "page.css")
        return Response("\n".join(map(_part, parts)), media_type="text/css")

    async def _turn(self, request: Request, work: Work, options: Hashable, texts: Sequence[Any]) -> list[Any]:
        """What the queue answers. Refused where whoever asked hangs up before that, and so waits no longer."""
        asking = asyncio.create_task(self.queue.ask(work, options, texts))
        leaving = asyncio.ensure_future(request.receive())  # of a body that was read, nothing else can come
        await asyncio.wait((asking, leaving), return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        if not asking.done():
            asking.cancel()
            raise Refused(GONE, "whoever asked is gone")
        return asking.result()

    @asynccontextmanager
    async def running(self, app: Starlette) -> AsyncIterator[None]:
        answering = asyncio.create_task(self.queue.answer())
        yield
        answering.cancel()
        with suppress(asyncio.CancelledError):
            await answering

    async def failed(self, request: Request, error: Exception) -> Response:
        """What to answer where something was raised."""
        if isinstance(error, Refused):
            return failure(error.status, error.message)
        if isinstance(error, HTTPException):
            known = {404: "there is nothing at this address", 405: "not by this method"}
            return failure(error.status_code, known.get(error.status_code, error.detail), headers=error.headers)
        if isinstance(error, TxError):
            status = 400 if isinstance(error, UsageError | DataError) else 500
            status = 503 if isinstance(error, ResourceError) else status
            if status >= 500:
                self.tell(error.message)
            return failure(status, error.message)
        self.tell(f"a bug in tx: {type(error).__name__}: {error}")
        return failure(500, "a bug in tx; the service's own log says which")


def make_app(service: Service, *, hosts: Collection[str] | None, tell: Callable[[str], None]) -> ASGIApp:
    """The service as an ASGI application. hosts: the names that it goes by; None for any. tell: what a log says."""
    here = Endpoints(service, tell=tell)
    routes = [
        Route("/", here.page),
        Route("/page.js", here.script),
        Route("/page.css", here.style),
        Route("/translate", here.translate, methods=["POST"]),
        Route("/attention", here.attention, methods=["POST"]),
        Route("/health", here.health),
        Route("/metrics", here.count),
        Route("/openapi.json", here.describe),
    ]
    handlers = dict.fromkeys((Refused, HTTPException, TxError, Exception), here.failed)
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=here.running)
    app.router.redirect_slashes = False  # with http in front, though it may be https to whoever asks
    return Guard(app, here.metrics, hosts=hosts, paths={route.path for route in routes})


def _json(value: object) -> Response:
    return Response(json_line(value), media_type="application/json")


def _part(path: Path) -> str:
    return path.read_text(encoding="utf-8")
