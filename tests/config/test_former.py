"""What is only counted has a section of its own; and what once was written otherwise is still understood."""

from __future__ import annotations

import pytest

from transformer_cli.config.accounting import AccountingConfig, CountedModel
from transformer_cli.config.model import ModelConfig
from transformer_cli.config.source import dump_config, load_config, load_with_places
from transformer_cli.errors import ConfigError
from transformer_cli.training.schedules import Spent, learning_rate


@pytest.fixture
def load(tmp_path):
    def load(text, *overrides):
        path = tmp_path / "x.yaml"
        path.write_text(text, encoding="utf-8")
        return load_config(path, overrides)

    return load


def test_the_model_that_is_trained_knows_nothing_of_what_is_only_counted():
    assert ModelConfig.model_fields.keys().isdisjoint(AccountingConfig.model_fields)
    assert CountedModel.model_fields.keys() == ModelConfig.model_fields.keys() | AccountingConfig.model_fields.keys()


def test_a_run_carries_nothing_of_what_is_only_counted(load):
    assert "accounting" not in dump_config(load("seed: 2"))
    counted = load("accounting: {vocab: 7}")
    assert load(dump_config(counted)) == counted


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (
            "model: {architecture: decoder-only, vocab: 9, d_ff: 8, extra: [{name: a, shape: [2]}]}",
            "accounting: {architecture: decoder-only, vocab: 9, extra: [{name: a, shape: [2]}]}\nmodel: {d_ff: 8}",
        ),
        (
            "model: {vocab: 9}\naccounting: {architecture: encoder-only}",
            "accounting: {architecture: encoder-only, vocab: 9}",
        ),
        ("extends: gpt2\nmodel: {vocab: 9}", "extends: gpt2\naccounting: {vocab: 9}"),
        (
            "model: {bias: {attention: [query, value], norm: false}}",
            "accounting: {attention_biases: [query, value]}\nmodel: {bias: {norm: false}}",
        ),
    ],
)
def test_what_once_was_part_of_the_model_is_still_understood_there(load, before, now):
    assert load(before) == load(now)


@pytest.mark.parametrize(("sample", "search"), [("true", "sampling"), ("false", "beam")])
def test_the_former_switch_of_sampling_is_understood(load, sample, search):
    assert load(f"decoding: {{sample: {sample}}}").decoding.search == search
    assert load("seed: 1", f"decoding.sample={sample}").decoding.search == search


@pytest.mark.parametrize("nothing", ["0", "0.0"])
def test_words_that_were_not_dropped_are_no_setting_of_an_older_run(load, nothing):
    config = load(f"training: {{max_steps: 7, word_dropout: {nothing}}}")
    assert config == load("training: {max_steps: 7}")
    with pytest.raises(ConfigError, match="word_dropout"):
        load("training: {word_dropout: 0.1}")


@pytest.mark.parametrize("factor", [1.0, 1, 0.001, 2.5])
def test_a_run_whose_noam_had_a_factor_goes_on_along_the_curve_that_it_meant(tmp_path, factor):
    path = tmp_path / "x.yaml"
    path.write_text(
        f"training: {{schedule: noam, learning_rate: {factor}, warmup_steps: 40}}\nmodel: {{d_model: 64}}\n"
    )
    config, _ = load_with_places(path, of_run=True)
    assert config.training.schedule == ("noam" if factor == 1 else "inverse-sqrt")
    for step in (1, 39, 40, 41, 1000):
        meant = factor * 64**-0.5 * min(step**-0.5, step * 40**-1.5)
        assert learning_rate(Spent(step), config.training, d_model=64) == pytest.approx(meant, rel=1e-12)
    with pytest.raises(ConfigError, match="noam is the paper's rate") as refused:
        load_config(path)
    if factor != 1:
        assert f"such as {config.training.learning_rate!r}, which this setting used to mean" in refused.value.message


@pytest.mark.parametrize("written", ["schedule: noam, learning_rate: null", "schedule: linear, learning_rate: 0.1"])
def test_any_other_schedule_of_a_run_is_what_it_says(tmp_path, written):
    path = tmp_path / "x.yaml"
    path.write_text(f"training: {{{written}, warmup_steps: 40}}\nmodel: {{d_model: 64}}\n")
    assert load_with_places(path, of_run=True)[0] == load_config(path)


def test_an_override_may_name_the_former_place(load):
    assert load("extends: gpt2", "model.vocab=9").accounting.vocab == 9
    assert load("extends: whisper-base", "model.vocab.source=5").counted.vocab.source == 5


def test_a_mistake_at_the_former_place_is_told_where_it_stands(load):
    with pytest.raises(ConfigError, match=r"x\.yaml:1:16: `accounting\.vocab` is -3; expected a whole number"):
        load("model: {vocab: -3}")


def test_a_setting_at_both_places_is_refused(load):
    with pytest.raises(ConfigError, match=r"unknown setting `model\.vocab`"):
        load("model: {vocab: 7}\naccounting: {vocab: 9}")


def test_some_biases_contradict_none_at_all(load):
    with pytest.raises(ConfigError, match=r"model\.bias says that no projection of attention has a bias"):
        load("accounting: {attention_biases: [query]}\nmodel: {bias: false}")
