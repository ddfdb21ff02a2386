"""Whatever comes over the socket: one clear answer in JSON, and nobody else notices."""

from __future__ import annotations

import http.client
import json
import resource
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from served import Served

from transformer_cli.errors import DivergedError
from transformer_cli.serving import messages, server, service

LINE = "ich mochte ein bier"


def error(answer):
    """The one thing that a refusal says."""
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json) == ["error"]
    return answer.json["error"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "the body is not JSON in UTF-8: EOF"),
        (b'{"texts": ["ein bier"]', "the body is not JSON in UTF-8: EOF while parsing an object"),
        (b'{"texts": ["\xff"]}', "the body is not JSON in UTF-8: "),
        (b'{"texts": ["\x00"]}', "the body is not JSON in UTF-8: control character"),
        (b'{"texts": ["\\ud83e"]}', "the body is not JSON in UTF-8: "),
        ("ein bier".encode("utf-16"), "the body is not JSON in UTF-8: "),
        (b"[" * 50_000, "the body is not JSON in UTF-8: recursion limit"),
        (b'{"texts": ["a"], "length_penalty": NaN}', "length_penalty: nan is not a finite number"),
        (b'"ein bier"', "the body: 'ein bier' is not an object"),
        (b"{}", "texts: it is missing"),
        (b'{"texts": []}', "texts: [] is not a list of at least 1"),
        (b'{"texts": "ein bier"}', "texts: 'ein bier' is not a list"),
        (b'{"texts": ["a", 1]}', "texts[1]: 1 is not text"),
        (b'{"texts": ["a"], "beam": 5}', "beam: nothing of that name belongs here"),
        (b'{"texts": ["a"], "beam_size": "5"}', "beam_size: '5' is not a whole number"),
        (b'{"texts": ["a"], "beam_size": true}', "beam_size: True is not a whole number"),
        (b'{"texts": ["a"], "beam_size": 0}', "beam_size: 0 is not a number above 0"),
        (b'{"texts": ["a"], "beam_size": 11}', "beam_size: 11 is more than 10"),
        (b'{"texts": ["a"], "n_best": 6}', "6 translations per line were asked of a beam of 5"),
        (b'{"texts": ["a"], "length_penalty": 99}', "length_penalty: 99 is not a number up to 10"),
        (b'{"texts": ["a"], "prefixes": "we"}', "prefixes: 'we' is not a list"),
        (b'{"texts": ["a"], "prefixes": [["we"]]}', "prefixes[0]: ['we'] is not text"),
        (b'{"texts": ["a", "b"], "prefixes": ["we", null]}', "prefixes[1]: None is not text"),
        (b'{"texts": ["a", "b"], "prefixes": ["we"]}', "prefixes: 1 of 2 texts is not one for each"),
        (b'{"texts": ["a"], "prefixes": []}', "prefixes: 0 of 1 text is not one for each"),
        (b'{"texts": ["a"], "texts": ["b", "c"]}', "texts: it is there twice"),
        (b'{"texts": ["a"], "prefix": ["we"]}', "prefix: nothing of that name belongs here"),
        (b'{"texts": ["a"], "prefixes": ["b\\nc"]}', "prefixes[0]: a sentence is one line"),
        (
            '{"texts": ["a", "b"], "prefixes": ["", "we 🦔"]}'.encode(),
            "prefixes[1] has characters or pieces that must not be written",
        ),
        ({"texts": ["a"], "prefixes": ["we " * 1000]}, "prefixes[0] has 2,000 pieces; there is room for "),
        (b'{"texts": ["a", "b\\nc"]}', "texts[1]: a sentence is one line, but this holds a line break"),
    ],
)
def test_what_is_malformed_is_refused_with_the_place_and_the_reason(served, body, said):
    refused = served.post("/translate", body)
    assert (refused.status, error(refused)[: len(said)]) == (400, said)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"text": ""}, "the source is empty"),
        ({"text": "a\nb"}, "text: a sentence is one line"),
        ({"text": "a", "target": "b\nc"}, "target: a sentence is one line"),
        ({"text": "ein bier " * 300}, "the sentence has 601 pieces, too many to be translated at once"),
        (
            {"text": "ein bier", "target": "a " * 4},
            "the attention of 3 + 5 pieces has 98 weights; at most 97 are possible",
        ),
    ],
)
def test_attention_that_cannot_be_shown_is_refused(served, body, said, monkeypatch):
    monkeypatch.setattr(service, "MAX_WEIGHTS", 97)
    refused = served.post("/attention", body)
    assert (refused.status, error(refused)[: len(said)]) == (400, said)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"texts": ["a"] * 101}, "101 texts; a request has at most 100"),
        ({"texts": ["a" * 6_000, "b" * 6_000]}, "texts of 12,000 characters; a request has at most 10,000"),
        (
            {"texts": ["a" * 6_000], "prefixes": ["b" * 6_000]},
            "texts and prefixes of 12,000 characters; a request has at most 10,000",
        ),
        (b'{"texts": ["' + b"\\ud83e\\udd94" * 10_001 + b'"]}', "texts of 10,001 characters"),
        (b" " * 200_000, "a body of more than 185,536 bytes"),
    ],
)
def test_what_is_too_large_is_refused(served, body, said):
    refused = served.post("/translate", body)
    assert (refused.status, error(refused)[: len(said)]) == (413, said)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"text": "a" * 10_001}, "text of 10,001 characters; a request has at most 10,000"),
        ({"text": "a" * 6_000, "target": "b" * 6_000}, "text and target of 12,000 characters; a request has at most"),
    ],
)
def test_attention_to_what_is_too_large_is_refused(served, body, said):
    refused = served.post("/attention", body)
    assert (refused.status, error(refused)[: len(said)]) == (413, said)


