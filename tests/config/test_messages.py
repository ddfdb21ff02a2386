"""What a person reads when a configuration is wrong: golden texts, carets included."""

from __future__ import annotations

from pathlib import Path

import pytest

from transformer_cli.config.messages import excerpt
from transformer_cli.config.nodes import Place, Source
from transformer_cli.config.source import load_config
from transformer_cli.errors import ConfigError


@pytest.fixture
def message(tmp_path):
    """The message for a configuration that is wrong."""

    def message(text: str) -> str:
        Path("x.yaml").write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError) as caught:
            load_config("x.yaml")
        return caught.value.message

    return message


@pytest.mark.parametrize(
    ("own", "override", "place"),
    [
        ("model: {d_model: 130}", (), "x.yaml:2:18: d_model 130 is not divisible by 4 heads"),
        ("seed: 1", ("model.d_model=130",), "--set model.d_model=130: d_model 130 is not divisible by 4 heads"),
        ("model: {d_model: 130}", ("model.n_heads=3",), "--set model.n_heads=3: d_model 130 is not"),
        ("model: {d_model: 130, n_heads: 3}", ("seed=2",), "x.yaml:2:32: d_model 130 is not divisible by 3 heads"),
    ],
)
def test_what_does_not_go_together_is_shown_where_it_was_said_last(
    own: str, override: tuple[str, ...], place: str
) -> None:
    """It was shown in the preset, which is right by itself."""
    Path("x.yaml").write_text(f"extends: tiny.yaml\n{own}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config("x.yaml", override)
    assert caught.value.message.startswith(place)


@pytest.mark.parametrize("valid", ["0.05", "50", "true"])
def test_a_wrong_text_to_validate_with_is_one_mistake(valid: str) -> None:
    """And not a missing one, too."""
    with pytest.raises(ConfigError) as caught:
        load_config("tiny.yaml", ["data={train: a, source: de, target: en}", f"data.valid={valid}"])
    expected = f"--set data.valid={valid}: `data.valid` is {valid}; expected a share such as 10%, or a prefix such as "
    assert caught.value.message.startswith(expected)


def test_every_mistake_is_told_at_once_in_the_order_of_the_file(message):
    text = """\
seed: -1
model:
  d_modle: 512
  n_heads: 7
  dropout: 1.5
training:
  schedule: cosin
  validation_bleu: no
tokenizer: {vocab_size: {source: 2, target: 9}, joint: false}
"""
    assert (
        message(text)
        == """\
8 mistakes in the configuration
x.yaml:1:7: `seed` is -1; expected a whole number of at least 0
    1 | seed: -1
      |       ^^
x.yaml:3:3: unknown setting `model.d_modle`; did you mean `d_model`?
    3 |   d_modle: 512
      |   ^^^^^^^
x.yaml:4:12: d_model 512 is not divisible by 7 heads; give d_head to choose their width
    4 |   n_heads: 7
      |            ^
x.yaml:5:12: `model.dropout` is 1.5; expected a number of at least 0 and below 1
    5 |   dropout: 1.5
      |            ^^^
x.yaml:7:13: `training.schedule` is the text "cosin"; expected one of inverse-sqrt, noam, cosine, linear, constant, \
warmup-stable-decay; did you mean cosine?
    7 |   schedule: cosin
      |             ^^^^^
x.yaml:8:20: `training.validation_bleu` is the text "no"; expected true or false; write false
    8 |   validation_bleu: no
      |                    ^^
x.yaml:9:34: `tokenizer.vocab_size.source` is 2; expected a whole number above 4
    9 | tokenizer: {vocab_size: {source: 2, target: 9}, joint: false}
      |                                  ^
x.yaml:9:56: one matrix for everything (model.tied: all) needs one vocabulary (tokenizer.joint: true); \
tied: decoder or none goes with two
    9 | tokenizer: {vocab_size: {source: 2, target: 9}, joint: false}
      |                                                        ^^^^^"""
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # unknown names: the nearest, where they belong, or all there are
        ("modell: {}", "unknown setting `modell`; did you mean `model`?"),
        ("model: {d_model:64}", "unknown setting `model.d_model:64`; write d_model: 64, with a space\n"),
        ("model: {n_layers: {encoder:6, decoder:3}}", "or {encoder, decoder}; write encoder: 6, with a space\n"),
        ("Extends: tiny.yaml", "unknown setting `Extends`; did you mean `extends`?\n"),
        ("extend: tiny.yaml", "unknown setting `extend`; did you mean `extends`?\n"),
        ("zzz: 1", "unknown setting `zzz`; valid are extends, name, seed, "),
        ("learning_rate: 3", "unknown setting `learning_rate`; it belongs to `training`"),
        (
            "decoding: {zzz: 1}",
            "unknown setting `decoding.zzz`; valid are engine, workers, search, mbr, rerank, beam_size, "
            "length_penalty, length_penalty_family, shortlist, min_length, max_length, ",
        ),
        ("model: {1: 2}", "unknown setting `model.1`; valid are d_model, "),
        # numbers
        ("model: {d_model: '512'}", '`model.d_model` is the text "512"; expected a whole number above 0; write 512'),
        ("model: {d_model: 1_000}", '`model.d_model` is the text "1_000"; expected a whole number above 0; write 1000'),
        (
            "model: {d_model: '1,024'}",
            '`model.d_model` is the text "1,024"; expected a whole number above 0; write 1024',
        ),
        ("model: {d_model: 1.024}", "`model.d_model` is 1.024; expected a whole number above 0; write 1024\n"),
        ("training: {max_steps: 2.000}", "is 2.000; expected a whole number above 0; write 2000, or 2\n"),
        (
            "training: {max_steps: 1.000.000}",
            'is the text "1.000.000"; expected a whole number above 0; write 1000000\n',
        ),
        ("training: {learning_rate: 1.000.000}", 'is the text "1.000.000"; expected a number above 0\n'),
        ("model: {d_model: '0,5'}", '`model.d_model` is the text "0,5"; expected a whole number above 0\n'),
        ("model: {dropout: '0,3'}", 'is the text "0,3"; expected a number of at least 0 and below 1; write 0.3'),
        ("model: {dropout: '.3'}", 'is the text ".3"; expected a number of at least 0 and below 1; write 0.3'),
        ("training: {learning_rate: '0,001'}", 'is the text "0,001"; expected a number above 0; write 0.001'),
        ("training: {learning_rate: '3e-4'}", 'is the text "3e-4"; expected a number above 0; write 3e-4'),
        ("training: {learning_rate: '1,000'}", 'is the text "1,000"; expected a number above 0\n'),
        ("training: {learning_rate: '1,5,3'}", 'is the text "1,5,3"; expected a number above 0\n'),
        ("model: {d_model: 0o17}", '`model.d_model` is the text "0o17"; expected a whole number above 0\n'),
        ("model: {d_model: 017}", '`model.d_model` is the text "017"; expected a whole number above 0; write 17'),
        ("model: {d_model: 5.12e2}", "`model.d_model` is 5.12e2; expected a whole number above 0; write 512"),
        ("model: {d_model: 1.5}", "`model.d_model` is 1.5; expected a whole number above 0\n"),
        ("model: {d_model: true}", "`model.d_model` is true; expected a whole number above 0\n"),
        ("model: {d_model: 0}", "`model.d_model` is 0; expected a whole number above 0\n"),
        (
            "model: {d_model: 1000001}",
            "`model.d_model` is 1000001; expected a whole number above 0 and up to 1,000,000\n",
        ),
        ("seed: 9999999999999", "expected a whole number of at least 0 and up to 1,000,000,000,000\n"),
        ("model: {d_model: 1:30}", '`model.d_model` is the text "1:30"; expected a whole number above 0\n'),
        ("training: {learning_rate: .inf}", "`training.learning_rate` is .inf; expected a finite number above 0\n"),
        ("training: {learning_rate: .nan}", "`training.learning_rate` is .nan; expected a finite number above 0\n"),
        ("training: {learning_rate: 1e999}", "`training.learning_rate` is 1e999; expected a finite number above 0\n"),
        (
            "training: {warmup_steps: 0.1}",
            "`training.warmup_steps` is 0.1; expected a whole number of at least 0, or a share such as 10%; write 10%",
        ),
        (
            "training: {warmup_steps: 110%}",
            '`training.warmup_steps` is the text "110%"; expected a whole number of at least 0, or a share such as 10%',
        ),
        ("data: {valid: 0.015}", "or a list of at least 1 {text, source, target, both}; write 1.5%"),
        ("training: {learning_rate: fast}", '`training.learning_rate` is the text "fast"; expected a number above 0\n'),
        # nothing, or something of another kind
        ("model: {d_model: }", "`model.d_model` is empty; expected a whole number above 0\n"),
        ("model: {d_model: ~}", "`model.d_model` is ~; expected a whole number above 0\n"),
        ("model: {d_model: [1, 2]}", "`model.d_model` is a list of 2; expected a whole number above 0\n"),
        ("model: {d_model: {a: 1}}", "`model.d_model` is {a}; expected a whole number above 0\n"),
        ("model: 3", "`model` is 3; expected `key: value` lines\n"),
        ("model: []", "`model` is an empty list; expected `key: value` lines\n"),
        ("name: 2024", "`name` is 2024; expected letters, digits"),
        ("name: a/b", '`name` is the text "a/b"; expected letters, digits, `.`, `_` and `-`'),
        ("data: {source: true}", "`data.source` is true; expected text; quote it"),
        # choices
        ("device: gpu", '`device` is the text "gpu"; expected one of auto, cpu, cuda, mps\n'),
        ("model: {norm: layernorm}", "expected one of layer-norm, rms-norm; did you mean layer-norm?"),
        (
            "accounting: {architecture: x}",
            '`accounting.architecture` is the text "x"; expected one of encoder-decoder, decoder-only',
        ),
        ("evaluation: {metrics: [bleu, blue]}", '`evaluation.metrics[1]` is the text "blue"; expected one of'),
        # lists
        (
            "training: {betas: [0.9]}",
            "`training.betas` is a list of 1; expected a list of 2 numbers of at least 0 and below 1",
        ),
        ("training: {betas: [0.9, 2]}", "`training.betas[1]` is 2; expected a number of at least 0 and below 1"),
        ("evaluation: {metrics: []}", "expected a list of at least 1 of bleu, chrf, "),
        # unions: one mistake, about the form that was meant
        (
            "model: {n_layers: 0}",
            "`model.n_layers` is 0; expected a whole number above 0 and up to 1,000, or {encoder",
        ),
        ("model: {n_layers: {encoder: 1}}", "`model.n_layers.decoder` is missing"),
        ("model: {n_layers: {encoder: a, decoder: 1}}", '`model.n_layers.encoder` is the text "a"; expected a whole'),
        ("model: {n_layers: {encodr: 1}}", "`model.n_layers` is {encodr}; expected a whole number above 0 and up to"),
        (
            "data: {train: {pairs: [[a, b], [c]]}, valid: v}",
            "`data.train.pairs[1]` is a list of 1; expected a list of 2 texts",
        ),
        ("data: {train: {pairs: [[a, 1]]}, valid: v}", "`data.train.pairs[0][1]` is 1; expected text; quote it"),
        ("data: {train: {pairs: []}, valid: v}", "expected a list of at least 1 [source, target] pairs"),
        ("data: {train: {pairs: [[a, b]], source: c}, valid: v}", "unknown setting `data.train.source`"),
        (
            "data: {train: [a, b]}",
            "`data.train` is a list of 2; expected a prefix such as corpus/train, or {source, target}",
        ),
        ("data: {train: [{text: a}, b], valid: 1%}", '`data.train[1]` is the text "b"; expected {text, ...}\n'),
        (
            "data: {train: [{text: a, wieght: 3}], valid: 1%}",
            "unknown setting `data.train[0].wieght`; did you mean `weight`?\n",
        ),
        ("data: {train: [{text: a}, {weight: 2}], valid: 1%}", "`data.train[1].text` is missing\n"),
        (
            "data: {train: [{text: a}, {text: b, weight: 0}], valid: 1%}",
            "`data.train[1].weight` is 0; expected a number above 0\n",
        ),
        (
            "data: {train: {text: a}, valid: 1%}",
            "`data.train` is {text}; expected a prefix such as corpus/train, or {source, target}",
        ),
        (
            "data: {train: [{text: {source: a}}], valid: 1%}",
            "`data.train[0].text.target` is missing\n",
        ),
        (
            "data: {test: {a: [{text: b, both: maybe}]}}",
            '`data.test.a[0].both` is the text "maybe"; expected true or false\n',
        ),
        (
            "data: {train: {x: 1}}",
            "`data.train` is {x}; expected a prefix such as corpus/train, or {source, target}, or {pairs}",
        ),
        (
            "data: {test: {2016: 1}}",
            "`data.test.2016` is 1; expected a prefix such as corpus/train, or {source, target}",
        ),
        ("data: {test: {a: t, b: {source: c}}}", "`data.test.b.target` is missing"),
        ("data: {test: {a: {pairs: [[x]]}}}", "`data.test.a.pairs[0]` is a list of 1; expected a list of 2 texts"),
        ("data: {test: [a]}", "{pairs}, or a list of {text, source, target, both}, or several by name"),
        ("model: {bias: 1}", "`model.bias` is 1; expected true or false, or {attention, feed_forward, norm}"),
        (
            "accounting: {attention_biases: [query, keys]}",
            '`accounting.attention_biases[1]` is the text "keys"; expected one of query, key, value, output; did you',
        ),
        ("model: {bias: {attention: 1.0}}", "`model.bias.attention` is 1.0; expected true or false\n"),
        ("model: {bias: {norms: true}}", "`model.bias` is {norms}; expected true or false, or {attention, "),
        ("model: {bias: {norm: true, ffn: true}}", "unknown setting `model.bias.ffn`; valid are attention, feed_f"),
        ("model: {positions: {encoder: rotary, decoder: rotry}}", "`model.positions.decoder` is the text "),
        (
            "accounting: {vocab: {source: -1, target: 5}}",
            "`accounting.vocab.source` is -1; expected a whole number of at least 0",
        ),
        ("accounting: {vocab: 1e3}", "is 1e3; expected a whole number of at least 0, or {source, target}"),
        (
            "data: {train: []}",
            "`data.train` is an empty list; expected a prefix such as corpus/train, or {source, target}",
        ),
        (
            "data: {train: a, valid: []}",
            "`data.valid` is an empty list; expected a share such as 10%, or a prefix such as corpus/train, or {",
        ),
        ("accounting: {extra: {name: x}}", "is {name}; expected a list of {name, shape, bias, trainable}"),
        ("accounting: {extra: [{name: a b, shape: [1]}]}", '`accounting.extra[0].name` is the text "a b"; '),
        ("accounting: {extra: [{name: a, shape: [2, 1.5]}]}", "`accounting.extra[0].shape[1]` is 1.5; expected"),
        (
            "accounting: {extra: [{name: a, shape: []}]}",
            "is an empty list; expected a list of 1 to 8 whole numbers above 0\n",
        ),
        ("accounting: {extra: [{name: a}]}", "`accounting.extra[0].shape` is missing"),
        ("tokenizer: {model: {source: 1, target: a}}", "`tokenizer.model.source` is 1; expected text; quote it"),
        # texts without a letter, and of too many
        ('training: {freeze: [""]}', '`training.freeze[0]` is the text ""; expected text of 1 to 200 characters\n'),
        (f"training: {{freeze: [{'a' * 201}]}}", "expected text of 1 to 200 characters\n"),
        ('training: {init_from: ""}', '`training.init_from` is the text ""; expected text of 1 to 4,096 characters\n'),
        ('evaluation: {comet: {model: ""}}', "expected text of 1 to 4,096 characters\n"),
        ('decoding: {rerank: {run: ""}}', "expected text of 1 to 4,096 characters\n"),
    ],
)
def test_a_mistake_says_what_was_found_and_what_is_expected(message, text, expected):
    told = message(text)
    assert told.startswith("x.yaml:1:")
    assert expected in told
    assert "mistakes" not in told


