"""Configurations of other toolkits in our words: recipes that they publish, and rates by their own formulas."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest
import yaml

from transformer_cli.accounting.freezing import frozen
from transformer_cli.config import consequences, foreign
from transformer_cli.config.foreign import carry_over, toolkits
from transformer_cli.config.run import RunConfig
from transformer_cli.config.settings import settings
from transformer_cli.config.source import load_config
from transformer_cli.errors import ConfigError
from transformer_cli.training.schedules import Spent, learning_rate

FAIRSEQ = """
CUDA_VISIBLE_DEVICES=0 fairseq-train data-bin/iwslt14.tokenized.de-en \\
    --arch transformer_iwslt_de_en --share-decoder-input-output-embed \\
    --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 0.0 \\
    --lr 5e-4 --lr-scheduler inverse_sqrt --warmup-updates 4000 \\
    --dropout 0.3 --weight-decay 0.0001 --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \\
    --max-tokens 4096 --eval-bleu --eval-bleu-args '{"beam": 5, "max_len_a": 1.2, "max_len_b": 10}' \\
    --best-checkpoint-metric bleu --maximize-best-checkpoint-metric --encoder-layerdrop 0.2
"""
"""The recipe for IWSLT'14 in fairseq's examples/translation, and an option that tx has not."""
JOEYNMT = """
name: mine
data: {train: train, dev: dev, src: {lang: de, level: bpe, voc_limit: 8000}, trg: {lang: en, voc_limit: 8000}}
training:
  optimizer: adam
  learning_rate_warmup: 300
  learning_rate_factor: 0.5
  scheduling: noam
  batch_size: 2048
  batch_type: token
  normalization: tokens
  early_stopping_metric: ppl
model:
  encoder: {type: transformer, num_layers: 4, num_heads: 4, hidden_size: 64, ff_size: 128, layer_norm: post}
  decoder: {type: transformer, num_layers: 2, num_heads: 4, hidden_size: 64, ff_size: 128, layer_norm: post}
  tied_softmax: true
testing: {beam_size: 5, beam_alpha: 1.0}
"""
OPENNMT = """
data:
    corpus_1: {path_src: a.de, path_tgt: a.en, weight: 3}
    valid: {path_src: b.de, path_tgt: b.en}
encoder_type: transformer
decoder_type: transformer
enc_layers: 6
dec_layers: 6
heads: 8
hidden_size: 512
transformer_ff: 2048
position_encoding: 'true'
optim: adam
adam_beta2: 0.998
decay_method: noam
warmup_steps: 8000
learning_rate: 2
max_grad_norm: 0
batch_size: 4096
batch_type: tokens
"""
MARIAN = """
task: transformer-base-prenorm
train-sets: [corpus.de, corpus.en]
valid-sets: [dev.de, dev.en]
dim-vocabs: [32000, 32000]
mini-batch-words: 3000
mini-batch-fit: true
valid-freq: 5000u
lr-decay-inv-sqrt: 16000u
exponential-smoothing: 1e-4
optimizer-params: [0.9, 0.98, 1e-09]
"""
SOCKEYE = """
sockeye-train -d prepared -vs dev.de -vt dev.en --output model --num-layers 6:3 --transformer-model-size 512 \\
  --weight-tying-type src_trg_softmax --batch-size 5000 --initial-learning-rate 0.06325 \\
  --learning-rate-scheduler-type inv-sqrt-decay --learning-rate-warmup 4000 --checkpoint-interval 500 --shared-vocab \\
  --gradient-clipping-type norm --gradient-clipping-threshold 2
"""
EOLE = """
seed: 1234
share_vocab: true
src_vocab_size: 36000
tgt_vocab_size: 36000
data:
    corpus_1: {path_src: a.de, path_tgt: a.en}
    valid: {path_src: b.de, path_tgt: b.en}
transforms: [sentencepiece, filtertoolong]
transforms_configs:
  sentencepiece: {src_subword_model: spm.model, tgt_subword_model: spm.model}
  filtertoolong: {src_seq_length: 512, tgt_seq_length: 512}
