"""Text to ids, block by block, on as many cores as there are.

What a block becomes depends on nothing but itself. So of a large text the blocks go to processes that hold a tokenizer
and nothing else, and come back in order. They end when their standard input does: with this process, however it ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from transformer_cli.data.cutting import cutter
from transformer_cli.data.fingerprints import fingerprints
from transformer_cli.data.text import Text
from transformer_cli.environment import import_path, processors
from transformer_cli.errors import ResourceError
from transformer_cli.tokenizer import Tokenizer, Vocabulary

CHUNK = 8192
"""Pairs that are encoded at a time: their ids are lists before they are arrays."""
WORTH_A_PROCESS = 50_000
"""Pairs, from which on a process more is faster: it takes half a second to start."""
NO_PIECES = "no pieces"
Stretch = tuple[int, int, int | None]
"""The place of its first pair, and of the one behind its last; the tag that its sources begin with."""
NO_NUMBERS = np.empty((2, 0), dtype=np.uint64)

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Block:
    """What pairs became."""

    n_pairs: int
    """How many there were."""
    counts: Mapping[str, int]
    """How many were left out, by reason."""
    kept: Array
    """int32: which of them are kept."""
    source: Array
    """int32: their ids, one pair after the other."""
    source_lengths: Array
    target: Array
    target_lengths: Array
    numbers: Array
    """uint64, (2, n_pairs), see fingerprints.py; (2, 0) where nothing is remembered."""


IDS = ("kept", "source", "source_lengths", "target", "target_lengths")
"""Of a block, what is int32."""


class Encoder:
    """How pairs become ids."""

    def __init__(self, tokenizer: Tokenizer, *, source_eos: bool, max_length: int | None, remembers: bool) -> None:
        """max_length: pairs with more pieces on a side, end marks included, or with none, are left out; None: of no
        pair is anything left out. remembers: count the words of either side, of what is not left out, and give each
        line a number."""
        self.tokenizer = tokenizer
        self.n_marks = int(source_eos)
        self.max_length = max_length
        self.remembers = remembers
        self.options = {"source_eos": source_eos, "max_length": max_length, "remembers": remembers}
        self.sides = (
            cutter(tokenizer.source, with_eos=source_eos, counts_words=remembers),
            cutter(tokenizer.target, with_eos=False, counts_words=remembers),
        )

    def encode(self, source: bytes, target: bytes, tag: int | None = None) -> Block:
        """Both sides in UTF-8, with a line feed behind each line. tag: the id that sources begin with."""
        encoded = [self.sides[0].encode(source, tag), self.sides[1].encode(target)]
        (sources, targets), lengths = ([pair[part] for pair in encoded] for part in (0, 1))
        counts: dict[str, int] = {}
        keeps = np.ones(len(lengths[0]), dtype=bool)
        if self.max_length is not None:
            without = (lengths[0] == self.n_marks) | (lengths[1] == 0)
            long = ~without & (np.maximum(lengths[0], lengths[1] + 1) > self.max_length)
            reasons = {NO_PIECES: without, f"longer than {self.max_length} piece{'s' * (self.max_length != 1)}": long}
            counts = {why: int(which.sum()) for why, which in sorted(reasons.items(), key=lambda one: _first(one[1]))}
            keeps = ~(without | long)
            if not keeps.all():
                sources, targets = sources[np.repeat(keeps, lengths[0])], targets[np.repeat(keeps, lengths[1])]
                lengths = [length[keeps] for length in lengths]
                if self.remembers:
                    self._uncount((source, target), np.flatnonzero(~keeps))
        return Block(
            n_pairs=len(keeps),
            kept=np.flatnonzero(keeps).astype(np.int32),
            source=sources,
            source_lengths=lengths[0],
            target=targets,
            target_lengths=lengths[1],
            counts={why: n for why, n in counts.items() if n},
            numbers=fingerprints(source, target) if self.remembers else NO_NUMBERS,
        )

    def _uncount(self, texts: Sequence[bytes], left_out: npt.NDArray[np.intp]) -> None:
        """Nothing is learned from the words of these lines."""
        for side, text in zip(self.sides, texts, strict=True):
            lines = text.split(b"\n")
            side.uncount(b"".join(lines[place] + b"\n" for place in left_out))


class Team:
    """An encoder, and as many processes as so many pairs are worth; they end with the block."""

    def __init__(self, encoder: Encoder, n_pairs: int) -> None:
        """Raises ResourceError where a process cannot be started."""
        self.encoder = encoder
        n = n_processes(n_pairs)
        self._workers = None if n == 1 else _Workers(encoder, n)
        self._threads = ThreadPoolExecutor(n)

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._workers is not None:
            self._workers.end()
        self._threads.shutdown()

    def blocks(self, source: Text, target: Text, stretches: Sequence[Stretch]) -> Iterator[Block]:
        """What each CHUNK of pairs becomes, in order. Raises ResourceError where a process that encodes ends."""
        chunks = (
            (place, min(place + CHUNK, end), tag) for first, end, tag in stretches for place in range(first, end, CHUNK)
        )
        encode = self.encoder.encode if self._workers is None else self._workers.encode

        def encoded(first: int, end: int, tag: int | None) -> Block:
            return encode(source.utf8(first, end), target.utf8(first, end), tag)

        if self._workers is None:
            yield from (encoded(*chunk) for chunk in chunks)
            return
        pending: deque[Future[Block]] = deque()
        try:
            for chunk in chunks:
                pending.append(self._threads.submit(encoded, *chunk))
                if len(pending) > 2 * len(self._workers.processes):
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

    def take_words(self, side: int) -> Counter[str]:
        """How often each word of a side, 0 for the source, 1 for the target, came since this was asked last."""
        if self._workers is not None:
            self._workers.tell_words(side)
        return self.encoder.sides[side].take_words()


def n_processes(n_pairs: int) -> int:
    """That encode so many pairs; 1 is this process alone."""
    return max(1, min(processors(), n_pairs // WORTH_A_PROCESS))


class _Workers:
    """Processes that encode, each for one thread at a time."""

    def __init__(self, encoder: Encoder, n: int) -> None:
        self.encoder = encoder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        command = [sys.executable, "-P", "-c", f"from {__name__} import work; work()"]
        vocabularies = encoder.tokenizer.models().values()
        models = [vocabulary.model for vocabulary in vocabularies]
        options = {**encoder.options, "marks": [vocabulary.mark for vocabulary in vocabularies]}
        environment = {**os.environ, "PYTHONPATH": import_path()}
        try:
            for _ in range(n):
                # In a group of its own: what ends a job, or a terminal's, is for the one that asked to decide about.
                process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, process_group=0
                )
                self.processes.append(process)
                _send(_in(process), options, models)
                self.idle.put(process)
        except OSError as failure:
            self.end()
            raise ResourceError(f"no process can be started to encode the text: {failure.strerror}") from failure

    def encode(self, source: bytes, target: bytes, tag: int | None) -> Block:
        """What Encoder.encode gives, from the next process that has time."""
        process = self.idle.get()
        try:
            counts, arrays = _asked(process, {"tag": tag}, [source, target])
        finally:
            self.idle.put(process)  # one that has ended, too: whoever gets it is told so, and nobody waits
        ids = {name: np.frombuffer(array, dtype=np.int32) for name, array in zip(IDS, arrays, strict=False)}
        numbers = np.frombuffer(arrays[-1], dtype=np.uint64).reshape(2, -1)
        return Block(n_pairs=source.count(b"\n"), counts=counts, **ids, numbers=numbers)

    def tell_words(self, side: int) -> None:
        """Give the encoder the words of a side that all of them counted."""
        for process in self.processes if self.encoder.remembers else ():
            found, _ = _asked(process, {"words": side}, [])
            self.encoder.sides[side].add_counts(found["words"])

    def end(self) -> None:
        """End them."""
        for process in self.processes:
            process.kill()
            process.wait()
            for pipe in (_in(process), _out(process)):
                with suppress(OSError):  # what it held was for a process that is gone
                    pipe.close()


def work() -> None:
    """What such a process does: the first message is an encoder, each later one two texts, or asks for the words."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"):  # which some queues send to every process
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    Vocabulary.n_threads = 1  # there is a process for each processor, which may only have so many threads together
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    options, models = _receive(requests) or sys.exit()
    vocabularies = (Vocabulary(model, mark=mark) for model, mark in zip(models, options.pop("marks"), strict=True))
    encoder = Encoder(Tokenizer(*vocabularies), **options)
    while (message := _receive(requests)) is not None:
        fields, texts = message
        if "words" in fields:
            _send(replies, {"words": encoder.sides[fields["words"]].take_words()}, [])
            continue
        source, target = texts
        block = encoder.encode(source, target, fields["tag"])
        _send(replies, block.counts, [getattr(block, name).tobytes() for name in (*IDS, "numbers")])