def test_a_duplicate_key_shows_both_places(message):
    assert message("seed: 1\nname: x\nseed: 2\n") == (
        "x.yaml:3:1: `seed` is given twice\n"
        "    3 | seed: 2\n"
        "      | ^^^^\n"
        "  first given at x.yaml:1:1\n"
        "    1 | seed: 1\n"
        "      | ^^^^"
    )


def test_a_mistake_in_an_inherited_file_is_shown_there(message):
    Path("base.yaml").write_text("model:\n  d_ff: ten\n", encoding="utf-8")
    assert message("extends: base.yaml\nmodel: {d_model: 8}") == (
        'base.yaml:2:9: `model.d_ff` is the text "ten"; expected a whole number above 0\n'
        "    2 |   d_ff: ten\n"
        "      |         ^^^"
    )


def test_very_many_mistakes_are_counted(message):
    told = message("\n".join(f"key{index}: 1" for index in range(5000)))
    assert told.startswith("5,000 mistakes in the configuration\n")
    assert told.endswith("... and 4,900 more")


def shown(line: str, start: int, end: int) -> list[str]:
    return excerpt(Place(Source("f", line), start, end)).split("\n")


def test_the_caret_stands_under_what_is_meant_in_wide_text():
    assert shown("ключ: 日本 語", 6, 8) == ["    1 | ключ: 日本 語", "      |       ^^^^"]
    assert shown("e\u0301: x", 4, 5) == ["    1 | e\u0301: x", "      |    ^"]
    assert shown("กิ: ที่", 4, 7) == ["    1 | กิ: ที่", "      |    ^"]


def test_the_caret_stands_under_what_is_meant_in_a_long_line():
    line = f"{'a' * 300}!{'b' * 300}"
    text, carets = shown(line, 300, 301)
    assert text[carets.index("^")] == "!"
    assert max(len(text), len(carets)) <= 108


def test_a_line_drives_no_terminal():
    text, carets = shown("a\t\x1b[31m: \u202eb", 0, 1)
    assert text == "    1 | a \ufffd[31m: \ufffdb"
    assert carets == "      | ^"


def test_carets_stay_on_their_line():
    assert shown("a: 1\nb: 2", 3, 9) == ["    1 | a: 1", "      |    ^"]


@pytest.mark.parametrize("setting", ["max_length", "max_length_factor", "max_length_extra"])
def test_no_limit_lets_a_search_go_on_without_end(message, setting):
    """With a factor of two milliards a model that found no end was at work until it was killed."""
    assert f"`decoding.{setting}` is 2000000000; expected " in message(f"decoding: {{{setting}: 2000000000}}")