training:
    model_path: transformer_big
    average_decay: 0.0005
    batch_type: tokens
    batch_size: 5000
    valid_batch_size: 4096
    accum_count: [10]
    accum_steps: [0]
    compute_dtype: bf16
    optim: adamw
    learning_rate: 2
    warmup_steps: 4000
    decay_method: noam
    adam_beta2: 0.998
    dropout_steps: [0]
    dropout: [0.1]
    attention_dropout: [0.1]
    max_grad_norm: 0
    label_smoothing: 0.1
    param_init_method: xavier_uniform
    normalization: tokens
    score_threshold: 0.65
model:
    architecture: transformer
    hidden_size: 1024
    share_decoder_embeddings: true
    share_embeddings: true
    layers: 6
    heads: 16
    transformer_ff: 4096
    add_ffnbias: true
    mlp_activation_fn: gated-silu
    embeddings: {word_vec_size: 1024, position_encoding_type: Rotary}
inference: {beam_size: 4, batch_size: 8192, batch_type: tokens, max_length_ratio: 3}
"""
"""Of its recipes for WMT'17 and NewsPalm."""
ALL = {"fairseq": FAIRSEQ, "joeynmt": JOEYNMT, "opennmt": OPENNMT, "marian": MARIAN, "sockeye": SOCKEYE, "eole": EOLE}


def carried(toolkit: str, text: str, folder: Path) -> tuple[foreign.Carried, object]:
    """What is carried over, and the configuration that it is when it is read again."""
    (folder / "theirs").write_text(text, "utf-8")
    found = carry_over(toolkit, folder / "theirs")
    (folder / "ours.yaml").write_text(found.as_yaml(), "utf-8")
    return found, load_config(folder / "ours.yaml")


@pytest.mark.parametrize(
    ("toolkit", "expected"),
    [
        (
            "fairseq",
            "model.d_model=512 model.d_ff=1024 model.n_heads=4 model.n_layers=6 model.norm_position=post "
            "model.tied=decoder model.dropout=0.3 training.budget_tokens=4096 training.betas=[0.9, 0.98] "
            "training.weight_decay=0.0001 training.learning_rate=0.0005 training.warmup_steps=4000 "
            "training.clip_norm=None training.best_by=bleu tokenizer.joint=False training.label_smoothing=0.1",
        ),
        (
            "joeynmt",
            "name=mine model.n_layers={'encoder': 4, 'decoder': 2} model.norm_position=post model.tied=decoder "
            "training.betas=[0.9, 0.999] training.best_by=loss training.max_epochs=3 training.budget_tokens=2048 "
            "tokenizer.vocab_size=8000 data.source=de decoding.length_penalty_family=gnmt model.embedding_scale=False",
        ),
        (
            "opennmt",
            "model.positions=sinusoidal model.embedding_scale=True model.dropout=0.3 training.betas=[0.9, 0.998] "
            "training.clip_norm=None training.warmup_steps=8000 model.bias={'attention': False, 'feed_forward': False, "
            "'norm': True} training.schedule=inverse-sqrt",
        ),
        (
            "marian",
            "model.norm_position=pre model.final_norm=True model.tied=all training.learning_rate=0.0003 "
            "training.eps=1e-09 training.warmup_steps=16000 training.validate_every=5000 decoding.beam_size=8 "
            "tokenizer.vocab_size=32000 training.budget_tokens=3000 training.clip_norm=None training.ema=0.9999",
        ),
        (
            "sockeye",
            "model.n_layers={'encoder': 6, 'decoder': 3} model.d_ff=2048 model.tied=all tokenizer.joint=True "
            "training.clip_norm=2.0 training.validate_every=500 training.budget_tokens=5000",
        ),
        (
            "eole",
            "seed=1234 precision=bf16 model.d_model=1024 model.n_layers=6 model.n_heads=16 model.tied=all "
            "model.positions=rotary model.embedding_scale=False model.activation=swiglu model.output_bias=True "
            "model.bias={'attention': False, 'feed_forward': True, 'norm': True} model.dropout=0.1 data.max_length=512 "
            "tokenizer.vocab_size=36000 training.optimizer=adamw training.betas=[0.9, 0.998] training.ema=0.9995 "
            "training.budget_tokens=5000 training.accumulation=10 training.clip_norm=None training.eps=1e-08 "
            "decoding.beam_size=4 decoding.max_length_factor=3.0 decoding.max_length=250",
        ),
    ],
)
def test_a_recipe_of_theirs_is_the_same_in_ours(toolkit, expected, tmp_path):
    _, config = carried(toolkit, ALL[toolkit], tmp_path)
    wanted = dict(re.findall(r"(\S+)=((?:[^ {\[]+|\{.*?\}|\[.*?\]))(?: |$)", expected))
    values = config.model_dump()
    found = {}
    for name in wanted:
        value = values
        for part in name.split("."):
            value = value[part]
        found[name] = str(value)
    assert len(wanted) > 5
    assert found == wanted


