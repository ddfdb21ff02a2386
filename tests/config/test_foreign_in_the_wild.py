"""Configurations of other toolkits as they lie about in repositories: scripts, dumps, and older versions' names."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import yaml
from fuzz import TRIED

from transformer_cli.config.foreign import TABLES, Carried, carry_over, toolkits
from transformer_cli.config.run import RunConfig
from transformer_cli.config.settings import written
from transformer_cli.config.source import load_config
from transformer_cli.training.schedules import Spent, learning_rate


def carried(toolkit: str, text: str, folder: Path) -> tuple[Carried, RunConfig]:
    """What is carried over, and the configuration that it is when it is read again."""
    (folder / "theirs").write_text(text, "utf-8")
    found = carry_over(toolkit, folder / "theirs")
    (folder / "ours.yaml").write_text(found.as_yaml(), "utf-8")
    return found, load_config(folder / "ours.yaml")


@pytest.mark.parametrize("written", ["2ku", "2000u", "2000"])
def test_marian_counts_updates_in_thousands(written, tmp_path):
    """`valid-freq: 2ku` of marian-examples was no whole number, and left."""
    text = "marian --task transformer-base --valid-freq {0} --lr-warmup {0} --lr-decay-inv-sqrt {0} --after 600ku"
    found, config = carried("marian", text.format(written), tmp_path)
    assert (config.training.validate_every, config.training.warmup_steps) == (2000, 2000)
    assert config.training.max_steps == 600_000
    assert not any(name.startswith(("valid", "lr_", "after")) for name in found.left)


@pytest.mark.parametrize(
    ("said", "ema"),
    [("", 0.9999), (" --exponential-smoothing", 0.9999), (" --exponential-smoothing 1e-3", 0.999)]
    + [(f" --exponential-smoothing {zero}", None) for zero in ("0", "0.0")],
)
@pytest.mark.parametrize("task", [" --task transformer-base", " --type transformer"])
def test_marian_averages_as_it_is_told(task, said, ema, tmp_path):
    """Alone the flag means 1e-4; it was lost, and 0 left the average that the task has by default."""
    _, config = carried("marian", f"marian{task}{said}", tmp_path)
    assert config.training.ema == (ema if said or "task" in task else None)


def test_a_flag_of_marians_alone_has_the_value_that_it_has_there(tmp_path):
    _, config = carried("marian", "marian --type transformer --normalize --beam-size 6", tmp_path)
    assert (config.decoding.length_penalty, config.decoding.beam_size) == (1.0, 6)


def test_lists_that_marian_writes_empty_say_nothing(tmp_path):
    """Each config.yml that it writes has them; they took the default's place, and Adam had our betas."""
    found, config = carried(
        "marian", "type: transformer\noptimizer-params:\n  []\nsentencepiece-alphas: []\n", tmp_path
    )
    assert config.training.betas == [0.9, 0.999]
    assert not any("[]" in name for name in found.left)


@pytest.mark.parametrize("file", ["2>&1 | tee log", "> log 2>&1", '&> "$log"', ">>log", "2> /dev/null"])
def test_where_output_goes_is_no_value(file, tmp_path):
    """`--keep-last-params 60 2>&1` had the value [60, "2>"], and `--fp16 > log` was lost without a word."""
    _, config = carried("fairseq", f"fairseq-train bin --fp16 --keep-last-epochs 60 {file}", tmp_path)
    assert config.training.keep_last == 60
    _, config = carried("fairseq", f"fairseq-train bin --fp16 {file}", tmp_path)
    assert config.precision == "fp16"


def test_a_variable_of_the_shell_has_the_value_that_was_set_before(tmp_path):
    script = (
        "#!/bin/bash\nlr=5e-4\nexport D=corpus warm=400\nall='--beam 3 --seed 7'\nfairseq-preprocess --trainpref $D/x"
    )
    script += "\nfairseq-train bin --lr-scheduler inverse_sqrt --lr $lr --warmup-updates ${warm} --dropout $unknown"
    found, config = carried(
        "fairseq", f"{script} --clip-norm 1\nlr=1\nhere=$(pwd)\nfairseq --validpref $here/y", tmp_path
    )
    assert (config.training.learning_rate, config.training.warmup_steps) == (5e-4, 400)
    assert found.values["data.train"][0] == "corpus/x"
    assert found.values["data.valid"][0] == "corpus/valid"
    assert "dropout: $unknown" in found.left


