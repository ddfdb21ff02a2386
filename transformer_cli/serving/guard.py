"""What every request passes: whose it may be, what is counted of it, and what browsers are told of each answer."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Collection, Mapping
from urllib.parse import unquote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transformer_cli.files import json_line
from transformer_cli.serving.messages import Failure
from transformer_cli.serving.metrics import Metrics

LOCAL = ("localhost", "127.0.0.1", "::1")
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Of every answer that does not say otherwise."""


def failure(status: int, message: str, *, headers: Mapping[str, str] | None = None) -> Response:
    """An answer that is none, and why."""
    body = json_line(Failure(error=message).model_dump())
    again = {"Retry-After": "1"} if status == 503 else {}
    return Response(body, status, headers=again | dict(headers or {}), media_type="application/json")


class Guard:
    """Around an application."""

    def __init__(
        self, app: ASGIApp, metrics: Metrics, *, hosts: Collection[str] | None, paths: Collection[str]
    ) -> None:
        """hosts: names that may be asked for; None for any. paths: those that are counted by name."""
        self.app, self.metrics, self.hosts, self.paths = app, metrics, hosts, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope = in_origin_form(scope)
        began, status = time.perf_counter(), 500

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        stranger = self._stranger(Headers(scope=scope))
        try:
            await (self.app if stranger is None else failure(403, stranger))(scope, receive, answer)
        finally:
            path = scope["path"] if scope["path"] in self.paths else "other"
            self.metrics.request(path, status, time.perf_counter() - began)

    def _stranger(self, headers: Headers) -> str | None:
        """Why this request is refused, if it is: another website's name leads here, or its page sends it."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if self.hosts is not None and _name(f"//{host}") not in self.hosts:
            return "this service does not go by that name; serving.allowed_hosts names others"
        if origin is None or origin.partition("://")[2].lower() == host.lower():
            return None
        return "a page from elsewhere may not ask this service"


def in_origin_form(scope: Scope) -> Scope:
    """The same of a request for a whole address, as a proxy is asked: what it names counts, and no header Host (RFC
    9112, 3.2.2)."""
    scheme, _, rest = scope["raw_path"].partition(b"://")
    if scheme.lower() not in (b"http", b"https"):
        return scope
    host, _, path = rest.partition(b"/")
    headers = [(b"host", host), *(header for header in scope["headers"] if header[0] != b"host")]
    return {**scope, "path": "/" + unquote(path.decode()), "raw_path": b"/" + path, "headers": headers}


def names(bound: socket.socket, allowed: Collection[str]) -> frozenset[str] | None:
    """Those that a service on this socket goes by; None for any. Other websites' names may be made to lead to the
    machine that a browser runs on, and then their pages could ask what only this machine may."""
    address = bound.getsockname()[0]
    if not ipaddress.ip_address(address).is_loopback and not allowed:
        return None
    return frozenset({*LOCAL, address, *map(str.lower, allowed)})


def _name(address: str) -> str | None:
    """Of the host, without its port; None for what is no address."""
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None