@pytest.mark.parametrize(
    ("toolkit", "theirs"),
    [
        ("fairseq", "encoder_layerdrop: 0.2"),
        ("opennmt", "data.corpus_1.weight: 3"),
        ("marian", "mini_batch_fit: true"),
        ("sockeye", "the text, data.train"),
        ("eole", "training.score_threshold: 0.65"),
    ],
)
def test_what_cannot_be_carried_over_is_told_with_a_reason_and_stands_in_the_file(toolkit, theirs, tmp_path):
    found, _ = carried(toolkit, ALL[toolkit], tmp_path)
    assert found.left[theirs]
    assert f"# {theirs}: {found.left[theirs]}\n" in found.as_yaml()


@pytest.mark.parametrize(
    ("toolkit", "width", "warmup", "rate"),
    [
        ("joeynmt", 64, 300, lambda t: 0.5 * 64**-0.5 * min(t**-0.5, t * 300**-1.5)),
        ("opennmt", 512, 8000, lambda t: 2 * 512**-0.5 * min(t**-0.5, t * 8000**-1.5)),
        ("eole", 1024, 4000, lambda t: 2 * 1024**-0.5 * min(t**-0.5, t * 4000**-1.5)),
        ("sockeye", 512, 4000, lambda t: 0.06325 / max(t, 4000) ** 0.5 * min(1, t / 4000)),
        ("fairseq", 512, 4000, lambda t: 5e-4 * min(t / 4000, (4000 / t) ** 0.5)),
        ("marian", 512, 16000, lambda t: 3e-4 * min(1, t / 16000) * min(1, 16000 / t) ** 0.5),
    ],
)
def test_the_rate_is_theirs_at_every_update(toolkit, width, warmup, rate, tmp_path):
    """By the formulas of their schedulers."""
    _, config = carried(toolkit, ALL[toolkit], tmp_path)
    for step in [1, warmup, warmup + 1, *(random.Random(1).randrange(1, 10 * warmup) for _ in range(50))]:
        assert learning_rate(Spent(step), config.training, d_model=width) == pytest.approx(rate(step), rel=1e-4), step


def test_a_setting_that_theirs_have_twice_is_not_decided_in_silence(tmp_path):
    found, _ = carried("joeynmt", JOEYNMT.replace("ff_size: 128", "ff_size: 256", 1), tmp_path)
    assert "model.decoder.ff_size: 128 says it already" in found.left["model.encoder.ff_size: 256"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"encoder: {": "encoder: {freeze: true, "}, ["encoder"]),
        ({"encoder: {": "encoder: {freeze: false, "}, []),
        ({"decoder: {": "decoder: {freeze: true, "}, ["decoder"]),
        (
            {"decoder: {": "decoder: {freeze: true, ", "tied_softmax: true": "tied_softmax: false"},
            ["decoder", "output"],
        ),
        (
            {"encoder: {": "encoder: {freeze: true, embeddings: {freeze: true}, "},
            ["encoder", "source_embedding"],
        ),
        (
            {"decoder: {": "decoder: {embeddings: {freeze: true}, ", "tied_softmax": "tied_embeddings"},
            ["embeddings"],
        ),
    ],
)
def test_what_joeynmt_freezes_is_held_here(changes, expected, tmp_path):
    text = JOEYNMT
    for old, new in changes.items():
        text = text.replace(old, new)
    found, config = carried("joeynmt", text, tmp_path)
    assert config.training.freeze == expected
    assert bool(frozen(config)) == bool(expected), "each part is one of the model"
    assert not any("freeze" in theirs for theirs in found.left)