def test_words_in_braces_are_as_many(tmp_path):
    command = 'S=en\nmarian --train-sets data/c.{$S,de}.gz --valid-sets data/{v.en,v.de} --odd \'{"beam": 5, "n": 1}\''
    found, _ = carried("marian", command, tmp_path)
    assert found.values["data.train"][0] == {"source": "data/c.en.gz", "target": "data/c.de.gz"}
    assert found.values["data.valid"][0] == {"source": "data/v.en", "target": "data/v.de"}
    assert any(name.startswith("odd: ") and "beam" in name for name in found.left)


@pytest.mark.parametrize(
    ("toolkit", "text", "left"),
    [
        ("sockeye", "num_layers: 6", "learning_rate_scheduler_type: plateau-reduce, Sockeye's default"),
        ("opennmt", "layers: 6", "optim: sgd, OpenNMT-py's default"),
        ("opennmt", "layers: 6", "normalization: sents, OpenNMT-py's default"),
        ("joeynmt", "training: {epochs: 3}", "training.normalization: batch, JoeyNMT's default"),
    ],
)
def test_what_theirs_does_by_default_and_tx_does_not_is_told(toolkit, text, left, tmp_path):
    """By their parsers of options; it was said to be constant, `Sockeye's default`, or not at all."""
    found, _ = carried(toolkit, text, tmp_path)
    assert left in found.left
    name, value = left.partition(":")[0], "tokens" if "normal" in left else "none"
    found, _ = carried(toolkit, f"{text}\n{name}: {value}", tmp_path)
    assert not [other for other in found.left if other.startswith(name) and other.endswith("'s default")]


def test_a_text_with_one_side_is_told_and_to_be_filled_in(tmp_path):
    """A language model's; it was `data.train: {'source': 'a.txt', 'target': None} is not text`."""
    found, _ = carried("opennmt", "data: {one: {path_src: a.txt}}", tmp_path)
    assert found.left["data.one.path_src: a.txt"] == "data.train has a source and a target; the target is not said"
    assert found.values["data.train"][0] == "corpus/train"


@pytest.mark.parametrize(
    ("toolkit", "text", "name", "value"),
    [
        ("opennmt", "rnn_size: 256\ndecay_method: noam\nlearning_rate: 2\nwarmup_steps: 8000", "model.d_model", 256),
        ("opennmt", "rnn_size: 256\ndecay_method: noam\nlearning_rate: 2", "training.learning_rate", 0.00197642),
        ("opennmt", "optim: adamw", "training.optimizer", "adamw"),
        ("sockeye", "checkpoint_frequency: 300", "training.validate_every", 300),
        ("sockeye", "gradient_clipping_type: norm\ngradient_clipping_threshold: -1", "training.clip_norm", None),
        ("sockeye", "sockeye-train --transformer-preprocess '' --num-layers 6", "model.norm_position", "pre"),
    ],
)
def test_what_older_versions_call_it_is_understood(toolkit, text, name, value, tmp_path):
    found, _ = carried(toolkit, text, tmp_path)
    assert found.values[name][0] == value
    assert not any(theirs.startswith("transformer_preprocess") for theirs in found.left)


@pytest.mark.parametrize(
    ("toolkit", "text", "left", "why"),
    [
        ("fairseq", "dataset: {batch_size: 64}", "dataset.batch_size: 64", "training.budget_tokens"),
        ("joeynmt", "data: {src: {lowercase: true}}", "data.src.lowercase: true", "tokenizer.normalization"),
        ("opennmt", "optim: adagrad", "optim: adagrad", "training.optimizer"),
        ("marian", "type: s2s", "type: s2s", "trains encoder-decoder Transformers"),
        ("joeynmt", "model: {encoder: {type: gru}}", "model.encoder.type: gru", "trains encoder-decoder Transformers"),
    ],
)
def test_what_is_left_names_what_it_means_in_its_section(toolkit, text, left, why, tmp_path):
    found, _ = carried(toolkit, text, tmp_path)
    assert why in found.left[left]


