"""The queue alone: whose answers go to whom, what goes together, and who is told to come again."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import pytest

pytest.importorskip("starlette", reason="the extra `serve` is not installed")

from transformer_cli.errors import DataError
from transformer_cli.serving.messages import Refused
from transformer_cli.serving.queue import Queue


class Work:
    """Answers each text with the options and itself; waits for `may_go`; keeps what it was given at once."""

    def __init__(self):
        self.calls = []
        self.may_go = threading.Event()
        self.may_go.set()
        self.lock = threading.Lock()

    def __call__(self, options, texts):
        assert self.lock.acquire(blocking=False), "two threads at once"
        try:
            self.calls.append((options, list(texts)))
            time.sleep(0.001)
            assert self.may_go.wait(10)
            if "bad" in texts:
                raise DataError(f"bad among {len(texts)}")
            return [(options, text) for text in texts]
        finally:
            self.lock.release()


def running(test, **settings):
    """Run a test with a queue that is answered; gives what it returns."""

    async def run():
        chosen = {"most_together": 4, "most_waiting": 10, "deadline_s": 5.0, "taken": lambda n: None} | settings
        queue = Queue(**chosen)
        answering = asyncio.create_task(queue.answer())
        try:
            return await test(queue)
        finally:
            answering.cancel()

    return asyncio.run(run())


async def begun(work, n=1):
    """Until the work was called so often."""
    until = time.monotonic() + 5
    while len(work.calls) < n:
        assert time.monotonic() < until
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("seed", range(5))
def test_everybody_gets_his_own_answers_in_order(seed):
    draw, work = random.Random(seed), Work()

    async def client(queue, number):
        for turn in range(5):
            options, texts = draw.choice("abc"), [f"{number}.{turn}.{n}" for n in range(draw.randint(1, 6))]
            await asyncio.sleep(draw.random() / 500)
            assert await queue.ask(work, options, texts) == [(options, text) for text in texts]

    async def test(queue):
        await asyncio.gather(*(client(queue, number) for number in range(30)))

    running(test, most_waiting=1000, most_together=16)
    done = [text for _, texts in work.calls for text in texts]
    assert len(done) == len(set(done)) > 300
    assert len(work.calls) < 30 * 5 / 2, "hardly any went together"
    assert max(len(texts) for _, texts in work.calls) <= 16


def test_those_that_wait_and_ask_for_the_same_go_together():
    work, taken = Work(), []

    async def test(queue):
        work.may_go.clear()
        asked = [asyncio.create_task(queue.ask(work, "x", ["first"]))]
        await begun(work)
        for one in [("x", ["1", "2"]), ("y", ["3"]), ("x", ["4"]), ("x", ["5", "6"]), ("x", ["7"])]:
            asked.append(asyncio.create_task(queue.ask(work, *one)))
        await asyncio.sleep(0.01)
        assert queue.n_waiting == 7
        work.may_go.set()
        await asyncio.gather(*asked)
        assert queue.n_waiting == 0

    running(test, taken=taken.append)
    assert work.calls[1:] == [("x", ["1", "2", "4", "7"]), ("y", ["3"]), ("x", ["5", "6"])]
    assert taken == [1, 4, 1, 2]


def test_those_who_were_answered_together_and_ask_again_go_together_again():
    """The first of them used to go alone, every other time."""
    work = Work()

    async def client(queue, number):
        for turn in range(10):
            await queue.ask(work, "x", [f"{number}.{turn}"])
            await asyncio.sleep(number / 2000)

    async def test(queue):
        work.may_go.clear()
        asked = [asyncio.create_task(client(queue, number)) for number in range(4)]
        await begun(work)
        work.may_go.set()
        await asyncio.gather(*asked)

    running(test)
    assert len(work.calls) <= 4 + 10, work.calls


def test_nobody_fails_because_of_anothers_text():
    work = Work()

    async def test(queue):
        work.may_go.clear()
        first = asyncio.create_task(queue.ask(work, "x", ["first"]))
        await begun(work)
        asked = [asyncio.create_task(queue.ask(work, "x", [text])) for text in ("good", "bad", "fine")]
        await asyncio.sleep(0.01)
        work.may_go.set()
        await first
        return await asyncio.gather(*asked, return_exceptions=True)

    good, bad, fine = running(test)
    assert (good, fine) == ([("x", "good")], [("x", "fine")])
    assert isinstance(bad, DataError)
    assert bad.message == "bad among 1"


def test_who_comes_when_too_many_wait_is_told_to_come_again():
    work = Work()

    async def test(queue):
        work.may_go.clear()
        asked = [asyncio.create_task(queue.ask(work, "x", ["first"]))]
        await begun(work)
        asked.append(asyncio.create_task(queue.ask(work, "x", ["a"] * 20)))
        await asyncio.sleep(0.01)
        with pytest.raises(Refused) as refused:
            await queue.ask(work, "x", ["b"])
        work.may_go.set()
        assert len((await asyncio.gather(*asked))[1]) == 20  # nobody waited: even more than may wait were taken
        return refused.value

    refused = running(test)
    assert refused.status == 503
    assert refused.message == "20 texts are waiting already: try again later"


def test_who_waits_too_long_is_told_so_and_nobody_works_for_him():
    work = Work()

    async def test(queue):
        work.may_go.clear()
        asked = [asyncio.create_task(queue.ask(work, "x", ["first"]))]
        await begun(work)
        asked.append(asyncio.create_task(queue.ask(work, "x", ["late"])))
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert queue.n_waiting == 0
        work.may_go.set()
        assert await queue.ask(work, "x", ["next"]) == [("x", "next")]
        return found

    found = running(test, deadline_s=0.05)
    assert [one.status for one in found] == [503, 503]
    assert "not answered within 0.05 s" in found[1].message
    assert work.calls == [("x", ["first"]), ("x", ["next"])]


def test_what_nobody_waits_for_is_not_done():
    work = Work()

    async def test(queue):
        work.may_go.clear()
        first = asyncio.create_task(queue.ask(work, "x", ["first"]))
        await begun(work)
        gone = asyncio.create_task(queue.ask(work, "x", ["gone"]))
        await asyncio.sleep(0.01)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        work.may_go.set()
        await first

    running(test)
    assert work.calls == [("x", ["first"])]


def test_work_that_everybody_gave_up_keeps_no_service_from_its_end():
    """One long text was worked at for minutes after SIGTERM, which came when nobody waited for it any more."""
    begun, ended = threading.Event(), []

    def endless(options, texts):
        try:
            begun.set()
            while time.monotonic() < begin + 40:
                time.sleep(0.001)
        finally:
            ended.append(True)

    async def test(queue):
        with pytest.raises(Refused, match="not answered within"):
            await queue.ask(endless, "x", ["a"])
        assert begun.is_set()

    begin = time.monotonic()
    running(test, deadline_s=0.2)
    assert ended
    assert time.monotonic() - begin < 30
