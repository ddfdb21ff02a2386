"""ONNX: `encoder.onnx` and `decoder.onnx`, a step with its cache, for ONNX Runtime and whatever else reads it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentencepiece import SentencePieceProcessor
from torch import Tensor

from transformer_cli.checkpoints.store import OpenedRun
from transformer_cli.data.loader import padded
from transformer_cli.decoding.hypothesis import Hypothesis, LengthPenalty
from transformer_cli.decoding.options import SearchOptions, Symbols
from transformer_cli.decoding.search import search
from transformer_cli.export.formats import Found, Walk, unknown_there, write_vocabularies
from transformer_cli.export.onnx_graph import decoder, encoder
from transformer_cli.export.weights import Weights
from transformer_cli.files import create_file, writing
from transformer_cli.needs import SILENCED_BY, needed
from transformer_cli.temporary import check_room, temporary_directory
from transformer_cli.tokenizer import BOS, EOS

ROWS = 2048
"""Rows of the table for positions that have none in tx."""
GRAPHS = {"encoder": encoder, "decoder": decoder}


class Onnx:
    """The format."""

    quantizations = ("int8",)

    def __init__(self) -> None:
        needed("onnx")
        needed("onnxruntime")

    def refusals(self, run: OpenedRun) -> list[str]:
        return unknown_there(run.config.model, "ONNX")

    def write(self, run: OpenedRun, place: Path, *, quantization: str | None) -> None:
        weights = Weights(run)
        for name, make in GRAPHS.items():
            path = place / f"{name}.onnx"
            made = make(weights, rows=ROWS)
            if quantization:
                made = _rounded(made)
            with create_file(path) as file:
                file.write(made.SerializeToString())
        write_vocabularies(run, place)

    def open(self, run: OpenedRun, place: Path) -> Engine:
        return Engine(run, place)

    def typed(self, tag: str, run: OpenedRun) -> str:
        return tag

    def usage(self, run: OpenedRun) -> str:
        files = list(run.tokenizer.models())
        end = " + [source.eos_id()]" if run.config.data.source_eos else ""
        first = f"{[run.tokenizer.source.mark_id]} + " if run.tokenizer.source.mark else ""
        mark = run.tokenizer.target.mark_id
        given = f"{mark} if len(written) == 1 else " if mark else ""
        silenced = SILENCED_BY["onnxruntime"]
        return f"""\
import os
os.environ.setdefault("{silenced}", "1")  # before the import: else it tells Microsoft that it is used
import numpy as np, onnxruntime, sentencepiece

source, target = (sentencepiece.SentencePieceProcessor(model_file=name) for name in {(files[0], files[-1])!r})
encoder, decoder = (onnxruntime.InferenceSession(name) for name in ("encoder.onnx", "decoder.onnx"))
ids = np.array([{first}source.encode("..."){end}])
mask = np.ones_like(ids)
names = [one.name for one in encoder.get_outputs()]
memory = dict(zip(names, encoder.run(None, {{"input_ids": ids, "attention_mask": mask}})))
cache = {{name.replace("memory", "past"): keys[:, :, :0] for name, keys in memory.items()}}
names = [one.name.replace("present", "past") for one in decoder.get_outputs()]
written = [target.bos_id()]
while written[-1] != target.eos_id() and len(written) < 100:
    made = decoder.run(None, {{"input_ids": np.array([written[-1:]]), "attention_mask": mask, **memory, **cache}})
    cache = dict(zip(names, made))
    best = int(cache.pop("logits")[0, -1].argmax())
    written.append({given}best)
