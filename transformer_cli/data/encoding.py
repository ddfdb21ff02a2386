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
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, compress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from transformer_cli.data.text import Text
from transformer_cli.errors import ResourceError
from transformer_cli.tokenizer import EOS, Tokenizer, Vocabulary
from transformer_cli.writing import WordCounter

CHUNK = 8192
"""Pairs that are encoded at a time: their ids are lists before they are arrays."""
WORTH_A_PROCESS = 50_000
"""Pairs, from which on a process more is faster: it takes half a second to start."""
NO_PIECES = "no pieces"

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


class Encoder:
    """How pairs become ids."""

    def __init__(self, tokenizer: Tokenizer, *, source_eos: bool, max_length: int | None, counts_words: bool) -> None:
        """max_length: pairs with more pieces on a side, end marks included, or with none, are left out; None: of no
        pair is anything left out. counts_words: keep in `words` how often each word came on either side."""
        self.tokenizer = tokenizer
        self.marks = [EOS] if source_eos else []
        self.max_length = max_length
        self.options = {"source_eos": source_eos, "max_length": max_length, "counts_words": counts_words}
        self.words = (WordCounter(), WordCounter()) if counts_words else ()

    def encode(self, source: bytes, target: bytes) -> Block:
        """Both sides in UTF-8, with a line feed behind each line."""
        texts = [text.decode("utf-8") for text in (source, target)]
        for counter, text in zip(self.words, texts, strict=False):
            counter.add(text)
        sides = [text[:-1].split("\n") for text in texts]
        sources, targets = self.tokenizer.encode_source(sides[0]), self.tokenizer.encode_target(sides[1])
        for ids in sources if self.marks else ():
            ids += self.marks
        lengths = [np.fromiter(map(len, side), dtype=np.int32, count=len(side)) for side in (sources, targets)]
        counts: dict[str, int] = {}
        keeps = np.ones(len(sources), dtype=bool)
        if self.max_length is not None:
            without = (lengths[0] == len(self.marks)) | (lengths[1] == 0)
            long = ~without & (np.maximum(lengths[0], lengths[1] + 1) > self.max_length)
            reasons = {NO_PIECES: without, f"longer than {self.max_length} pieces": long}
            counts = {why: int(which.sum()) for why, which in sorted(reasons.items(), key=lambda one: _first(one[1]))}
            keeps = ~(without | long)
            if not keeps.all():
                lengths = [length[keeps] for length in lengths]
                sources, targets = list(compress(sources, keeps)), list(compress(targets, keeps))
        return Block(
            n_pairs=len(keeps),
            kept=np.flatnonzero(keeps).astype(np.int32),
            source=_flat(sources),
            source_lengths=lengths[0],
            target=_flat(targets),
            target_lengths=lengths[1],
            counts={why: n for why, n in counts.items() if n},
        )


def encoded(source: Text, target: Text, encoder: Encoder) -> Iterator[Block]:
    """What each CHUNK of pairs becomes, in order; the words that the encoder counts are all there at the end.

    Raises ResourceError where a process that encodes cannot be started, or ends.
    """
    chunks = [(first, min(first + CHUNK, len(source))) for first in range(0, len(source), CHUNK)]
    n_processes = min(cores(), len(source) // WORTH_A_PROCESS)
    if n_processes < 2:
        yield from (encoder.encode(source.utf8(*chunk), target.utf8(*chunk)) for chunk in chunks)
        return
    with ThreadPoolExecutor(n_processes) as threads, _Workers(encoder, n_processes) as workers:
        pending: deque[Future[Block]] = deque()
        try:
            for chunk in chunks:
                pending.append(
                    threads.submit(lambda chunk: workers.encode(source.utf8(*chunk), target.utf8(*chunk)), chunk)
                )
                if len(pending) > 2 * n_processes:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
            workers.tell_words()
        finally:
            for future in pending:
                future.cancel()


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Workers:
    """Processes that encode, each for one thread at a time."""

    def __init__(self, encoder: Encoder, n: int) -> None:
        self.encoder = encoder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-P", "-c", f"from {__name__} import work; work()"]
        vocabularies = encoder.tokenizer.models().values()
        models = [vocabulary.model for vocabulary in vocabularies]
        options = {**encoder.options, "marks": [vocabulary.mark for vocabulary in vocabularies]}
        environment = {**os.environ, "PYTHONPATH": path}
        try:
            for _ in range(n):
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
                self.processes.append(process)
                _send(_in(process), options, models)
                self.idle.put(process)
        except OSError as failure:
            self._end()
            raise ResourceError(f"no process can be started to encode the text: {failure.strerror}") from failure

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *failure: object) -> None:
        self._end()

    def encode(self, source: bytes, target: bytes) -> Block:
        """What Encoder.encode gives, from the next process that has time."""
        process = self.idle.get()
        try:
            counts, arrays = _asked(process, {}, [source, target])
        finally:
            self.idle.put(process)  # one that has ended, too: whoever gets it is told so, and nobody waits
        return Block(source.count(b"\n"), counts, *(np.frombuffer(array, dtype=np.int32) for array in arrays))

    def tell_words(self) -> None:
        """Give the encoder the words that all of them counted."""
        for process in self.processes if self.encoder.words else ():
            found, _ = _asked(process, {"words": True}, [])
            for counter, counts in zip(self.encoder.words, found["words"], strict=True):
                counter.add_counts(counts)

    def _end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            for pipe in (_in(process), _out(process)):
                with suppress(OSError):  # what it held was for a process that is gone
                    pipe.close()


def work() -> None:
    """What such a process does: the first message is an encoder, each later one two texts, or asks for the words."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the one that asked decides
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    options, models = _receive(requests) or sys.exit()
    vocabularies = (Vocabulary(model, mark=mark) for model, mark in zip(models, options.pop("marks"), strict=True))
    encoder = Encoder(Tokenizer(*vocabularies), **options)
    while (message := _receive(requests)) is not None:
        fields, texts = message
        if "words" in fields:
            _send(replies, {"words": [counter.counts() for counter in encoder.words]}, [])
            continue
        block = encoder.encode(*texts)
        arrays = (block.kept, block.source, block.source_lengths, block.target, block.target_lengths)
        _send(replies, block.counts, [array.tobytes() for array in arrays])


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


def _flat(rows: list[list[int]]) -> Array:
    return np.fromiter(chain.from_iterable(rows), dtype=np.int32)


def _first(which: npt.NDArray[np.bool_]) -> int:
    """The first place where it is so."""
    return int(which.argmax()) if which.any() else len(which)