def drawn(toolkit: str, chance: random.Random, odd: tuple[str, ...] = ()) -> list[str]:
    """Lines of a file of theirs: settings that its table knows, each with a value that it knows, a number or odd."""
    table = yaml.safe_load((TABLES / f"{toolkit}.yaml").read_text("utf-8"))
    lines = {}
    for theirs, meaning in [*table["means"].items(), *table.get("families", {}).items()]:
        known = [written(value) for value in meaning if value != "else"] if isinstance(meaning, dict) else []
        for name in {theirs.replace("*", one) for one in ("encoder", "decoder")}:
            name = name if "." in name or toolkit != "eole" else f"model.{name}"  # as OpenNMT-py's it has no section
            if chance.random() < 0.5:
                lines[name] = f"{name}: {chance.choice([*(known or ['1', '2', 'text']), *odd])}"
    return list(lines.values())


ODD = (
    *("null", "''", "text", "$X", "[]", "[1, 2, 3]", "[[1], {a: 2}]", "0", "-1", ".nan", ".inf", "1e300", "true"),
    *("9" * 40, "999999999999e", "'9999999999999999999999u'"),
)


@pytest.mark.parametrize("form", ["file", "command"])
@pytest.mark.parametrize("toolkit", toolkits())
def test_a_value_of_any_kind_is_taken_or_told(toolkit, form, tmp_path):
    """Computing with one was a bug in tx: a warm-up of 0, of null, of text; texts of three sides, or of none."""
    chance = random.Random(1)
    for _ in range(TRIED or 20):
        lines = drawn(
            toolkit, chance, ODD if form == "file" else (*ODD, *(f"{'9' * 5000}{unit}" for unit in ("", "u", "e")))
        )
        text = "\n".join(lines) if form == "file" else " ".join(f"--{line.replace(':', '', 1)}" for line in lines)
        (tmp_path / "theirs").write_text(text, "utf-8")
        assert isinstance(yaml.safe_load(carry_over(toolkit, tmp_path / "theirs").as_yaml()), dict)


@pytest.mark.parametrize(
    ("toolkit", "text", "left"),
    [
        ("opennmt", "decay_method: noam\nwarmup_steps: 0", "warmup_steps: 0"),
        ("opennmt", "onmt_train --decay_method rsqrt --warmup_steps $WARM", "warmup_steps: $WARM"),
        ("eole", "training: {decay_method: noam}\nmodel: {hidden_size: big}", "model.hidden_size: big"),
        (
            "joeynmt",
            "training: {scheduling: noam, learning_rate_factor: [1, 2]}",
            "training.learning_rate_factor: [1, 2]",
        ),
    ],
)
def test_a_rate_that_cannot_be_computed_is_told(toolkit, text, left, tmp_path):
    found, config = carried(toolkit, text, tmp_path)
    assert "choose training.learning_rate" in found.left[left]
    assert config.training.schedule == "inverse-sqrt"
    assert config.training.learning_rate == RunConfig().training.learning_rate


@pytest.mark.parametrize(
    ("toolkit", "text", "left"),
    [
        ("marian", "train-sets: [a.s1, a.s2, a.t]", "data.train has source and target, and here are 3"),
        ("joeynmt", "data: {train: []}", "data.train has source and target, and here are 0"),
        ("opennmt", "layers: [1, 2, 3]", "model.n_layers has encoder and decoder, and here are 3"),
    ],
)
def test_what_has_more_sides_than_two_or_none_is_told(toolkit, text, left, tmp_path):
    found, _ = carried(toolkit, text, tmp_path)
    assert left in found.left.values()


def test_a_rate_that_falls_until_an_update_ends_training_there_if_nothing_else_does(tmp_path):
    line = "fairseq-train bin --lr-scheduler polynomial_decay --total-num-update 5000 --max-update 0"
    _, config = carried("fairseq", line, tmp_path)
    assert config.training.max_steps == 5000