def test_attention_is_to_one_text_whatever_its_target(serving):
    """Where a request may have one text, there was no attention: its target was counted as another."""
    with Served(serving(serving__max_texts=1)) as served:
        for asked in ({}, {"target": "a beer"}):
            assert served.post("/attention", {"text": LINE, **asked}).status == 200


def test_what_is_announced_to_be_too_large_is_refused_before_it_is_sent(served):
    head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    huge = b"Content-Length: 1000000000000\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
    first, said = raw(served, head + huge)
    assert (first.split()[1], said) == ("413", "a body of more than 185,536 bytes")  # Python 3.13 calls it otherwise


@pytest.mark.parametrize("length", ["-1", "9" * 5_000, "1e3", "0x10", "+5", "5, 6", "\u0665"])
def test_a_length_that_is_no_number_is_refused(served, length):
    head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    first, _ = raw(served, head + f"Content-Length: {length}\r\nConnection: close\r\n\r\n".encode())
    assert first == "HTTP/1.1 400 Bad Request"


def test_the_longest_that_is_granted_may_be_written_in_escapes(served):
    [found] = served.translate("🦔" * 10_000)  # twelve bytes each
    assert found["source"] == "🦔" * 10_000


@pytest.mark.parametrize("path", ["/translate", "/health", "/nothing"])
def test_an_endless_body_is_cut_off(served, path, monkeypatch):
    monkeypatch.setattr(server, "SLOW_S", 0.2)

    def send_for_ever(client):
        while True:
            client.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")

    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as client:
        client.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\n" % path.encode())
        client.sendall(b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        with pytest.raises(ConnectionError):
            send_for_ever(client)
    assert served.translate(LINE)


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "said"),
    [
        ("GET", "/nothing", {}, 404, "there is nothing at this address"),
        ("GET", "/../../etc/passwd", {}, 404, "there is nothing at this address"),
        ("GET", "/health/", {}, 404, "there is nothing at this address"),
        ("POST", "/translate/", {"content-type": "application/json"}, 404, "there is nothing at this address"),
        ("GET", "/translate", {}, 405, "not by this method"),
        ("DELETE", "/", {}, 405, "not by this method"),
        ("POST", "/translate", {"content-type": "text/plain"}, 415, "expected a body of type application/json"),
        ("POST", "/translate", {}, 415, "expected a body of type application/json"),
    ],
)
def test_a_wrong_address_or_method_or_type_is_refused(served, method, path, headers, status, said):
    refused = served.send(method, path, b"{}" if method == "POST" else None, headers)
    assert (refused.status, error(refused)) == (status, said)
    assert ("allow" in refused.headers) == (status == 405)


