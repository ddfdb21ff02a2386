"""Settings that are each fine but do not go together: said at the place of the likeliest culprit."""

from __future__ import annotations

from pathlib import Path

import pytest

from transformer_cli.config.run import RunConfig, contradictions
from transformer_cli.config.source import load_config
from transformer_cli.errors import ConfigError


@pytest.fixture
def told(tmp_path):
    """What is said about a configuration: the characters under the carets, and the words. None: nothing is wrong."""

    def told(text: str, **options: bool) -> tuple[str, str] | None:
        Path("x.yaml").write_text(text, encoding="utf-8")
        try:
            load_config("x.yaml", **options)
        except ConfigError as error:
            line, shown, carets = error.message.split("\n")
            marked = shown[carets.index("^") : carets.rindex("^") + 1]
            return marked, line.split(": ", 1)[1]
        return None

    return told


FILES = "train: t, valid: v"
BOTH = "tokenizer: {joint: false"
FORMS = "model: {tied: none}\n"
BYTES_BY_SIDE = f"{FORMS}{BOTH}, byte_fallback: true"
TWO_WAYS = "data: {train: [{text: t, both: true}], valid: v}"
NEW = "tokenizer: {extend: 9}\ntraining: {init_from: runs/x"
UNTAUGHT = "new pieces (tokenizer.extend) could not learn: training.freeze keeps "