def test_a_checkpoint_of_theirs_is_named_and_left(tmp_path):
    text = JOEYNMT.replace("training:\n", "training:\n  load_model: a/best.ckpt\n")
    found, config = carried("joeynmt", text, tmp_path)
    assert config.training.init_from is None
    assert found.left["training.load_model: a/best.ckpt"] == "nearest is training.init_from"


@pytest.mark.parametrize(
    ("toolkit", "text", "expected"),
    [
        ("joeynmt", "training: {scheduling: plateau, learning_rate: 0.0002}", 0),
        ("joeynmt", "training: {scheduling: warmupinversesquareroot, learning_rate: 0.0002}", 10_000),
        ("joeynmt", "training: {learning_rate: 0.0002, learning_rate_warmup: 70}", 0),
        ("opennmt", "learning_rate: 0.0002\nwarmup_steps: 70", 0),
    ],
)
def test_a_rate_that_stays_has_no_warmup_where_theirs_has_none(toolkit, text, expected, tmp_path):
    _, config = carried(toolkit, text, tmp_path)
    assert config.training.warmup_steps == expected
    assert (config.training.schedule == "constant") == (expected == 0)


@pytest.mark.parametrize(
    ("decay", "expected"), [("--weight-decay 0.01", "adamw"), ("--weight-decay 0", "adam"), ("", "adam")]
)
def test_fairseqs_adam_takes_the_decay_off_the_weights_and_not_off_the_gradient(decay, expected, tmp_path):
    """fairseq/optim/adam.py: `p.add_(p, alpha=-weight_decay * lr)`, after Loshchilov & Hutter."""
    _, config = carried("fairseq", f"fairseq-train x --optimizer adam {decay}", tmp_path)
    assert config.training.optimizer == expected


@pytest.mark.parametrize("between", ["\n", "\n\nCUDA_VISIBLE_DEVICES=0 ", " && ", "; ", ";\n", " # all\n", " \\\n  ; "])
def test_a_flag_at_the_end_of_a_command_has_nothing_of_the_next(between, tmp_path):
    commands = f"fairseq-preprocess -s de -t en --joined-dictionary{between}fairseq-train bin --seed 7"
    found, config = carried("fairseq", commands, tmp_path)
    assert config.tokenizer.joint is True
    assert found.values["tokenizer.joint"] == (True, "joined_dictionary: true")
    assert (config.seed, config.data.source) == (7, "de")


@pytest.mark.parametrize("value", ["''", "'a\n  b; c'", '"x && y"'])
def test_what_is_quoted_is_one_word(value, tmp_path):
    found, config = carried("fairseq", f"fairseq-train bin --unheard-of {value} --seed 7", tmp_path)
    assert config.seed == 7
    assert [name for name in found.left if name.startswith("unheard_of: ")]


def test_a_long_file_with_lone_apostrophes_is_read_in_bounded_time(tmp_path):
    n = 5_000
    text = "# it's\nname: mine's\n" + "".join(f"x{number}: {number}\n" for number in range(n))
    found, _ = carried("joeynmt", text, tmp_path)
    assert sum(name.startswith("x") for name in found.left) == n


def test_a_variable_of_the_shell_is_to_be_filled_in(tmp_path):
    found, _ = carried("fairseq", "fairseq-preprocess --trainpref $TEXT/train --validpref corpus/dev", tmp_path)
    assert found.values["data.train"][0] == "corpus/train"
    assert found.values["data.valid"][0] == "corpus/dev"
    assert found.left["the text, data.train"] == "put yours in place of corpus/train"