@pytest.mark.parametrize(
    ("host", "origin", "allowed", "status"),
    [
        ("localhost:8000", None, [], 200),
        ("127.0.0.1", None, [], 200),
        ("[::1]:8000", None, [], 200),
        ("LOCALHOST", "http://LOCALHOST", [], 200),
        ("localhost:8000", "http://localhost:8000", [], 200),
        ("evil.example", None, [], 403),
        ("evil.example:8000", "http://evil.example:8000", [], 403),
        ("localhost.evil.example", None, [], 403),
        ("", None, [], 403),
        ("[", None, [], 403),
        ("localhost:8000", "http://evil.example", [], 403),
        ("localhost:8000", "http://evil.example@localhost:8000", [], 403),
        ("localhost:8000", "null", [], 403),
        ("localhost:8000", "http://[", [], 403),
        ("tx.example", None, ["TX.example"], 200),
        ("tx.example", "https://TX.example", ["tx.example"], 200),
        ("localhost:8000", "http://localhost:3000", [], 403),
        ("localhost", "https://tx.example", ["tx.example"], 403),
        ("evil.example", None, ["tx.example"], 403),
    ],
)
def test_other_websites_cannot_reach_what_is_for_this_machine(serving, host, origin, allowed, status):
    with Served(serving(), allowed_hosts=allowed) as served:
        assert served.get("/health", host=host, origin=origin).status == status


@pytest.mark.parametrize(
    ("asked", "host", "status"),
    [
        ("http://localhost:8000/health", "localhost:8000", 200),
        ("HTTP://localhost/%68ealth?a=b", "evil.example", 200),
        ("https://localhost", "localhost", 200),
        ("http://localhost/nothing", "localhost", 404),
        ("http://evil.example/health", "localhost", 403),
        ("http:///health", "localhost", 403),
        ("http://[/health", "localhost", 403),
        ("ftp://localhost/health", "localhost", 404),
    ],
)
def test_a_whole_address_is_asked_for_by_the_name_in_it(served, asked, host, status):
    """As RFC 9112, 3.2.2, has it: nothing was there."""
    assert served.get(asked, host=host).status == status


def test_only_a_service_for_all_answers_to_any_name():
    from transformer_cli.serving.guard import names

    with server.bound_to("0.0.0.0", 0) as everywhere, server.bound_to("127.0.0.2", 0) as here:
        assert names(everywhere, []) is None
        assert names(everywhere, ["tx.example"]) == {"localhost", "127.0.0.1", "::1", "0.0.0.0", "tx.example"}
        assert names(here, []) == {"localhost", "127.0.0.1", "::1", "127.0.0.2"}


@pytest.mark.parametrize("path", ["/", "/page.js", "/page.css", "/health", "/nothing"])
def test_every_answer_tells_browsers_to_be_strict(served, path):
    headers = served.get(path).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"
    assert "server" not in headers