print(target.decode(written))"""


class Engine:
    """ONNX Runtime on one thread of the CPU; the search is tx's, the numbers are not."""

    bans = True

    def __init__(self, run: OpenedRun, place: Path) -> None:
        onnxruntime = needed("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self.name = f"ONNX Runtime {onnxruntime.__version__}"
        self._stepper = _Sessions(
            *(
                onnxruntime.InferenceSession(str(place / f"{name}.onnx"), options, providers=["CPUExecutionProvider"])
                for name in GRAPHS
            )
        )
        models = [SentencePieceProcessor(model_file=str(place / name)) for name in run.tokenizer.models()]
        self._source, self._target = models[0], models[-1]
        self._end = [EOS] * run.config.data.source_eos
        self._first = run.tokenizer.source.given
        mark = run.tokenizer.target.mark_id
        self._symbols = Symbols(bos=BOS, eos=EOS, banned=run.tokenizer.banned_target_ids, first=mark)

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        return [[*self._first, *ids, *self._end] for ids in self._source.encode(list(lines))]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return [str(self._target.decode(list(one))) if one else "" for one in ids]

    def greedy(self, sources: Sequence[Sequence[int]], *, limit: int) -> list[Walk]:
        walks = []
        for source in sources:  # one by one: the logits of a step are those of one sentence
            self._stepper.steps = []
            [one] = self._search([source], limit, SearchOptions(beam_size=1))
            logits = [step[0].numpy() for step in self._stepper.steps[: one.length]]
            walks.append(Walk(one.ids, not one.truncated, np.stack(logits)))
        return walks

    def beam(
        self, sources: Sequence[Sequence[int]], *, limit: int, beam_size: int, length_penalty: float
    ) -> list[Found]:
        options = SearchOptions(beam_size=beam_size, penalty=LengthPenalty(length_penalty))
        found = self._search(sources, limit, options)
        return [Found(one.ids, not one.truncated, one.log_probability) for one in found]

    def _search(self, sources: Sequence[Sequence[int]], limit: int, options: SearchOptions) -> list[Hypothesis]:
        limits, lines = [limit - 1] * len(sources), range(len(sources))
        made = search(
            self._stepper, *padded(sources), limits=limits, symbols=self._symbols, options=options, lines=lines
        )
        return [best for [best] in made]


class _Sessions:
    """The two graphs behind the seam that every search knows."""

    def __init__(self, encoder: Any, decoder: Any) -> None:
        self._encoder, self._decoder = encoder, decoder
        self._names = [one.name.replace("present", "past") for one in decoder.get_outputs()]
        self.steps: list[Tensor] = []

    def start(self, source_BS: Tensor, source_lengths_B: Tensor) -> _State:
        mask_BS = (torch.arange(source_BS.size(1)) < source_lengths_B[:, None]).long()
        made = self._encoder.run(None, {"input_ids": source_BS.numpy(), "attention_mask": mask_BS.numpy()})
        names = [one.name for one in self._encoder.get_outputs()]
        return _State(mask_BS.numpy(), dict(zip(names, made, strict=True)))

    def step(self, tokens_R: Tensor, state: _State) -> Tensor:
        rows = state.taken_BW.nonzero()[:, 0].numpy()
        given = {name: array[rows] for name, array in {"attention_mask": state.mask, **state.memory}.items()}
        made = self._decoder.run(None, {"input_ids": tokens_R[:, None].numpy(), **given, **state.past})
        found = dict(zip(self._names, made, strict=True))
        logits_RV = torch.from_numpy(found.pop("logits")).squeeze(1)
        state.past = found
        self.steps.append(logits_RV.clone())
        return logits_RV


class _State:
    """The memory of each sentence, and the cache of each beam, the beams of a sentence side by side."""

    def __init__(self, mask: np.ndarray, memory: dict[str, np.ndarray]) -> None:
        self.mask, self.memory = mask, memory
        self.taken_BW = torch.ones(len(mask), 1, dtype=torch.bool)
        self.past = {name.replace("memory", "past"): array[:, :, :0] for name, array in memory.items()}

    def reorder(self, parents_BW: Tensor) -> None:
        taken_BW = parents_BW >= 0
        self._choose(self._rows_BW().gather(1, parents_BW.clamp(min=0))[taken_BW], taken_BW)

    def keep(self, sentences: Tensor) -> None:
        taken_BW = self.taken_BW[sentences]
        self._choose(self._rows_BW()[sentences][taken_BW], taken_BW)
        kept = sentences.numpy()
        self.mask, self.memory = self.mask[kept], {name: array[kept] for name, array in self.memory.items()}

    def _rows_BW(self) -> Tensor:
        """Of the cache, for each place that has a beam."""
        return (self.taken_BW.flatten().cumsum(0) - 1).view(self.taken_BW.shape)

    def _choose(self, rows: Tensor, taken_BW: Tensor) -> None:
        self.past = {name: array[rows.numpy()] for name, array in self.past.items()}
        self.taken_BW = taken_BW


@contextmanager
def _unlogged() -> Iterator[None]:
    """Without a library's advice on other ways to do the same, which it gives to everybody."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _rounded(model: Any) -> Any:
    """The products with weights in int8, whose scale is chosen per column; activations when they are known."""
    quantization = needed("onnxruntime.quantization")
    with temporary_directory() as folder:
        exact, rounded = folder / "exact.onnx", folder / "rounded.onnx"
        with writing(folder):
            exact.write_bytes(model.SerializeToString())
            # A copy that says the shapes, a fiftieth larger, and the result; what is cut short there is no error.
            check_room(folder, 3 * exact.stat().st_size)
            kind = quantization.QuantType.QInt8
            with _unlogged():
                quantization.quantize_dynamic(
                    exact, rounded, op_types_to_quantize=["MatMul"], per_channel=True, weight_type=kind
                )
        return needed("onnx").load(str(rounded))
