"""The service on a socket: uvicorn, told to be patient with nobody and to answer everybody before it stops."""

from __future__ import annotations

import asyncio
import errno
import functools
import resource
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from transformer_cli.errors import ResourceError, UsageError
from transformer_cli.serving.guard import failure
from transformer_cli.serving.messages import SLOW_S

MAX_CONNECTIONS = 500
"""Open at once; each takes one of the files that a process may have, often 1,024, on a Mac 256 until it asks."""
SPARE = 64
"""Files for all else, and for those who are to be refused."""
WAITING, AT_ONCE = 2048, 4
"""Connections that may wait to be let in, and how many are at a time: asyncio would let all in before it comes to
refusing the first, and where a file is lacking says so two thousand times."""
ALSO_END = [getattr(signal, name) for name in ("SIGHUP", "SIGUSR1") if hasattr(signal, name)]  # not everywhere
"""What ends a service, beside the signals that uvicorn knows."""
IDLE_S = 5
"""In which another request must begin on a connection that one was answered on."""
PHRASES = {400: "Bad Request", 408: "Request Timeout", 503: "Service Unavailable"}


class Protocol(H11Protocol):
    """A connection, closed where the head of a request is not sent, or an answer not read: uvicorn would wait for
    either forever. What is no HTTP is told so in JSON."""

    _waiting: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > room_for(MAX_CONNECTIONS):
            self._refuse(503, "too many connections: try again later")
        else:
            self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._wait_no_more()
        elif self._is_between_requests:
            self._wait_no_more()
            # It began with the answer, and ended when the rest of the body came.
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        elif self._waiting is None and not self.transport.is_closing():
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        self._look_no_more()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look_no_more()
        if n_bytes := self.transport.get_write_buffer_size():
            self._unread = self.loop.call_later(SLOW_S, self._drop_unread, n_bytes)

    def _drop_unread(self, before: int) -> None:
        """Unless some of what was to be read meanwhile was."""
        n_bytes = self.transport.get_write_buffer_size()
        if n_bytes >= before:
            self.transport.abort()
        elif n_bytes:
            self._unread = self.loop.call_later(SLOW_S, self._drop_unread, n_bytes)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is no HTTP request")

    @property
    def _is_between_requests(self) -> bool:
        """One was answered and all of it read; of the next nothing is there."""
        nothing_begun = self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
        return self.cycle is not None and nothing_begun and not self.transport.is_closing()

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(SLOW_S, self._wait_is_over)

    def _wait_is_over(self) -> None:
        """For the head of a request, or for the rest of a body whose answer is given: a second one would be taken for
        that to the next request."""
        if self.conn.their_state is h11.IDLE:
            self._refuse(408, f"no request was there within {SLOW_S:g} s")
        else:
            self.transport.close()

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _look_no_more(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _refuse(self, status: int, message: str) -> None:
        """Written as it is: there is no request to answer to."""
        answer = failure(status, message, headers={"Connection": "close"})
        head = [b"HTTP/1.1 %d %s" % (status, PHRASES[status].encode()), *map(b": ".join, answer.raw_headers)]
        self.transport.write(b"\r\n".join(head) + b"\r\n\r\n" + bytes(answer.body))
        self.transport.close()


@functools.cache
def room_for(connections: int) -> int:
    """How many of these may be open. The process is let have as many files, as far as the system does that: one that
    has no more left tells nobody, and keeps all waiting."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
            soft = allowed
        return max(1, min(connections, soft - SPARE))
    return connections


class Server(uvicorn.Server):
    """One to which a closed terminal, or a warning of Slurm's, is what SIGTERM is; uvicorn's dies of it, with whoever
    waits for an answer."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        is_main = threading.current_thread() is threading.main_thread()
        heard = [number for number in ALSO_END if is_main and signal.getsignal(number) is not signal.SIG_IGN]  # `nohup`
        with super().capture_signals():
            before = {number: signal.signal(number, self.handle_exit) for number in heard}
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)


class _Socket(socket.socket):
    """One at which more may wait than are let in at a time, which for asyncio is one number."""

    def listen(self, backlog: int = WAITING, /) -> None:
        super().listen(max(backlog, WAITING))


def bound_to(host: str, port: int) -> socket.socket:
    """A socket of that address, which nobody can reach yet. UsageError where there is no such host; ResourceError
    where the port is not to be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--host {host}: there is no such host", hint="127.0.0.1 is this machine alone") from error
    found = _Socket(family, kind, protocol)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a service that just ended keeps nobody waiting
        found.bind(address)
    except OSError as error:
        found.close()
        why = "is taken" if error.errno == errno.EADDRINUSE else f"is not to be had: {error.strerror}"
        raise ResourceError(
            f"port {port} of {host} {why}", hint="--port takes another; 0 is any that is free"
        ) from error
    return found


def address_of(bound: socket.socket) -> str:
    """As a browser takes it."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def server(app: ASGIApp, *, deadline_s: float) -> Server:
    """What serves until a signal, then answers what was accepted, and lets that signal do what it did before."""
    config = uvicorn.Config(
        app,
        http=Protocol,
        loop="asyncio",
        backlog=AT_ONCE,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=round(deadline_s + 2 * SLOW_S),
    )
    return Server(config)
