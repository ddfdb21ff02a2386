from __future__ import annotations

import json
import shutil

import pytest

from transformer_cli.config.tokenizer import TokenizerConfig
from transformer_cli.errors import ModelError
from transformer_cli.tokenizer import Tokenizer, Vocabulary, train_tokenizer
from transformer_cli.tokenizer.renumbering import Model

GERMAN = ["ich möchte ein bier", "das ist ein hund", "die katze trinkt ein bier"] * 10
ENGLISH = ["i want a beer", "that is a dog", "the cat drinks a beer"] * 10


def trained(**options) -> Tokenizer:
    return train_tokenizer(TokenizerConfig(vocab_size=60, **options), GERMAN, ENGLISH, seed=1)[0]


@pytest.fixture(scope="module")
def joint() -> Tokenizer:
    return trained()


@pytest.fixture(scope="module")
def per_side() -> Tokenizer:
    return trained(joint=False)


@pytest.mark.parametrize("kind", ["joint", "per_side"])
def test_a_saved_tokenizer_loads_as_the_same(kind, request, tmp_path):
    tokenizer = request.getfixturevalue(kind)
    tokenizer.save(tmp_path / "tokenizer")
    loaded = Tokenizer.load(tmp_path / "tokenizer")
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.joint == tokenizer.joint
    assert loaded.encode_source(GERMAN) == tokenizer.encode_source(GERMAN)
    assert loaded.encode_target(ENGLISH) == tokenizer.encode_target(ENGLISH)


def test_a_model_that_is_gone_is_named_with_what_to_do(joint, tmp_path):
    joint.save(tmp_path)
    (tmp_path / "spm.model").unlink()
    with pytest.raises(ModelError, match=r"spm\.model does not exist") as failure:
        Tokenizer.load(tmp_path)
    assert "copy the whole directory again" in failure.value.hint


def test_a_joint_tokenizer_is_one_model_and_the_other_kind_two(joint, per_side, tmp_path):
    joint.save(tmp_path / "joint")
    per_side.save(tmp_path / "two")
    assert sorted(path.name for path in (tmp_path / "joint").iterdir()) == ["spm.model", "tokenizer.json"]
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == [
        "source.model",
        "target.model",
        "tokenizer.json",
    ]
    assert joint.encode_source(ENGLISH) == joint.encode_target(ENGLISH)
    assert per_side.decode_target(per_side.encode_target(ENGLISH)) == ENGLISH
    assert per_side.decode_source(per_side.encode_source(GERMAN)) == GERMAN


def test_the_special_symbols_are_stored_with_the_tokenizer(joint, tmp_path):
    joint.save(tmp_path)
    description = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    assert description["specials"] == {"<pad>": 0, "<unk>": 1, "<s>": 2, "</s>": 3}
    assert [joint.source.piece(id) for id in range(4)] == list(description["specials"])


def test_the_fingerprint_tells_tokenizers_apart_by_content(joint, per_side):
    swapped = Tokenizer(per_side.target, per_side.source)
    doubled = Tokenizer(joint.source, joint.source)
    others = [joint, per_side, swapped, doubled, trained(kind="unigram"), trained(normalization="identity")]
    assert len({tokenizer.fingerprint for tokenizer in others}) == len(others)
    assert trained().fingerprint == joint.fingerprint


def test_a_tokenizer_of_equal_size_but_other_content_is_another(joint):
    other, _ = train_tokenizer(TokenizerConfig(vocab_size=60), [*ENGLISH, "quite other words"], GERMAN, seed=1)
    assert other.source_size == joint.source_size
    assert other.fingerprint != joint.fingerprint


def test_both_sides_are_sampled_apart(joint):
    lines = ["the cat drinks a beer"] * 30
    options = {"rate": 0.5, "seed": 1, "epoch": 1}
    assert joint.sample_source(lines, **options) != joint.sample_target(lines, **options)
    assert joint.sample_source(lines, **options) == joint.sample_source(lines, **options)
    assert joint.sample_source(lines, **options) != joint.sample_source(lines, **options | {"epoch": 2})
    assert joint.sample_source(lines, **options) != joint.sample_source(lines, **options | {"seed": 2})
    assert (
        joint.sample_source(lines[10:], **options, places=range(10, 30)) == joint.sample_source(lines, **options)[10:]
    )


def test_a_draw_is_called_by_its_side_seed_epoch_copy_and_place_as_ever(joint):
    """A run goes on with the draws it began with."""
    options = {"rate": 0.5, "seed": 1, "epoch": 2, "places": [7, 5], "copies": [0, 3]}
    for sample, side in ((joint.sample_source, "source"), (joint.sample_target, "target")):
        named = joint.source.sample(ENGLISH[:2], rate=0.5, key=f"{side} 1 2", names=["7", "copy 3 5"])
        assert sample(ENGLISH[:2], **options) == named