def raw(served, *parts, pause_s=0.0):
    """What comes back until the service closes the connection, after these bytes with pauses between them."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as client:
        for part in parts:
            client.sendall(part)
            time.sleep(pause_s)
        found = b""
        while part := client.recv(65536):
            found += part
    head, _, body = found.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0].decode(), json.loads(body)["error"]


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"x" * 100_000])
def test_what_is_no_http_is_told_so(served, garbage):
    assert raw(served, garbage) == ("HTTP/1.1 400 Bad Request", "this is no HTTP request")


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b"POST /translate HT"],
        [b"GET /health HTTP/1.1\r\nHost: localhost\r\n"] + [b"X: y\r\n"] * 3,
        [b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /hea"],
    ],
    ids=["nothing", "a line", "headers, drop by drop", "a second request"],
)
def test_who_does_not_finish_the_head_of_a_request_is_cut_off(served, parts, monkeypatch):
    monkeypatch.setattr(server, "SLOW_S", 0.2)
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as client:
        found = b""
        for part in parts:
            client.sendall(part)
            time.sleep(0.05)
        while part := client.recv(65536):
            found += part
    assert b"HTTP/1.1 408 Request Timeout" in found
    assert found.endswith(b'{"error": "no request was there within 0.2 s"}')
    assert time.monotonic() - began < 3


def test_the_rest_of_a_body_that_was_refused_is_no_request(served, monkeypatch):
    """What came of it after the answer was taken for the head of another request, and refused after a while: whoever
    asked again on that connection had that for an answer."""
    monkeypatch.setattr(server, "SLOW_S", 0.2)
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
    connection.request("POST", "/nothing", b" " * 3_000_000)
    assert connection.getresponse().read()
    opened = connection.sock
    time.sleep(0.5)
    connection.request("GET", "/health")
    assert (connection.getresponse().status, connection.sock) == (200, opened)
    connection.close()


def test_who_does_not_send_the_rest_of_a_body_is_cut_off_without_a_second_answer(served, monkeypatch):
    monkeypatch.setattr(server, "SLOW_S", 0.2)
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as client:
        client.sendall(b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n")
        found = client.recv(65536)
        client.sendall(b"some")
        found += b"".join(iter(lambda: client.recv(65536), b""))
    assert found.count(b"HTTP/1.1") == 1
    assert time.monotonic() - began < 3


def test_who_does_not_finish_the_body_is_cut_off(served, monkeypatch):
    monkeypatch.setattr(messages, "SLOW_S", 0.2)
    head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n"
    began = time.monotonic()
    first, said = raw(served, head + b"Connection: close\r\n\r\n", b'{"texts"', b": [", pause_s=0.05)
    assert (first, said) == ("HTTP/1.1 408 Request Timeout", "the body of the request was not there within 0.2 s")
    assert time.monotonic() - began < 3


def test_who_does_not_read_the_answer_is_cut_off(serving, monkeypatch):
    monkeypatch.setattr(server, "SLOW_S", 0.2)
    body = json.dumps({"text": "der hund schläft nicht . " * 25}).encode()
    with Served(serving()) as served, socket.socket() as client:
        served.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # the system is not to keep it all
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", served.port))
        client.sendall(b"POST /attention HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        client.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        served.wait_for('tx_requests_total{path="/attention",status="200"} 1.0')
        assert served.server.server_state.connections
        until = time.monotonic() + 3
        while served.server.server_state.connections:
            assert time.monotonic() < until
            time.sleep(0.01)


def test_who_reads_slowly_reads_it_all(serving, monkeypatch):
    monkeypatch.setattr(server, "SLOW_S", 0.2)
    with Served(serving()) as served:
        served.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        asked = {"text": "der hund schläft nicht . " * 25}
        expected = served.post("/attention", asked).body
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
        connection.request("POST", "/attention", json.dumps(asked), {"content-type": "application/json"})
        answer, found = connection.getresponse(), b""
        while part := answer.read(len(expected) // 10):
            found += part
            time.sleep(0.05)
        connection.close()
        assert found == expected


def test_an_answer_is_timed_for_itself_not_for_one_before(serving, monkeypatch):
    """On one connection: what was left of the first answer, which was read, says nothing about the second."""
    monkeypatch.setattr(server, "SLOW_S", 0.6)
    with Served(serving()) as served:
        served.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
        sizes = []
        for words, pause_s in ((5, 0.4), (25, 0.5)):
            asked = json.dumps({"text": "der hund schläft nicht . " * words})
            connection.request("POST", "/attention", asked, {"content-type": "application/json"})
            answer = connection.getresponse()
            time.sleep(pause_s)  # the first timer would end within this
            sizes.append(len(answer.read()))
        connection.close()
        assert sizes[0] < sizes[1]


def test_an_answer_may_take_longer_than_its_question(serving, monkeypatch):
    for module in (server, messages):
        monkeypatch.setattr(module, "SLOW_S", 0.1)
    service = serving()
    translate = service.translate
    service.translate = lambda *asked: time.sleep(0.4) or translate(*asked)
    with Served(service) as served:
        assert served.translate(LINE)[0]["translation"] == "i want a beer"


@pytest.mark.parametrize(
    ("soft", "hard", "asked", "room"),
    [
        (1024, 1024, None, 500),
        (256, resource.RLIM_INFINITY, 564, 500),
        (256, 4096, 564, 500),
        (256, 256, 256, 192),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None, 500),
        (20, 20, 20, 1),
    ],
)
def test_there_are_files_for_all_connections_that_are_let_in(monkeypatch, soft, hard, asked, room):
    """A Mac's shells begin with 256: beside 420 clients that did nothing nobody was answered, nor told why."""
    limits = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, told: limits.append(told))
    assert server.room_for.__wrapped__(500) == room
    assert limits == ([(asked, hard)] if asked else [])