@pytest.mark.parametrize(
    ("wrong", "expected", "right"),
    [
        ("name: «latest»", "a run cannot be named `latest`", "name: later"),
        ("name: «Latest»", "a run cannot be named `Latest`", "name: later"),
        ("model: {d_model: «100»}", "d_model 100 is not divisible by 8 heads", "model: {d_model: 104}"),
        ("model: {d_model: 12, n_heads: «8»}", "d_model 12 is not", "model: {d_model: 12, n_heads: 8, d_head: 3}"),
        (
            "model: {d_model: «24», positions: rotary}",
            "rotary positions turn pairs, but a head is 3 wide",
            "model: {d_model: 32, positions: rotary}",
        ),
        (
            "model: {d_head: «5», positions: rotary}",
            "rotary positions turn pairs, but a head is 5 wide",
            "model: {d_head: 5, positions: learned}",
        ),
        (
            "model: {d_model: «9», n_heads: 3}",
            "sinusoidal positions are pairs of sine and cosine, but d_model 9 is odd",
            "model: {d_model: 9, n_heads: 3, positions: none}",
        ),
        (
            "model: {n_heads: 8, n_kv_heads: «3»}",
            "8 heads of queries cannot share 3 heads of keys and values evenly",
            "model: {n_heads: 8, n_kv_heads: 2}",
        ),
        ("model: {n_kv_heads: «16»}", "8 heads of queries cannot share 16", "model: {n_kv_heads: 8}"),
        (
            "model: {d_model: «24», positions: {encoder: none, decoder: rotary}}",
            "rotary positions turn pairs",
            "accounting: {architecture: decoder-only}\n"
            "model: {d_model: 24, positions: {encoder: rotary, decoder: none}}",
        ),
        (
            "model: {d_model: «9», n_heads: 3, positions: {encoder: none, decoder: sinusoidal-table}}",
            "sinusoidal positions are pairs",
            "accounting: {architecture: encoder-only}\n"
            "model: {d_model: 9, n_heads: 1, positions: {encoder: none, decoder: rotary}}",
        ),
        (
            "model: {positions: learned, first_position: «8», max_positions: 8}",
            "positions begin with 8, but the encoder's table ends before",
            "model: {positions: learned, first_position: 7, max_positions: 8}",
        ),
        (
            "model: {n_layers: {encoder: «0», decoder: 2}}",
            "an encoder-decoder needs at least one encoder layer; accounting.architecture: decoder-only goes without",
            "model: {n_layers: {encoder: 1, decoder: 2}}",
        ),
        (
            "model: {n_layers: {encoder: 1, decoder: «0»}}",
            "an encoder-decoder needs at least one decoder layer; accounting.architecture: encoder-only goes without",
            "model: {n_layers: {encoder: 1, decoder: 1}}",
        ),
        (
            "accounting: {architecture: decoder-only}\nmodel: {n_layers: {encoder: «1», decoder: 1}}",
            "a model of architecture decoder-only has no encoder layers, not 1",
            "accounting: {architecture: decoder-only}\nmodel: {n_layers: {encoder: 0, decoder: 1}}",
        ),
        (
            "accounting: {architecture: encoder-only}\nmodel: {n_layers: {encoder: «0», decoder: 0}}",
            "a model of architecture encoder-only needs at least one layer",
            "accounting: {architecture: encoder-only}\nmodel: {n_layers: {encoder: 1, decoder: 0}}",
        ),
        (
            "accounting: {architecture: decoder-only}\nmodel: {tied: «decoder»}",
            "a decoder-only model has one embedding",
            "accounting: {architecture: decoder-only}\nmodel: {tied: none}",
        ),
        (
            "accounting: {architecture: encoder-only}\nmodel: {tied: «none»}",
            "an encoder-only model has one embedding and no output",
            "accounting: {architecture: encoder-only}\nmodel: {tied: all}",
        ),
        (
            "accounting: {architecture: encoder-only, «vocab»: {source: 9, target: 9}}",
            "a model of architecture encoder-only has one vocabulary",
            "accounting: {architecture: encoder-only, vocab: 9}",
        ),
        (
            "model: {tied: «all», vocab: {source: 5, target: 7}}",
            "one matrix for everything (model.tied: all) needs one vocabulary, not 5 and 7 pieces",
            "model: {tied: none, vocab: {source: 5, target: 7}}",
        ),
        (
            "model: {tied: «embeddings», vocab: {source: 0, target: 7}}",
            "one matrix for both embeddings (model.tied: embeddings) needs one vocabulary, not 0 and 7",
            "model: {tied: embeddings, vocab: 0}",
        ),
        (
            "model: {bias: {attention: «[key, key]»}}",
            "a projection is named twice",
            "model: {bias: {attention: [key, query]}}",
        ),
        (
            "accounting: {extra: [{name: a, shape: [1]}, {name: «a», shape: [2]}]}",
            "two extras are called a",
            "accounting: {extra: [{name: a, shape: [1]}, {name: b, shape: [2]}]}",
        ),
        ("tokenizer: {joint: «false»}", "one matrix for everything (model.tied: all)", f"{FORMS}{BOTH}}}"),
        (f"model: {{tied: «all»}}\n{BOTH}}}", "one matrix", f"model: {{tied: decoder}}\n{BOTH}}}"),
        (
            f"model: {{tied: «embeddings»}}\n{BOTH}}}",
            "one matrix for both embeddings (model.tied: embeddings) needs one vocabulary (tokenizer.joint: true)",
            f"model: {{tied: all, vocab: 9}}\n{BOTH}}}",
        ),
        (
            "tokenizer: {«vocab_size»: {source: 8, target: 8}}",
            "a size for each side needs a tokenizer for each side",
            f"{FORMS}{BOTH}, vocab_size: {{source: 8, target: 8}}}}",
        ),
        (
            "tokenizer: {«model»: {source: a, target: b}}",
            "a model for each side needs tokenizer.joint: false",
            f"{FORMS}{BOTH}, model: {{source: a, target: b}}}}",
        ),
        (
            f"{FORMS}{BOTH}, model: «a»}}",
            "a tokenizer for each side (joint: false) needs {source, target} models",
            "tokenizer: {model: a}",
        ),
        (
            "tokenizer: {kind: word, sampling: «0.1»}",
            "whole words cannot be sampled",
            "tokenizer: {kind: unigram, sampling: 0.1}",
        ),
        (
            "tokenizer: {extend: «9»}",
            "new pieces are learned on top of another run's tokenizer: name that run in training.init_from",
            "tokenizer: {extend: 9}\ntraining: {init_from: runs/x}",
        ),
        (
            "tokenizer: {kind: byte, extend: «9»}\ntraining: {init_from: runs/x}",
            "a byte tokenizer has all bytes",
            "tokenizer: {kind: char, extend: 9}\ntraining: {init_from: runs/x}",
        ),
        (f"{NEW}, freeze: [encoder, «embeddings»]}}", f"{UNTAUGHT}embeddings ", f"{NEW}, freeze: [encoder]}}"),
        (f"{NEW}, freeze: [«output.weight»]}}", f"{UNTAUGHT}output.weight", "training: {freeze: [output.weight]}"),
        (
            "tokenizer: {byte_fallback: true, vocab_size: «260»}",
            "byte_fallback alone takes 256 pieces",
            "tokenizer: {byte_fallback: true, vocab_size: 261}",
        ),
        (
            f"{BYTES_BY_SIDE}, «vocab_size»: {{source: 262, target: 261}}}}\n{TWO_WAYS}",
            "byte_fallback alone takes 256 pieces besides the 4 specials and the tags (2)",
            f"{BYTES_BY_SIDE}, vocab_size: {{source: 263, target: 261}}}}\n{TWO_WAYS}",
        ),
        (
            f"tokenizer: {{vocab_size: «6»}}\n{TWO_WAYS}",
            "the 4 specials and the tags (2) leave no piece for the text: vocab_size must be above 6",
            f"tokenizer: {{vocab_size: 7}}\n{TWO_WAYS}",
        ),
        (
            "data: {train: [{text: phrasebook, source: «fr»}]}",
            "the phrasebook is German-English: source and target are de and en in either order, not fr and en",
            "data: {train: [{text: phrasebook, source: de}]}",
        ),
        (
            "data: {train: [{text: t, target: «de», both: true}], valid: v}",
            "source and target are both de",
            "data: {train: [{text: t, target: en, both: true}], valid: v}",
        ),
        (
            "data: {train: [{text: t, source: «a b»}], valid: v}",
            "a language is the last part of a file name",
            "data: {train: [{text: t, source: ab}], valid: v}",
        ),
        (
            "data: {train: t, valid: [{text: «v», target: fr}]}",
            "nothing that is learned from is translated into fr",
            "data: {train: t, valid: [{text: v, target: en}]}",
        ),
        (
            "data: {train: [{text: t, both: true}], valid: v, test: {a: «[{text: t}, {text: u}]»}}",
            "two texts are de-en: name each of them",
            "data: {train: [{text: t, both: true}], valid: v, test: {a: [{text: t, both: true}]}}",
        ),
        (
            "data: {tags: true, train: [{text: t, source: fr}], valid: v, «test»: {source: a, target: b}}",
            "these are taken to be de-en (data.source, data.target), but what is learned is fr-en: say",
            "data: {tags: true, source: fr, train: [{text: t}], valid: v, test: {source: a, target: b}}",
        ),
        (
            "data: {train: [{text: t, source: fr}, {text: t, target: fr}], valid: v, test: {«few»: {pairs: [[a, b]]}}}",
            "these are taken to be de-en",
            "data: {train: [{text: t, source: fr}, {text: t, target: fr}], valid: v, test: {few: t}}",
        ),
        (
            "data: {source: es, tags: true, train: [{text: t, source: fr}], «valid»: {pairs: [[a, b]]}}",
            "these are taken to be es-en",
            "data: {source: es, tags: true, train: [{text: t, source: fr}], valid: [{text: v, source: fr}]}",
        ),
        (
            "data: {train: [{text: phrasebook, both: true}], valid: «1%»}",
            "the phrasebook writes each source as people type it",
            "data: {train: [{text: phrasebook}], valid: 1%}",
        ),
        ("data: {train: «t»}", "sentences to learn from need others to validate with", f"data: {{{FILES}}}"),
        (
            "data: {train: t, valid: «phrasebook»}",
            "the phrasebook's valid sentences go with its own train",
            "data: {train: phrasebook, valid: phrasebook}",
        ),
        (
            f"data: {{{FILES}, test: «phrasebook»}}",
            "the phrasebook's test sentences go with its own train",
            f"data: {{{FILES}, test: t}}",
        ),
        (
            f"data: {{{FILES}, test: {{a: t, b: «phrasebook»}}}}",
            "the phrasebook's test sentences go with its own train",
            "data: {test: {a: t, b: phrasebook}}",
        ),
        (
            "data: {test: {valid: «t»}}",
            "expected the name of a test set, letters, digits, `.`, `_` and `-`, a letter or digit first, 100 at most; "
            "not train, valid, text, source, target, pairs",
            "data: {test: {valid2: t}}",
        ),
        ("data: {train: t, valid: «0%»}", "data.valid can be a share of ", "data: {train: t, valid: 0.1%}"),
        ("data: {train: t, valid: «51%»}", "data.valid can be a share of ", "data: {train: t, valid: 50%}"),
        ("data: {train: t, valid: «'1,5%'»}", "data.valid can be a share of ", "data: {train: t, valid: 1.5 %}"),
        ("data: {train: t, valid: «100%»}", "data.valid can be a share of ", "training: {warmup_steps: 1.5 %}"),
        ("data: {train: t, valid: «-1%»}", "data.valid can be a share of ", "data: {valid: 1%}"),
        (
            f"data: {{{FILES}, test: {{a: «1%»}}}}",
            "data.test cannot be a share of the training text, as data.valid can: name a text",
            f"data: {{{FILES}, test: {{a: t}}}}",
        ),
        ("data: {test: {a b: «t»}}", "expected the name of a test set", "data: {test: {a.b: t}}"),
        ("data: {test: {a: t, b: «''»}}", "the file's name is empty", "data: {test: {a: t, b: t}}"),
        (
            "data: {source: «fr»}",
            "the phrasebook is German-English: source and target are de and en in either order, not fr",
            "data: {source: en, target: de}",
        ),
        ("data: {target: «de»}", "the phrasebook is German-English", f"data: {{source: fr, {FILES}}}"),
        (
            f"data: {{{FILES}, source: «en»}}",
            "source and target are both en: the two sides would be the same file",
            "data: {train: {pairs: [[a, b]]}, valid: {pairs: [[a, b]]}, source: en}",
        ),
        (f"data: {{{FILES}, target: «''»}}", "a language is the last part", f"data: {{{FILES}, target: x}}"),
        (f"data: {{{FILES}, test: «''»}}", "the file's name is empty", f"data: {{{FILES}, test: null}}"),
        (
            f"data: {{{FILES}, test: {{source: a, target: «''»}}}}",
            "the file's name is empty",
            f"data: {{{FILES}, test: {{source: a, target: b}}}}",
        ),
        ("tokenizer: {model: «''»}", "the file's name is empty", "tokenizer: {model: a}"),
        (
            "tokenizer: {joint: false, model: {source: a, target: «''»}}\nmodel: {tied: none}",
            "the file's name is empty",
            "tokenizer: {joint: false, model: {source: a, target: b}}\nmodel: {tied: none}",
        ),
        (
            "training: {budget_tokens: «255»}",
            "a sentence of data.max_length 256 does not fit into a batch of training.budget_tokens 255",
            "training: {budget_tokens: 256}",
        ),
        ("data: {max_length: «4097»}", "a sentence of data.max_length 4,097", "data: {max_length: 4096}"),
        (
            "decoding: {max_length_factor: «0», max_length_extra: 0}",
            "factor and extra are both 0",
            "decoding: {max_length_factor: 0, max_length_extra: 1}",
        ),
        (
            "decoding: {min_length: «8», max_length: 7}",
            "a translation of at least 8 pieces cannot have at most 7",
            "decoding: {min_length: 7, max_length: 7}",
        ),
        (
            "decoding: {alignment_layer: «5»}\nmodel: {n_layers: {encoder: 6, decoder: 4}}",
            "alignments cannot be read from decoder layer 5 of 4",
            "decoding: {alignment_layer: 4}\nmodel: {n_layers: {encoder: 6, decoder: 4}}",
        ),
        (
            "evaluation: {metrics: [bleu, chrf, «bleu»]}",
            "bleu is named twice",
            "evaluation: {metrics: [bleu, chrf]}",
        ),
        (
            "training: {schedule: noam, learning_rate: null, warmup_steps: «0»}",
            "noam's peak follows from warmup_steps, a number of updates above 0",
            "training: {schedule: noam, learning_rate: null, warmup_steps: 1}",
        ),
        (
            "training: {schedule: noam, learning_rate: null, warmup_steps: «5%»}",
            "noam's peak follows from warmup_steps, a number of updates above 0",
            "training: {warmup_steps: 5%}",
        ),
        (
            "training: {budget: {minutes: 3}, max_steps: «5», patience: 2}",
            "training ends when its budget is spent and not before: beside it, set training.max_steps=null and "
            "training.patience=null",
            "training: {budget: {minutes: 3}}",
        ),
        (
            "training: {budget: {epochs: 3}, max_epochs: «5»}",
            "training ends when its budget is spent and not before: beside it, set training.max_epochs=null",
            "training: {budget: {epochs: 3}, max_epochs: null}",
        ),
        (
            "training: {budget: {epochs: 3}, stop_loss: «5.0»}",
            "training ends when its budget is spent and not before: beside it, set training.stop_loss=null",
            "training: {budget: null, max_epochs: 3, stop_loss: 5.0}",
        ),
        (
            "training: {«budget»: {minutes: 3, tokens: 5}}",
            "a budget is one of minutes, tokens and epochs",
            "training: {budget: {tokens: 5}}",
        ),
        (
            "training: {schedule: «linear», optimizer: schedule-free}",
            "schedule-free averages in place of a schedule: it goes with constant, not linear",
            "training: {optimizer: schedule-free, schedule: constant}",
        ),
        (
            "training: {optimizer: schedule-free, schedule: constant, ema: «0.9»}",
            "schedule-free has an average of its own",
            "training: {optimizer: muon, ema: 0.9}",
        ),
        (
            "model: {dropout: 0.0}\ntraining: {r_drop: «5»}",
            "r_drop compares two draws of dropout, and model.dropout is 0",
            "model: {dropout: 0.0, attention_dropout: 0.1}\ntraining: {r_drop: 5}",
        ),
        (
            "training: {schedule: noam, learning_rate: «1.0»}",
            "noam is the paper's rate, (d_model * warmup_steps)^-0.5 at its peak: it takes no learning_rate (null)",
            "training: {schedule: inverse-sqrt, learning_rate: 1.0}",
        ),
        (
            "training: {schedule: «noam»}",
            "noam is the paper's rate",
            "training: {schedule: noam, learning_rate: null}",
        ),
        (
            "training: {learning_rate: «null»}",
            "inverse-sqrt needs a learning_rate to rise to; only noam has its own",
            "training: {learning_rate: 1e-3}",
        ),
        (
            "decoding: {min_length: «1000000»}",
            "a translation of at least 1,000,000 pieces: the model learns from sentences of 256 at most",
            "decoding: {min_length: 256}",
        ),
        (
            "training: {validation_bleu: «false»}",
            "best_by: bleu needs validation_bleu: true",
            "training: {validation_bleu: false, best_by: loss}",
        ),
    ],
)
def test_a_contradiction_is_told_and_its_neighbour_is_fine(told, wrong, expected, right):
    """«» mark what is blamed."""
    culprit = wrong[wrong.index("«") + 1 : wrong.index("»")]
    marked, words = told(wrong.replace("«", "").replace("»", ""))
    assert marked == culprit
    assert words.startswith(expected)
    assert told(right) is None


