"""`tx serve` as a program: what it says, what it refuses before it begins, and how it ends."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from transformer_cli.cli.app import main
from transformer_cli.errors import ConfigError, ModelError, ResourceError, UsageError

pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")


class Started:
    """`tx serve`, once it has said where, to people and to programs."""

    def __init__(self, warm, *options):
        command = [*warm, "serve", "--json", "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.ready = json.loads(self.process.stdout.readline())
        self.said = [self.process.stderr.readline().rstrip("\n") for _ in range(3)]
        self.port = int(self.ready["address"].rpartition(":")[2])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
        try:
            return connection.getresponse().read()
        finally:
            connection.close()


@pytest.mark.parametrize(
    ("number", "farewell"),
    [
        (signal.SIGTERM, "terminated"),
        (signal.SIGINT, "interrupted"),
        (signal.SIGHUP, "the terminal was closed"),
        (signal.SIGUSR1, "ended by SIGUSR1"),
    ],
)
def test_it_says_where_answers_and_ends_by_a_signal_once_all_is_answered(here, warm, number, farewell):
    texts = ["der hund schläft nicht"] * 100
    with Started(warm) as served, ThreadPoolExecutor(4) as pool:
        assert served.said[0].startswith("model: runs/tiny/checkpoints/step-")
        assert served.said[1:] == ["engine: native", f"serving at http://127.0.0.1:{served.port}, until Ctrl-C"]
        assert served.ready["model"].startswith("tiny, step-")
        assert served.ready["engine"] == "native"
        asked = [pool.submit(served.ask, "POST", "/translate", {"texts": texts, "beam_size": n}) for n in (7, 8, 9, 10)]
        while b"tx_waiting_texts 300.0" not in served.ask("GET", "/metrics"):
            assert served.process.poll() is None
        served.process.send_signal(number)
        assert all(len(json.loads(one.result())["translations"]) == 100 for one in asked)
        out, said = served.process.communicate(timeout=30)
        assert (served.process.returncode, out, said) == (128 + number, "", f"{farewell}\n")


def test_quiet_says_nothing_and_hostile_bytes_are_no_news(here, warm):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*warm, "serve", "--quiet", "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            client = connected(port)
            client.sendall(b"\x00\x01\x02\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 400 ")
            client.close()
            process.terminate()
            assert process.communicate(timeout=30)[1] == "terminated\n"
        finally:
            process.kill()


def connected(port):
    for _ in range(1000):
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=10)
        except ConnectionError:
            time.sleep(0.01)
    raise AssertionError("nobody listens")


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        (["--host", "no.such.host.invalid"], UsageError, "--host no.such.host.invalid: there is no such host"),
        (["--host", "192.0.2.1"], ResourceError, "port 8000 of 192.0.2.1 is not to be had: Cannot assign"),
        (["-m", "nothing"], ModelError, "nothing"),
        (["--set", "decoding.workers=2"], UsageError, "decoding.workers: a service translates in one process"),
        (["--set", "serving.deadline_s=0"], ConfigError, "deadline_s"),
        (["--set", "model.d_model=8"], UsageError, "model: this model is trained; only decoding, det"),
        (["--set", "decoding.banned=[▁nothing]"], UsageError, "decoding.banned: the target vocabulary has no piece"),
    ],
)
def test_what_cannot_be_served_is_said_at_once(here, options, error, said):
    with pytest.raises(error, match=re.escape(said)):
        main(["serve", *(["--port", "0"] if "--host" not in options else []), *options])


def test_a_port_that_is_taken_is_said_before_the_model_is_loaded(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformer_cli.checkpoints.store", None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ResourceError, match=f"port {port} of 127.0.0.1 is taken") as refused:
            main(["serve", "--port", str(port)])
    assert refused.value.hint == "--port takes another; 0 is any that is free"
    assert refused.value.exit_code == 5


@pytest.mark.parametrize("package", ["starlette", "uvicorn", "prometheus_client"])
def test_a_missing_extra_is_named_with_what_to_install(here, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ResourceError, match=f"needs the package {package}, which is not installed") as refused:
        main(["serve"])
    assert refused.value.hint.startswith("install it with tx: pip install ")
    assert refused.value.hint.endswith("[serve]'")
    assert refused.value.exit_code == 5


def test_a_run_is_served_on_when_its_checkpoints_are_gone(trained_run, tmp_path, warm):
    shutil.copytree(trained_run, tmp_path / "run")
    with Started(warm, "-m", "run") as served:
        shutil.rmtree(tmp_path / "run")
        found = json.loads(served.ask("POST", "/translate", {"texts": ["der hund trinkt"], "alignments": True}))
        assert found["translations"][0]["translation"] == "the dog drinks"
        assert b'"blocks"' in served.ask("POST", "/attention", {"text": "der hund trinkt"})