def test_who_is_too_many_has_gone_before_many_others_come(served, monkeypatch):
    """All were let in before the first one was refused: of 600 at once those for which a service of 256 files had none
    left were 40 MB of tracebacks, and nobody was let in for a second."""
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 20)
    accept, all_wait, let_in, most = socket.socket.accept, threading.Event(), [], []

    def counted(self):
        assert all_wait.wait(10)
        found = accept(self)
        let_in.append(found[0])
        most.append(sum(one.fileno() >= 0 for one in let_in))
        return found

    monkeypatch.setattr(socket.socket, "accept", counted)
    clients = [socket.create_connection(("127.0.0.1", served.port), timeout=10) for _ in range(120)]
    try:
        all_wait.set()
        assert clients[-1].recv(65536).startswith(b"HTTP/1.1 503 ")
        assert 20 <= max(most) <= 20 + server.SPARE // 2
    finally:
        for one in clients:
            one.close()


def test_connections_that_do_nothing_keep_nobody_out_for_long(served, monkeypatch):
    monkeypatch.setattr(server, "SLOW_S", 0.3)
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 20)
    idle = [socket.create_connection(("127.0.0.1", served.port), timeout=10) for _ in range(20)]
    try:
        with socket.create_connection(("127.0.0.1", served.port), timeout=10) as one_more:
            refused = b"".join(iter(lambda: one_more.recv(65536), b""))
        assert refused.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"\r\nretry-after: 1\r\n" in refused
        assert refused.endswith(b'{"error": "too many connections: try again later"}')
        until = time.monotonic() + 5
        while served.get("/health").status != 200:
            assert time.monotonic() < until
    finally:
        for one in idle:
            one.close()


def test_a_queue_that_is_full_and_a_deadline_are_told_with_when_to_come_again(serving):
    service, may_go = serving(serving__max_waiting=2, serving__deadline_s=0.5), threading.Event()
    service.translate = lambda search, texts: may_go.wait(10) and ["never seen"] * len(texts)
    with Served(service) as served, ThreadPoolExecutor(2) as pool:
        first = pool.submit(served.post, "/translate", {"texts": [LINE]})
        served.wait_for("tx_batch_texts_count 1.0")
        second = pool.submit(served.post, "/translate", {"texts": [LINE, LINE]})
        served.wait_for("tx_waiting_texts 2.0")
        refused = served.post("/translate", {"texts": [LINE]})
        assert (refused.status, error(refused)) == (503, "2 texts are waiting already: try again later")
        assert refused.headers["retry-after"] == "1"
        for waited in (first.result(), second.result()):
            assert (waited.status, error(waited)) == (503, "not answered within 0.5 s: try again later")
            assert waited.headers["retry-after"] == "1"
        may_go.set()
        assert served.get("/health").json["waiting"] == 0