@pytest.mark.parametrize(
    ("wrong", "expected", "right"),
    [
        (
            "accounting: {architecture: «decoder-only»}",
            "tx trains encoder-decoder models; one that is decoder-only it only builds and counts",
            "accounting: {architecture: encoder-decoder}",
        ),
        (
            "accounting: {vocab: «9»}",
            "a model is trained with the vocabulary of its tokenizer (tokenizer.vocab_size)",
            "accounting: {vocab: null}",
        ),
        ("accounting: {extra: «[{name: a, shape: [1]}]»}", "extras are counted, not built", "accounting: {extra: []}"),
        (
            "accounting: {attention_biases: «[query, value, output]»}",
            "biases for some projections only are counted, not built",
            "model: {bias: {attention: true}}",
        ),
        (
            "model: {positions: learned, max_positions: «256», first_position: 1}",
            "the encoder has positions for 255 pieces (model.max_positions), but sentences may have ",
            "model: {positions: learned, max_positions: 257, first_position: 1}",
        ),
        (
            "model: {positions: {encoder: rotary, decoder: sinusoidal-table}}\ndata: {max_length: «1025»}",
            "the decoder has positions for 1,024 pieces",
            "model: {positions: {encoder: sinusoidal-table, decoder: rotary}}\ndata: {max_length: 1024}",
        ),
    ],
)
def test_what_cannot_be_trained_is_told_and_can_be_counted(told, wrong, expected, right):
    """«» mark what is blamed."""
    culprit = wrong[wrong.index("«") + 1 : wrong.index("»")]
    text = wrong.replace("«", "").replace("»", "")
    marked, words = told(text, to_train=True)
    assert marked == culprit
    assert words.startswith(expected)
    assert told(text) is None
    assert told(right, to_train=True) is None


def test_a_contradiction_with_a_wrong_setting_waits_until_that_is_mended(told):
    """The default in its place would be blamed for what the user never wrote."""
    assert told("model: {d_model: wide, n_heads: 7}")[0] == "wide"


def test_the_defaults_do_not_contradict_themselves():
    assert list(contradictions(RunConfig())) == []


@pytest.mark.parametrize("name", ["half, 50%", "100x%", "my 5%"])
def test_a_text_whose_name_ends_in_a_percent_sign_is_no_share(told, name):
    """It was taken for one that is too large."""
    assert told(f"data: {{train: '{name}', valid: '{name}'}}") is None
