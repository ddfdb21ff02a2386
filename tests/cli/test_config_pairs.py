"""`tx config diff` and `tx config from`, as they are typed."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from transformer_cli.cli.app import main
from transformer_cli.config.source import dump_config, load_config
from transformer_cli.errors import UsageError

CHANGES = {
    "model.d_model": "96",
    "model.n_layers": "{encoder: 3, decoder: 2}",
    "training.learning_rate": "0.5",
    "decoding.banned": "[a, b]",
    "data.phrasebook.n_pairs": "2000",
    "seed": "9",
}


@pytest.fixture
def said(tmp_path, monkeypatch, capsys):
    """stdout and stderr of `tx config` with these arguments."""
    monkeypatch.chdir(tmp_path)

    def said(*arguments: str) -> tuple[str, str]:
        assert main(["config", *arguments]) == 0
        return tuple(capsys.readouterr())

    return said


@pytest.mark.parametrize("n", range(1, len(CHANGES) + 1))
def test_the_difference_is_what_was_changed(n, said):
    some = dict(random.Random(n).sample(sorted(CHANGES.items()), n))
    changed = load_config("tiny", [f"{name}={value}" for name, value in some.items()])
    Path("runs/mine").mkdir(parents=True)
    Path("runs/mine/config.yaml").write_text(dump_config(changed), "utf-8")
    out, _ = said("diff", "tiny.yaml", "runs/mine", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert {row["setting"]: row["runs/mine"] for row in rows} == some
    out, _ = said("diff", "runs/mine", "tiny.yaml")
    assert sorted(line.split()[0] for line in out.splitlines()[2:]) == sorted(some)


def test_the_same_is_said_to_be_the_same(said):
    assert said("diff", "base.yaml", "base") == ("", "base.yaml and base say the same\n")


def test_two_spellings_of_a_model_are_no_difference(said):
    """Of these, five settings were listed; said twice is only what differs."""
    model = "extends: tiny\nname: x\nmodel: {{norm: layer-norm, bias: {}, n_layers: {}, d_head: {}}}\n"
    Path("one.yaml").write_text(model.format("true", "{encoder: 2, decoder: 2}", "null"), "utf-8")
    Path("two.yaml").write_text(model.format("{attention: true}", "2", "32"), "utf-8")
    Path("three.yaml").write_text(model.format("{norm: false}", "2", "16"), "utf-8")
    assert said("diff", "one.yaml", "two.yaml") == ("", "one.yaml and two.yaml say the same\n")
    rows = [json.loads(line) for line in said("diff", "one.yaml", "three.yaml", "--json")[0].splitlines()]
    found = {row["setting"]: row["three.yaml"] for row in rows if not row["setting"].startswith("model.bias.")}
    assert found == {"model.bias": "{attention: true, feed_forward: true, norm: false}", "model.d_head": "16"}


def test_a_run_says_what_it_meant_when_it_was_trained(said, tmp_path):
    """Its rate was a factor of noam's then; configurations are told that noam takes none."""
    (tmp_path / "old").mkdir()
    text = "name: one\nmodel: {{d_model: 64}}\ntraining: {{schedule: noam, learning_rate: {}, warmup_steps: 40}}\n"
    (tmp_path / "old/config.yaml").write_text(text.format("1.0"), "utf-8")
    (tmp_path / "new.yaml").write_text(text.format("null"), "utf-8")
    assert said("diff", "old", "new.yaml") == ("", "old and new.yaml say the same\n")


def test_what_is_left_over_is_counted_and_stands_in_the_file(said):
    Path("theirs.yaml").write_text("training: {learning_rate: 0.1, clip_grad_val: 1.0}\n", "utf-8")
    out, err = said("from", "joeynmt", "theirs.yaml")
    assert "  learning_rate: 0.1 # training.learning_rate\n" in out
    left = [line for line in out.split("# Not carried over:\n")[1].splitlines() if line.startswith("# ")]
    assert left[0].startswith("# training.clip_grad_val: 1.0: ")
    assert err == f"not carried over: {len(left)}, with the reasons at the end\n"
    row = json.loads(said("from", "joeynmt", "theirs.yaml", "--json")[0])
    assert row["settings"]["training.learning_rate"] == 0.1
    assert len(row["left"]) == len(left)


@pytest.mark.parametrize(
    "arguments",
    [
        ["diff", "tiny"],
        ["diff", "tiny", "base", "big"],
        ["diff", "tiny", "base", "--set", "seed=1"],
        ["from", "joeynmt"],
        ["from", "tensor2tensor", "x"],
        ["model", "training"],
    ],
)
def test_other_numbers_of_words_are_refused(arguments, said):
    with pytest.raises(UsageError):
        main(["config", *arguments])
