"""Settings read back from the schema, and the names that lead to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from transformer_cli.config import elsewhere
from transformer_cli.config.nodes import Source, read_nodes
from transformer_cli.config.run import RunConfig
from transformer_cli.config.settings import look_up, sections, settings, written
from transformer_cli.config.source import load_config
from transformer_cli.errors import ConfigError

NAMES = {setting.name for setting in settings()} | set(sections())


@pytest.fixture
def refused(tmp_path, monkeypatch):
    """The error for a configuration that is wrong."""
    monkeypatch.chdir(tmp_path)

    def refused(text: str) -> ConfigError:
        Path("x.yaml").write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError) as caught:
            load_config("x.yaml")
        return caught.value

    return refused


def test_every_setting_says_what_it_does_and_what_it_takes():
    for setting in settings():
        assert setting.about.endswith("."), setting.name
        assert setting.takes_in_words
    assert {"seed", "training.learning_rate", "data.phrasebook.seed", "model.bias.norm"} <= NAMES


def test_a_default_is_written_as_a_file_would_have_it():
    for setting in settings():
        if not setting.is_required:
            node = read_nodes(Source("x", f"{{x: {setting.default_in_words}}}")).child("x")
            assert node is not None
            assert node.plain() == setting.default, setting.name
    assert written(1e-9) == "1e-9"
    assert written(["▁the", 'a"b\\', "no: 1", "1", "null"]) == r'[▁the, "a\"b\\", "no: 1", "1", "null"]'


# --- names of other toolkits ----------------------------------------------------------------------------------------


def test_names_of_others_lead_to_settings_that_exist():
    """A setting that is renamed takes its table along."""
    for ours in elsewhere.table_of("names"):
        name, _, value = ours.partition("=")
        assert name in NAMES, name
        if value:
            [setting] = [one for one in settings() if one.name == name]
            assert value in [choice for member in setting.takes.members for choice in member.choices], ours


def test_a_name_of_others_has_one_meaning():
    names = [
        name for part in ("names", "instead") for line in elsewhere.table_of(part).values() for name in line.split()
    ]
    assert sorted(names) == sorted(set(names))
    assert all(elsewhere.ours(name) or elsewhere.instead(name) for name in names)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("training: {lr: 1}", "`training.lr`; here it is `training.learning_rate`, a number above 0\n"),
        ("learn-rate: 1", "`learn-rate`; here it is `training.learning_rate`, a number above 0\n"),
        ("training: {batch_size: 64}", "`training.batch_size`; here it is `training.budget_tokens`, a whole number"),
        ("training: {early_stopping: 5}", "`training.early_stopping`; here it is `training.patience`, a whole"),
        ("training: {type: adam}", "`training.type`; here it is `training.optimizer`, one of adam, adamw"),
        ("model: {type: transformer}", "`model.type`; tx trains encoder-decoder Transformers and nothing else; "),
        ("tokenizer: {type: bpe}", "`tokenizer.type`; here it is `tokenizer.kind`, one of bpe, unigram, word"),
        ("model: {dim: 64}", "`model.dim`; here it is `model.d_model`, a whole number above 0\n"),
        ("model: {dim-emb: 64}", "`model.dim-emb`; here it is `model.d_model`, a whole number above 0\n"),
        ("model: {rope: true}", "`model.rope`; here it is `model.positions: rotary`\n"),
        ("model: {share_embeddings: true}", "`model.share_embeddings`; here it is `model.tied: embeddings`\n"),
        ("decoding: {repetition_penalty: 2}", "`decoding.repetition_penalty`; tx has no such penalty; nearest is "),
        ("testing: {beam_size: 5}", "`testing`; here it is `decoding`\n"),
        (
            "batch_size: 64",
            "`batch_size`; there is `training.budget_tokens` (padded tokens of one batch, at most, on the source side "
            "and on the target side) and `decoding.batch_size` (sentences translated together, at most)\n",
        ),
        ("max_length: 5", "`max_length`; it belongs to `data` or `decoding`\n"),
        ("training: {lowercase: true}", "`training.lowercase`; it belongs to `evaluation`\n"),
        ("data: {lowercase: true}", "`data.lowercase`; tx takes text as it is; nearest is tokenizer.normalization\n"),
        ("model: {device: cpu}", "`model.device`; it belongs to the top, outside of all sections\n"),
        (
            "data: {train: {src: a, target: b}, valid: c}",
            "`data.train.src`; here it is `data.train.source`",
        ),
    ],
)
def test_a_name_of_others_is_told_ours(refused, text, expected):
    assert expected in refused(text).message


def test_what_a_section_takes_is_listed_once_for_all_its_mistakes(refused):
    """It used to be listed for each."""
    told = refused("training: {zzz: 1, yyy: 2, xxx: 3}\nqqq: 1\n")
    assert told.message.count("; valid are budget_tokens, ") == 1
    assert told.message.count("; valid are extends, name, ") == 1
    assert told.hint == "`tx config` lists all settings, and `tx config NAME` explains one"


def test_a_mistake_that_names_what_was_meant_needs_no_list(refused):
    assert refused("training: {lr: 1}").hint is None


# --- looking up -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "found", "remark"),
    [
        ("training.learning_rate", ["training.learning_rate"], ""),
        ("learning_rate", ["training.learning_rate"], ""),
        ("max_length", ["data.max_length", "decoding.max_length"], ""),
        ("lr", ["training.learning_rate"], "lr is training.learning_rate in tx"),
        ("--learn-rate", ["training.learning_rate"], "--learn-rate is training.learning_rate in tx"),
        ("rope", ["model.positions"], "rope is model.positions: rotary in tx"),
        ("model.beam_size", ["decoding.beam_size"], "model.beam_size is decoding.beam_size in tx"),
        (
            "training.learnin_rate",
            [],
            "there is no setting training.learnin_rate; did you mean training.learning_rate?",
        ),
        ("qqq", [], "there is no setting qqq"),
    ],
)
def test_a_name_is_looked_up(asked, found, remark):
    lookup = look_up(asked)
    assert ([setting.name for setting in lookup.settings], lookup.remark) == (found, remark)


def test_what_tx_has_not_says_what_is_nearest():
    assert look_up("repetition_penalty").remark.startswith("repetition_penalty: tx has no such penalty; nearest is ")


def test_a_bare_name_that_means_two_things_leads_to_both():
    both = look_up("batch_size")
    assert {one.name for one in both.settings} == {"decoding.batch_size", "training.budget_tokens"}
    assert both.remark == "batch_size of training is training.budget_tokens in tx"


def test_a_section_is_all_that_is_in_it():
    found = [setting.key for setting in look_up("serving").settings]
    assert found == list(RunConfig.model_fields["serving"].annotation.model_fields)