def test_a_missing_tokenizer_says_how_to_train_one(tmp_path):
    with pytest.raises(ModelError, match=r"tokenizer\.json does not exist") as caught:
        Tokenizer.load(tmp_path)
    assert "tx tokenize -c" in caught.value.hint


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", '{"joint": true, "sha256": {}, "fingerprint": ""}', "\0"])
def test_a_damaged_description_is_a_model_error(joint, tmp_path, text):
    joint.save(tmp_path)
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_only_the_description_is_told_to_be_none(joint, tmp_path, monkeypatch):
    """What is wrong where the models are read is no fault of it."""
    joint.save(tmp_path)
    monkeypatch.setattr("transformer_cli.tokenizer.tokenizer.read_vocabulary", lambda *_, **__: {}["nothing"])
    with pytest.raises(KeyError):
        Tokenizer.load(tmp_path)


def test_a_mark_that_is_no_text_is_none(joint, tmp_path):
    joint.save(tmp_path)
    description = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    (tmp_path / "tokenizer.json").write_text(json.dumps(description | {"marks": [5]}), encoding="utf-8")
    with pytest.raises(ModelError, match=r"spm\.model has no mark 5"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    "damage", [lambda m: m[:-1], lambda m: m + b"\0", lambda m: m[:99] + b"?" + m[100:], lambda m: b""]
)
def test_a_damaged_model_is_a_model_error_with_its_path(joint, tmp_path, damage):
    joint.save(tmp_path)
    path = tmp_path / "spm.model"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ModelError, match=r"spm\.model is damaged"):
        Tokenizer.load(tmp_path)


def test_a_missing_model_is_a_model_error_with_its_path(per_side, tmp_path):
    per_side.save(tmp_path)
    (tmp_path / "target.model").unlink()
    with pytest.raises(ModelError, match=r"target\.model does not exist"):
        Tokenizer.load(tmp_path)


def test_models_that_changed_places_are_noticed(per_side, tmp_path):
    per_side.save(tmp_path)
    shutil.move(tmp_path / "source.model", tmp_path / "x")
    shutil.move(tmp_path / "target.model", tmp_path / "source.model")
    shutil.move(tmp_path / "x", tmp_path / "target.model")
    with pytest.raises(ModelError, match=r"source\.model is damaged"):
        Tokenizer.load(tmp_path)


@pytest.fixture(scope="module")
def marked(joint) -> Tokenizer:
    """The joint one, with the mark of a language on each side."""
    marks = ("__de__", "__en__")
    pieces = [joint.source.piece(id) for id in range(4, joint.source_size)]
    model = Model(joint.source.model).numbered([*pieces, *marks], frozenset(marks)).model
    return Tokenizer(*(Vocabulary(model, mark=mark) for mark in marks))


def test_a_mark_comes_before_every_text_and_vanishes_from_it(marked, joint):
    for sides in ((marked.encode_source, joint.encode_source), (marked.encode_target, joint.encode_target)):
        with_mark, without = (encode([*GERMAN, "", "  "]) for encode in sides)
        assert [ids[1:] for ids in with_mark] == without
        assert {tuple(ids[:1]) for ids in with_mark} == {(sides[0](["ein"])[0][0],), ()}
    assert [marked.source.piece(ids[0]) for ids in marked.encode_source(GERMAN[:1])] == ["__de__"]
    assert marked.source.pieces(GERMAN[:1])[0][0] == "__de__"
    assert marked.decode_target(marked.encode_target(ENGLISH)) == ENGLISH
    drawn = marked.sample_target(ENGLISH, rate=0.5, seed=1, epoch=1)
    assert [ids[1:] for ids in drawn] == joint.sample_target(ENGLISH, rate=0.5, seed=1, epoch=1)


def test_the_mark_is_what_is_given(marked, joint):
    assert [list(marked.source.given)] == [ids[:1] for ids in marked.encode_source(["ein"])]
    assert joint.source.given == ()


def test_its_own_mark_may_be_written_and_that_of_another_language_never(marked):
    assert marked.target.mark_id not in marked.banned_target_ids
    assert marked.source.mark_id in marked.banned_target_ids


def test_marks_are_saved_and_make_another_tokenizer(marked, tmp_path):
    marked.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert (loaded.source.mark, loaded.target.mark) == ("__de__", "__en__")
    assert loaded.fingerprint == marked.fingerprint
    turned = Tokenizer(*(Vocabulary(marked.source.model, mark=mark) for mark in ("__en__", "__de__")))
    assert turned.fingerprint != marked.fingerprint
    assert loaded.shares_ids


@pytest.mark.parametrize("mark", ["__fr__", "</s>", "<there>", "▁"])
def test_what_the_model_has_as_no_mark_is_none(marked, mark):
    with pytest.raises(ModelError, match="has ▁ as a piece of text" if mark == "▁" else "has no mark"):
        Vocabulary(marked.source.model, mark=mark)