def test_sentences_are_no_tokens(tmp_path):
    found, config = carried("joeynmt", JOEYNMT.replace("batch_type: token\n", "batch_type: sentence\n"), tmp_path)
    assert "choose training.budget_tokens" in found.left["training.batch_size: 2048"]
    assert config.training.budget_tokens == 4096


def test_what_our_schema_does_not_take_is_left(tmp_path):
    found, config = carried("fairseq", FAIRSEQ.replace("--dropout 0.3", "--dropout 1.5"), tmp_path)
    assert found.left["dropout: 1.5"] == "model.dropout: 1.5 is not a number below 1.0"
    assert config.model.dropout == 0.1


@pytest.mark.parametrize(
    ("after", "setting", "value"),
    [("20e", "max_epochs", 20), ("600000u", "max_steps", 600_000), ("0e", "max_epochs", None)],
)
def test_marian_ends_after_updates_or_epochs(after, setting, value, tmp_path):
    found, config = carried("marian", f"{MARIAN}after: {after}\n", tmp_path)
    assert getattr(config.training, setting) == value
    assert not any(theirs.startswith("after") for theirs in found.left)
    found, _ = carried("marian", f"{MARIAN}after: 3Gt\n", tmp_path)
    assert "updates or epochs" in found.left["after: 3Gt"]


@pytest.mark.parametrize(
    ("said", "is_told"),
    [
        ("--max-update 0 --max-epoch 300", True),
        ("--max-epoch 300", True),
        ("--patience 10", True),
        ("--max-epoch 3 --max-update 9", False),
    ],
)
def test_that_there_is_a_limit_of_updates_where_theirs_had_none_is_told(said, is_told, tmp_path):
    """Of large text that was a few epochs of 300, without a word."""
    command = FAIRSEQ.replace("--max-tokens", f"{said} \\\n    --max-tokens")
    found, config = carried("fairseq", command, tmp_path)
    assert (config.training.max_epochs is None) == ("--max-epoch" not in said)
    told = {"no limit of updates": "tx has one even so, of 100,000: training.max_steps"}
    assert {theirs: why for theirs, why in found.left.items() if theirs in told} == (told if is_told else {})


@pytest.mark.parametrize(
    ("said", "patience", "left"),
    [
        ("--patience 10", None, {"patience: 10": "counts validations, there after each epoch, "}),
        ("", None, {"a validation after each epoch": ""}),
        ("--patience 10 --validate-interval-updates 250", 10, {}),
    ],
)
def test_fairseqs_patience_is_not_taken_for_one_of_updates(said, patience, left, tmp_path):
    """10 epochs became 5,000 updates."""
    found, config = carried("fairseq", FAIRSEQ.replace("--max-tokens", f"{said} \\\n    --max-tokens"), tmp_path)
    assert config.training.patience == patience
    every = "in tx after 500 updates: training.validate_every"
    names = {"patience: 10", "a validation after each epoch"}
    assert {name: why for name, why in found.left.items() if name in names} == {
        name: f"{before}{every}" for name, before in left.items()
    }


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("--encoder-normalize-before --decoder-normalize-before", "pre"),
        ("--encoder-normalize-before", "post"),
        ("", "post"),
    ],
)
def test_fairseqs_stacks_norm_alike_or_it_is_told(said, expected, tmp_path):
    found, config = carried("fairseq", FAIRSEQ.replace("--max-tokens", f"{said} \\\n    --max-tokens"), tmp_path)
    assert config.model.norm_position == expected
    assert ("encoder_normalize_before: true" in found.left) == (said == "--encoder-normalize-before")


