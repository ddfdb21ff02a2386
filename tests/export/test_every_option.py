"""No option of `model:` is forgotten, and beams are the same wherever a model goes.

What is tried here is what the tests of each format go through: equal there, or refused by its name.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import PAIRS
from shapes import one_by_one, with_model

from transformer_cli.config.model import ModelConfig
from transformer_cli.export.exporting import export, probe_of
from transformer_cli.export.formats import FORMATS
from transformer_cli.loading import translator_of
from transformer_cli.tokenizer import EOS

PACKAGES = {"ctranslate2": "ctranslate2", "hugging-face": "transformers", "onnx": "onnxruntime"}
A_NUMBER = "a number"


def allowed(name: str, schema: dict[str, Any], parts: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each value that the schema allows an option, and each of the options inside of it."""
    for one in schema.get("anyOf", [schema]):
        if "$ref" in one:
            inner = parts[one["$ref"].rsplit("/", 1)[1]]
            for part, described in inner["properties"].items():
                yield from allowed(f"{name}.{part}", described, parts)
        elif "enum" in one:
            yield from ((name, value) for value in one["enum"])
        elif one["type"] == "boolean":
            yield from ((name, value) for value in (True, False))
        else:
            yield name, {"integer": A_NUMBER, "number": A_NUMBER, "null": None}[one["type"]]


def tried(options: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What a shape sets, its parts as the schema calls them."""
    whole = ModelConfig.model_validate(options).model_dump(include=set(options))
    for name, value in whole.items():
        for path, one in (
            {f"{name}.{part}": it for part, it in value.items()}.items() if isinstance(value, dict) else [(name, value)]
        ):
            yield path, A_NUMBER if type(one) in (int, float) else one


def test_every_value_of_every_option_is_tried():
    schema = ModelConfig.model_json_schema()
    wanted = {
        one for name, field in schema["properties"].items() for one in allowed(name, field, schema.get("$defs", {}))
    }
    assert len(wanted) > 60
    assert wanted <= {one for options in one_by_one() for one in tried(options)}


@pytest.mark.parametrize("name", FORMATS.own)
def test_of_200_sentences_every_beam_is_the_same_in_every_engine(loaded_run, tmp_path, name):
    """Nothing ends here: what a beam does about hypotheses that have ended, each engine has its own way of."""
    pytest.importorskip(PACKAGES[name])
    run = with_model(loaded_run, norm_position="post", tied="none", output_bias=True)
    with torch.no_grad():
        for tensor in run.model.parameters():  # large ones, so that texts differ
            if tensor.dim() == 2:
                tensor.copy_(torch.randn_like(tensor) * 0.6)
        run.model.output_bias[[EOS, *run.tokenizer.banned_target_ids]] = -50
    words, drawn = sorted({word for source, _ in PAIRS for word in source.split()}), random.Random(1)
    lines = [" ".join(drawn.choices(words, k=drawn.randint(2, 7))) for _ in range(200)]
    translator = translator_of(run, run.config)
    translator.config = translator.config.model_copy(update={"max_length": 12, "max_length_factor": 100})
    ours = [one.ids for one in translator.translate_all(lines, beam_size=4, length_penalty=1.0)]
    there = FORMATS.load(name)()
    there.write(run, tmp_path, quantization=None)
    sources = translator.encode_source(lines)
    theirs = there.open(run, tmp_path).beam(sources, limit=12 + (name == "onnx"), beam_size=4, length_penalty=1.0)
    assert ours == [one.ids for one in theirs]
    assert {len(ids) for ids in ours} == {12}
    assert len({*ours}) > 20


@pytest.mark.parametrize("n", [1, 99, 100, 101, 230])
def test_a_hundred_lines_are_compared_where_there_are_so_many(loaded_run, n):
    """Those that the model can read, spread over all of them."""
    readable = [f"ein bier {'nicht ' * (number % 7)}{number}" for number in range(n)]
    texts = probe_of(loaded_run, [line for one in readable for line in ("", one)]).texts
    assert len({*texts}) == len(texts) == min(100, n)
    places = [readable.index(text) for text in texts]
    assert places == sorted(places)
    assert (places[0], places[-1] >= n - 3) == (0, True)


@pytest.mark.parametrize("name", FORMATS.own)
def test_what_never_ends_is_compared_up_to_the_last_position(loaded_run, tmp_path, name):
    """What was written there was read with its last piece, by one position more than the model's table has."""
    pytest.importorskip(PACKAGES[name])
    run = with_model(loaded_run, positions="learned", max_positions=24, output_bias=True)
    with torch.no_grad():
        run.model.output_bias[EOS] = -100
    lines = [source for source, _ in PAIRS]
    assert probe_of(run, lines).limit == 24
    found = export(run, name, tmp_path / "there", lines=lines)
    assert found.exact.steps == len(lines) * (24 - (name == "onnx"))