@pytest.mark.parametrize("toolkit", toolkits())
def test_nothing_depends_on_the_order_of_a_files_lines(toolkit, tmp_path):
    """`bf16: true` before `fp16: false` was fp32, and positions were those of whichever line came last."""
    chance = random.Random(1)
    for _ in range(TRIED or 12):
        lines = drawn(toolkit, chance)
        both = []
        for _ in range(2):
            chance.shuffle(lines)
            (tmp_path / "theirs").write_text("\n".join(lines), "utf-8")
            both.append(carry_over(toolkit, tmp_path / "theirs").as_yaml())
        assert both[0] == both[1]


@pytest.mark.parametrize(
    ("toolkit", "lines", "name", "value"),
    [
        ("fairseq", "bf16: true\nfp16: false", "precision", "bf16"),
        ("sockeye", "amp: true\napex_amp: false\ndtype: float32", "precision", "fp16"),
        ("opennmt", "position_encoding_type: SinusoidalConcat\nposition_encoding: true", "model.positions", "halves"),
        ("opennmt", "position_encoding_type: SinusoidalConcat\nposition_encoding: false", "model.positions", "none"),
        (
            "opennmt",
            "max_relative_positions: -1\nposition_encoding_type: SinusoidalConcat",
            "model.positions",
            "rotary",
        ),
    ],
)
def test_what_two_settings_say_together_is_theirs(toolkit, lines, name, value, tmp_path):
    found, _ = carried(toolkit, lines, tmp_path)
    assert found.values[name][0].removeprefix("sinusoidal-") == value


@pytest.mark.parametrize(
    ("toolkit", "text", "tied"),
    [
        ("marian", "tied-embeddings: false\ntied-embeddings-src: false\ntied-embeddings-all: true", "all"),
        ("marian", "tied-embeddings: true\ntied-embeddings-src: false\ntied-embeddings-all: false", "decoder"),
        ("marian", "task: transformer-base", "all"),
        ("marian", "task: transformer-base\ntied-embeddings-all: false", "none"),
        ("marian", "task: transformer-base\ntied-embeddings-all: false\ntied-embeddings: true", "decoder"),
        ("fairseq", "model: {share_decoder_input_output_embed: false, share_all_embeddings: true}", "all"),
        ("fairseq", "model: {share_decoder_input_output_embed: true, share_all_embeddings: false}", "decoder"),
    ],
)
def test_all_embeddings_are_tied_where_one_setting_says_so(toolkit, text, tied, tmp_path):
    """Marian writes all three settings into its files, and the two that were false had the last word."""
    _, config = carried(toolkit, text, tmp_path)
    assert config.model.tied == tied


@pytest.mark.parametrize(("said", "patience"), [("", 10), ("early-stopping: 0", None), ("early-stopping: 5", 5)])
def test_marians_early_stopping_of_0_never_stops(said, patience, tmp_path):
    """By its Scheduler::keepGoing; it was 10, the default."""
    _, config = carried("marian", f"type: transformer\n{said}", tmp_path)
    assert config.training.patience == patience


def test_lines_of_a_script_may_end_as_windows_ends_them(tmp_path):
    """A backslash before CR LF went on with nothing, and the last value before it had a CR."""
    script = "fairseq-train bin \\\n  --lr 5e-4 --seed 7 \\\n  --source-lang de\\\n\nfairseq-x --target-lang en\n"
    (tmp_path / "theirs").write_bytes(script.replace("\n", "\r\n").encode())
    found = carry_over("fairseq", tmp_path / "theirs")
    names = ("training.learning_rate", "seed", "data.source", "data.target")
    assert [found.values[name][0] for name in names] == [5e-4, 7, "de", "en"]
    assert not any("\\r" in theirs for theirs in found.left)