def _asked(
    process: subprocess.Popen[bytes], fields: Mapping[str, Any], parts: list[bytes]
) -> tuple[dict[str, Any], list[bytes]]:
    try:
        _send(_in(process), fields, parts)
        reply = _receive(_out(process))
    except (OSError, ValueError):
        reply = None
    if reply is None:
        raise ResourceError(
            "a process that encodes the text was ended",
            hint="was there too little memory? the same command tries again",
        )
    return reply


def _send(pipe: BinaryIO, fields: Mapping[str, Any], parts: list[bytes]) -> None:
    """A line of JSON, and so many bytes as it says."""
    pipe.write(
        json.dumps({"fields": fields, "sizes": [len(part) for part in parts]}, allow_nan=False).encode("utf-8") + b"\n"
    )
    for part in parts:
        pipe.write(part)
    pipe.flush()


def _receive(pipe: BinaryIO) -> tuple[dict[str, Any], list[bytes]] | None:
    """What `_send` sent; None where the other side has ended."""
    line = pipe.readline()
    if not line.endswith(b"\n"):
        return None
    message = json.loads(line)
    parts = [pipe.read(size) for size in message["sizes"]]
    return (message["fields"], parts) if [len(part) for part in parts] == message["sizes"] else None


def _in(process: subprocess.Popen[bytes]) -> BinaryIO:
    return cast(BinaryIO, process.stdin)


def _out(process: subprocess.Popen[bytes]) -> BinaryIO:
    return cast(BinaryIO, process.stdout)


def _first(which: npt.NDArray[np.bool_]) -> int:
    """The first place where it is so."""
    return int(which.argmax()) if which.any() else len(which)