@pytest.mark.parametrize(
    ("said", "positions", "first"),
    [
        ("--encoder-learned-pos --decoder-learned-pos", "learned", 0),
        ("--encoder-learned-pos", "sinusoidal-halves", 2),
        ("", "sinusoidal-halves", 2),
    ],
)
def test_fairseqs_stacks_learn_positions_alike_or_it_is_told(said, positions, first, tmp_path):
    found, config = carried("fairseq", FAIRSEQ.replace("--max-tokens", f"{said} \\\n    --max-tokens"), tmp_path)
    assert (config.model.positions, config.model.first_position) == (positions, first)
    assert ("encoder_learned_pos: true" in found.left) == (said == "--encoder-learned-pos")


def test_that_not_all_checkpoints_are_kept_is_told(tmp_path):
    for said, is_told in (("-1", True), ("5", False)):
        text = FAIRSEQ.replace("--max-tokens", f"--keep-last-epochs {said} \\\n    --max-tokens")
        found, config = carried("fairseq", text, tmp_path)
        assert ("keep_last_epochs: -1" in found.left) is is_told
        assert config.training.keep_last == (1 if is_told else 5)


def test_marians_alphas_are_those_of_a_unigram_model(tmp_path):
    """They became the chance to skip a merge."""
    _, config = carried("marian", f"{MARIAN}sentencepiece-alphas: [0.1, 0.1]\n", tmp_path)
    assert (config.tokenizer.kind, config.tokenizer.sampling) == ("unigram", 0.1)
    _, config = carried("marian", MARIAN, tmp_path)
    assert (config.tokenizer.kind, config.tokenizer.sampling) == ("bpe", 0.0)


@pytest.mark.parametrize(
    ("updates", "is_carried"), [("", True), (" --max-update 5000", True), (" --max-update 90", False)]
)
def test_fairseqs_rate_falls_until_the_same_update(updates, is_carried, tmp_path):
    """It fell until update 100,000, the default of tx."""
    line = "fairseq-train bin --arch transformer --lr 5e-4 --lr-scheduler polynomial_decay --total-num-update 5000"
    found, config = carried("fairseq", line + updates, tmp_path)
    assert config.training.schedule == "linear"
    assert config.training.max_steps == (5000 if is_carried else 90)
    said = found.left.get("total_num_update: 5000", "")
    assert said == ("" if is_carried else "linear ends where training does: training.max_steps, 90")


def test_hydra_names_are_the_options(tmp_path):
    """fairseq-hydra-train's files say the same in sections."""
    text = "model: {_name: transformer_iwslt_de_en}\noptimization: {lr: [0.0005], clip_norm: 0.1}\n"
    _, config = carried("fairseq", text, tmp_path)
    assert (config.model.d_ff, config.training.learning_rate, config.training.clip_norm) == (1024, 0.0005, 0.1)


@pytest.mark.parametrize(
    ("toolkit", "also", "expected"),
    [
        ("marian", "", True),
        ("marian", "output-omit-bias: false\n", True),
        ("marian", "output-omit-bias: true\n", False),
        ("opennmt", "", True),
        ("sockeye", "", True),
        ("eole", "", True),
        ("joeynmt", "", False),
        ("fairseq", "", False),
    ],
)
def test_a_model_has_a_bias_at_its_output_where_theirs_has(toolkit, also, expected, tmp_path):
    """It was lost without a word."""
    found, config = carried(toolkit, ALL[toolkit] + also, tmp_path)
    assert config.model.output_bias is expected
    assert not any("bias" in name for name in found.left)


@pytest.mark.parametrize("text", ["just words", "- a\n- b", "key: [", ""])
def test_what_is_no_configuration_is_refused(text, tmp_path):
    with pytest.raises(ConfigError):
        carried("marian", text, tmp_path)