@pytest.mark.parametrize(
    ("toolkit", "text", "expected"),
    [
        ("joeynmt", "model: {encoder: {dropout: 0.2}, decoder: {dropout: 0.2}}", (0.2, 0.2, 0.2)),
        ("joeynmt", "model: {encoder: {num_layers: 2}}", (0.1, 0.1, 0.1)),
        ("opennmt", "dropout: 0.2", (0.2, 0.1, 0.2)),
        ("opennmt", "dropout: 0.2\nattention_dropout: 0.0", (0.2, 0.0, 0.2)),
        ("opennmt", "layers: 6", (0.3, 0.1, 0.3)),
        ("eole", "training: {dropout: [0.2], attention_dropout: [0.15]}", (0.2, 0.15, 0.2)),
        ("eole", "model: {layers: 6}", (0.3, 0.1, 0.3)),
    ],
)
def test_dropout_is_wherever_theirs_drops(toolkit, text, expected, tmp_path):
    """Their one setting holds within the feed-forward network, too, and in JoeyNMT for the weights of attention."""
    _, config = carried(toolkit, text, tmp_path)
    model = config.model
    assert (model.dropout, model.attention_dropout, model.activation_dropout) == expected


@pytest.mark.parametrize(
    ("stacks", "position", "left"),
    [
        ("encoder: {layer_norm: post}, decoder: {layer_norm: post}", "post", None),
        ("encoder: {layer_norm: pre}, decoder: {layer_norm: pre}", "pre", None),
        ("encoder: {layer_norm: post}, decoder: {num_layers: 2}", "post", None),
        ("encoder: {layer_norm: pre}, decoder: {num_layers: 2}", None, "the encoder's is pre, the decoder's post; "),
        (
            "encoder: {num_layers: 2}, decoder: {layer_norm: pre}",
            None,
            "pre, without one at its end, the decoder's pre",
        ),
        ("encoder: {num_layers: 2}, decoder: {num_layers: 2}", None, "pre, without one at its end, the decoder's post"),
    ],
)
def test_joeynmts_stacks_that_norm_unlike_each_other_are_told(stacks, position, left, tmp_path):
    """By its encoders.py and decoders.py; where nothing is said it was pre, "JoeyNMT's default"."""
    found, _ = carried("joeynmt", f"model: {{{stacks}}}", tmp_path)
    assert found.values.get("model.norm_position", (None,))[0] == position
    assert (left or "") in found.left.get("layer_norm", "")
    assert ("layer_norm" in found.left) == (left is not None)


@pytest.mark.parametrize(
    ("toolkit", "text"),
    [
        ("opennmt", "decay_method: rsqrt\nlearning_rate: 2\nwarmup_steps: {}"),
        ("eole", "training: {{decay_method: rsqrt, learning_rate: 2, warmup_steps: {}}}"),
    ],
)
def test_a_rate_that_begins_at_its_peak_is_told(toolkit, text, tmp_path):
    """Theirs is 1 / sqrt(max(step, warmup_steps)); it rose in tx, without a word."""
    for warmup in (400, 0):
        found, config = carried(toolkit, text.format(warmup), tmp_path)
        told = [why for theirs, why in found.left.items() if theirs.endswith("decay_method: rsqrt")]
        assert len(told) == bool(warmup)
        for step in (warmup + 1, 10_000):
            rate = learning_rate(Spent(step), config.training, d_model=512)
            assert rate == pytest.approx(2 / max(step, warmup) ** 0.5, rel=1e-4)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("", (50, 3.0, 0)),
        ("max-length: 80\nmax-length-factor: 2.5", (80, 2.5, 0)),
        ("task: transformer-base", (100, 3.0, 0)),
    ],
)
def test_marians_limits_of_length_hold(said, expected, tmp_path):
    """Its config_parser.cpp leaves out pairs of more than 50; a translation has up to 3 times as many as its source."""
    _, config = carried("marian", f"type: transformer\n{said}", tmp_path)
    decoding = config.decoding
    assert (config.data.max_length, decoding.max_length_factor, decoding.max_length_extra) == expected


@pytest.mark.parametrize(("ratio", "pieces"), [("", 25), ("max_length_ratio: 3", 35), ("max_length_ratio: 0", 250)])
def test_eoles_translations_are_as_long_as_there(ratio, pieces, tmp_path):
    """Of 10 source pieces, by its Translator.predict_batch; 0, without such a limit, became one of 10."""
    _, config = carried("eole", f"inference: {{beam_size: 5, {ratio}}}", tmp_path)
    decoding = config.decoding
    assert min(10 * decoding.max_length_factor + decoding.max_length_extra, decoding.max_length or 0) == pieces