def test_who_hangs_up_is_not_worked_for(serving):
    """Neither while somebody else is answered, nor after that."""
    service, may_go, seen = serving(), threading.Event(), []
    service.translate = lambda search, texts: (
        seen.extend(one.text for one in texts) or (may_go.wait(10) and ["nothing"] * len(texts))
    )
    body = json.dumps({"texts": ["b", "c"]}).encode()
    head = (
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    with Served(service) as served, ThreadPoolExecutor(1) as pool:
        first = pool.submit(served.post, "/translate", {"texts": ["a"]})
        served.wait_for("tx_batch_texts_count 1.0")
        with socket.create_connection(("127.0.0.1", served.port)) as client:
            client.sendall(head % len(body) + body)
            served.wait_for("tx_waiting_texts 2.0")
        served.wait_for("tx_waiting_texts 0.0")
        may_go.set()
        assert first.result().status == 200
        assert served.post("/translate", {"texts": ["d"]}).status == 200
        assert seen == ["a", "d"]
        assert 'tx_requests_total{path="/translate",status="499"} 1.0' in served.get("/metrics").body.decode()
        assert served.told == []


@pytest.mark.parametrize(
    ("failure", "said", "told"),
    [
        (DivergedError("no numbers"), "no numbers", "no numbers"),
        (KeyError("secret"), "a bug in tx; the service's own log says which", "a bug in tx: KeyError: 'secret'"),
    ],
)
def test_what_goes_wrong_inside_is_told_and_logged_and_the_next_is_answered(serving, failure, said, told):
    service = serving()
    translate, failures = service.translate, [failure]

    def fail_once(search, texts):
        if failures:
            raise failures.pop()
        return translate(search, texts)

    service.translate = fail_once
    with Served(service) as served:
        refused = served.post("/translate", {"texts": [LINE]})
        assert (refused.status, error(refused)) == (500, said)
        assert served.told == [told]
        assert served.translate(LINE)[0]["translation"] == "i want a beer"


def test_what_was_accepted_is_answered_before_it_stops(serving):
    service, may_go = serving(), threading.Event()
    translate = service.translate
    service.translate = lambda *asked: may_go.wait(10) and translate(*asked)
    with Served(service) as served, ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(served.translate, LINE, beam_size=n) for n in (1, 2, 3)]
        served.wait_for("tx_waiting_texts 2.0")
        served.stop()
        with pytest.raises(ConnectionError):
            ask_until_refused(served)
        may_go.set()
        assert [one.result()[0]["translation"] for one in asked] == ["i want a beer"] * 3


def ask_until_refused(served):
    until = time.monotonic() + 5
    while time.monotonic() < until:
        served.get("/health")


def test_metrics_count_what_happened(serving):
    prometheus = pytest.importorskip("prometheus_client.parser")
    with Served(serving()) as served:
        served.translate(LINE, LINE, LINE)
        served.post("/translate", b"no JSON")
        served.get("/some/other/address")
        found = served.get("/metrics")
        assert found.headers["content-type"].startswith("text/plain; version=")
    samples = {
        (one.name, *one.labels.values()): one.value
        for family in prometheus.text_string_to_metric_families(found.body.decode())
        for one in family.samples
    }
    assert samples["tx_requests_total", "/translate", "200"] == 1
    assert samples["tx_requests_total", "/translate", "400"] == 1
    assert samples["tx_requests_total", "other", "404"] == 1
    assert samples["tx_texts_total",] == 3
    assert samples["tx_batch_texts_bucket", "2.0"] == 0
    assert samples["tx_batch_texts_bucket", "4.0"] == 1
    assert samples["tx_waiting_texts",] == 0
    assert samples["tx_request_seconds_count", "/translate"] == 2
    assert 0 < samples["tx_request_seconds_sum", "/translate"] < 20