def test_a_pipe_that_nobody_writes_into_is_not_waited_for(tmp_path):
    """It was waited for, for ever."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="pipe:1:1: the file is empty"):
        carry_over("marian", tmp_path / "pipe")


@pytest.mark.parametrize("toolkit", toolkits())
def test_a_table_speaks_of_settings_and_facts_that_there_are(toolkit):
    table = yaml.safe_load((foreign.TABLES / f"{toolkit}.yaml").read_text("utf-8"))
    known = {one.name for one in settings()}
    known |= {f"model.n_layers.{side}" for side in ("encoder", "decoder")}
    known |= {f"data.{split}.{side}" for split in ("train", "valid") for side in ("source", "target")}
    known |= {f"model.bias.{part}" for part in ("attention", "feed_forward", "norm")}
    known |= set(re.findall(r'"(~\w+)"', Path(consequences.__file__).read_text("utf-8")))
    known |= {"~beta1", "~beta2"}
    named = set(table["unless_said"])
    for family in table.get("families", {}).values():
        named |= {ours for meaning in family.values() for ours in meaning}
    for meaning in table["means"].values():
        for inside in meaning.values() if isinstance(meaning, dict) else [meaning]:
            named |= set(inside) if isinstance(inside, dict | list) else {inside} - {None}
    assert named <= known, named - known


@pytest.mark.parametrize(
    ("toolkit", "text", "settings", "left"),
    [
        (
            "marian",
            "models: [model.npz]\nvocabs: [a.spm]\nbeam-size: 6\nnormalize: 0.6\nmax-length: 300\ncpu-threads: 2\n",
            {
                "decoding.beam_size": 6,
                "decoding.length_penalty": 0.6,
                "decoding.max_source_length": 1000,
                "decoding.max_length_factor": 3.0,
                "decoding.max_length_extra": 0,
                "threads": 2,
            },
            {"models: model.npz": "in its model.npz.yml", "max_length: 300": "is of training"},
        ),
        (
            "marian",
            "marian-decoder --models model.npz --max-length-factor 2.5",
            {
                "decoding.beam_size": 12,
                "decoding.length_penalty": 0.0,
                "decoding.max_source_length": 1000,
                "decoding.max_length_factor": 2.5,
                "decoding.max_length_extra": 0,
            },
            {"models: model.npz": "in its model.npz.yml"},
        ),
        (
            "eole",
            "model_path: m\nsrc: x\nbeam_size: 4\ncompute_dtype: fp16\nbatch_size: 30\ntop_k: 0\nmax_length: 99\n",
            {
                "decoding.beam_size": 4,
                "decoding.max_length": 99,
                "decoding.max_length_factor": 2.0,
                "decoding.max_length_extra": 5,
                "decoding.length_penalty": 1.0,
                "precision": "fp16",
            },
            {"model_path: m": "in its config.json"},
        ),
    ],
)
def test_a_file_to_translate_by_says_how_to_translate_and_nothing_of_training(toolkit, text, settings, left, tmp_path):
    """It was taken for one of training, with all of that by their defaults, and then refused."""
    found, config = carried(toolkit, text, tmp_path)
    assert {name: value for name, (value, _) in found.values.items()} == settings
    assert all(why in found.left[name] for name, why in left.items())
    assert config.training == RunConfig().training


@pytest.mark.parametrize(("toolkit", "whose"), [("opennmt", "eole"), ("eole", "opennmt")])
def test_a_file_of_the_toolkit_that_came_of_another_is_told_from_its(toolkit, whose, tmp_path):
    """Eole's was taken for OpenNMT-py's: its layers, rates and batches by names that mean the same, all else lost."""
    called = {"opennmt": "OpenNMT-py", "eole": "Eole"}
    with pytest.raises(
        ConfigError, match=f"as {called[whose]}'s configurations have, and not {called[toolkit]}'s"
    ) as refused:
        carried(toolkit, ALL[whose], tmp_path)
    assert refused.value.hint == f"tx config from {whose} {tmp_path / 'theirs'}"
    for other in {*ALL} - {"opennmt", "eole"}:
        carried(toolkit, ALL[other], tmp_path)


def test_eoles_layers_of_each_stack_go_before_those_of_both(tmp_path):
    text = EOLE.replace("layers: 6", "layers: 6\n    decoder: {layers: 2}\n    encoder: {encoder_type: transformer}")
    found, config = carried("eole", text, tmp_path)
    assert vars(config.model.depths) == {"encoder": 6, "decoder": 2}
    assert not any("encoder" in name for name in found.left)
