"""A service in a thread of this process, asked over a socket as anybody would."""

from __future__ import annotations

import http.client
import json
import threading
import time
from dataclasses import dataclass

import pytest

pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")

from transformer_cli.serving.app import make_app
from transformer_cli.serving.guard import names
from transformer_cli.serving.server import bound_to, server


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


class Served:
    """told: what the service said to its log."""

    def __init__(self, service, *, allowed_hosts=()):
        self.told = []
        self.socket = bound_to("127.0.0.1", 0)
        self.port = self.socket.getsockname()[1]
        app = make_app(service, hosts=names(self.socket, allowed_hosts), tell=self.told.append)
        self.socket.listen()
        self.server = server(app, deadline_s=5)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]})
        self.thread.start()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
        self.thread.join(20)
        assert not self.thread.is_alive()

    def stop(self):
        self.server.should_exit = True

    def get(self, path, **headers):
        return self.send("GET", path, None, headers)

    def post(self, path, body, **headers):
        """body: bytes as they are, or what becomes JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.send("POST", path, data, {"content-type": "application/json"} | headers)

    def send(self, method, path, data, headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items() if value is not None}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, data, headers)
            found = connection.getresponse()
            return Answer(found.status, {name.lower(): value for name, value in found.getheaders()}, found.read())
        finally:
            connection.close()

    def translate(self, *texts, **options):
        answer = self.post("/translate", {"texts": texts, **options})
        assert answer.status == 200, answer.body
        return answer.json["translations"]

    def wait_for(self, line):
        """Until /metrics has this line."""
        until = time.monotonic() + 10
        while line not in self.get("/metrics").body.decode().split("\n"):
            assert time.monotonic() < until, self.get("/metrics").body.decode()
            time.sleep(0.01)
