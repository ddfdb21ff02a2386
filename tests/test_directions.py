"""One model, several directions: texts that say theirs, tags in front of sources, scores of each."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sacrebleu
import torch
from conftest import PAIRS
from encoded import encode
from ranks import codes, start

import transformer_cli as tx
from transformer_cli.checkpoints.find import find_checkpoint, list_checkpoints
from transformer_cli.checkpoints.store import load_checkpoint
from transformer_cli.cli import failures, test_sets
from transformer_cli.cli.app import main
from transformer_cli.config.data import DataConfig, Direction
from transformer_cli.config.run import RunConfig
from transformer_cli.config.source import load_config
from transformer_cli.config.tokenizer import TokenizerConfig
from transformer_cli.data import batching, encoding, loader
from transformer_cli.data.corpus import Corpus, load_both, load_tests, load_training
from transformer_cli.data.mixture import by_direction, sources_into
from transformer_cli.data.sampled import Draw, SampledCorpus
from transformer_cli.errors import DataError, ModelError, UsageError
from transformer_cli.tokenizer import EOS, Tokenizer, train_tokenizer
from transformer_cli.tokenizer.renumbering import appended
from transformer_cli.training import directory
from transformer_cli.training.run import train

BOTH: dict[str, Any] = {
    "train": [{"text": {"pairs": PAIRS}, "both": True}],
    "valid": {"pairs": PAIRS},
    "test": {"own": {"pairs": PAIRS}, "few": {"pairs": PAIRS[2:5]}},
}
SIDES = [one for one, _ in PAIRS], [other for _, other in PAIRS]
BACK, THERE = Direction("en", "de"), Direction("de", "en")


def data(**changes: Any) -> DataConfig:
    return DataConfig.model_validate({**BOTH, **changes})


def settings(folder: Path, **training: Any) -> RunConfig:
    """Of a run in both directions that takes a second. folder: of the trained run."""
    tree = load_config(folder / "config.yaml").model_dump()
    tree["data"] |= BOTH
    tree["training"] |= {"max_steps": 40, "validate_every": 20, "keep_last": 9, "learning_rate": 0.01, **training}
    return RunConfig.model_validate(tree)


def tagged(kind: str = "bpe", size: int = 100, **changes: Any) -> Tokenizer:
    config = TokenizerConfig(kind=kind, vocab_size=size, **changes)  # type: ignore[arg-type]
    lines = [*SIDES[0], *SIDES[1]]
    return train_tokenizer(config, lines, lines, seed=1, tags=("de", "en"))[0]


def call(*arguments: str) -> int:
    """The program in this process: its exit code."""
    return failures.exit_code(lambda: main([*arguments]))


# --- texts ---------------------------------------------------------------------------------------------------------


def test_a_text_in_both_directions_has_each_pair_once_each_way() -> None:
    text = load_training(data())
    assert [*zip(text.source, text.target, strict=True)] == [*map(tuple, PAIRS), *(tuple(p[::-1]) for p in PAIRS)]
    assert [(part.name, part.pairs, part.direction) for part in text.parts] == [
        ("text 1 de-en", len(PAIRS), THERE),
        ("text 1 en-de", len(PAIRS), BACK),
    ]


def test_what_reading_a_file_had_to_change_is_counted_once_in_however_many_directions_it_is_read(
    tmp_path: Path,
) -> None:
    """A validation in both directions told of twice as many lines as the file has, and that for each of them."""
    for name, n in (("a", 3), ("b", 2)):
        for language in ("de", "en"):
            end = "\r\n" if language == "de" else "\n"
            (tmp_path / f"{name}.{language}").write_bytes(f"{name} {language}{end}".encode() * n)
    (both, once), changed = ({"text": str(tmp_path / name)} for name in "ab"), "carriage return stripped"
    texts = [both | {"both": True}, once, once]
    read = dict(zip(("train", "valid"), load_both(data(train=texts, valid=texts)), strict=True))
    assert {name: text.counts for name, text in read.items() if text is not None} == {
        "train": {changed: 3 + 2},
        "valid": {changed: 3 + 2},
    }
    assert {way: text.counts for way, text in by_direction(read["valid"]).items()} == {
        THERE: {changed: 3 + 2},
        BACK: {changed: 3},
    }
    alone = {"source": str(tmp_path / "a.de"), "target": str(tmp_path / "a.de")}
    assert [text.counts for text in load_both(data(train=alone, valid=alone))] == [{changed: 3}] * 2


def test_files_are_read_in_the_languages_of_their_text(tmp_path: Path) -> None:
    for language in ("de", "en", "fr"):
        for name in ("a", "b", "v"):
            (tmp_path / f"{name}.{language}").write_text(f"{name} {language}\n", encoding="utf-8")
    files = {"source": str(tmp_path / "b.de"), "target": str(tmp_path / "b.en")}
    entries = [{"text": str(tmp_path / "a"), "source": "fr", "weight": 2.0}, {"text": files, "both": True}]
    config = DataConfig.model_validate({"train": entries, "valid": str(tmp_path / "v")})
    train_text, valid = load_both(config)
    assert valid is not None
    assert [*zip(train_text.source, train_text.target, strict=True)] == [
        ("a fr", "a en"),
        ("b de", "b en"),
        ("b en", "b de"),
    ]
    assert [*zip(valid.source, valid.target, strict=True)] == [("v fr", "v en"), ("v de", "v en"), ("v en", "v de")]
    assert [str(part.direction) for part in valid.parts] == ["fr-en", "de-en", "en-de"]
    assert config.tagged == ("de", "en")


def test_a_text_is_another_in_both_directions_than_in_one_or_twice(tmp_path: Path) -> None:
    for language in ("de", "en"):
        (tmp_path / f"a.{language}").write_text(f"{language}\n", encoding="utf-8")
    a = {"text": str(tmp_path / "a")}
    entries = [[a], [a, a], [{**a, "both": True}], [{**a, "source": "en", "target": "de"}]]
    texts = [load_training(DataConfig.model_validate({"train": train, "valid": "x"})) for train in entries]
    assert [list(text.source) for text in texts] == [["de"], ["de", "de"], ["de", "en"], ["en"]]
    assert len({text.sha256 for text in texts}) == 4
    # Wherever the pairs came from: a run knows its text again, and so do results.
    assert [text.sha256 for text in texts] == [Corpus([*text.source], [*text.target]).sha256 for text in texts]


def test_pairs_are_told_apart_by_direction() -> None:
    """In order, wherever the texts of a direction lie."""
    pairs = [{"text": {"pairs": PAIRS[place : place + 1]}, "both": place == 1} for place in range(3)]
    _, valid = load_both(data(valid=pairs))
    assert valid is not None
    ways = by_direction(valid)
    assert {way: (text.source, text.target) for way, text in ways.items()} == {
        THERE: ([one for one, _ in PAIRS[:3]], [other for _, other in PAIRS[:3]]),
        BACK: ([PAIRS[1][1]], [PAIRS[1][0]]),
    }
    sources = {language: sources_into(valid, language) for language in ("en", "de", "fr")}
    assert sources == {"en": ways[THERE].source, "de": ways[BACK].source, "fr": []}
    alone = Corpus(["a"], ["b"])
    assert by_direction(alone) == {None: alone}


def test_what_is_held_out_is_held_out_of_both_directions() -> None:
    pairs = [[f"satz {n}", f"sentence {n}"] for n in range(400)]
    train_text, valid = load_both(data(train=[{"text": {"pairs": pairs}, "both": True}], valid="10%"))
    assert valid is not None
    held_out = {frozenset(pair) for pair in zip(valid.source, valid.target, strict=True)}
    learned = {frozenset(pair) for pair in zip(train_text.source, train_text.target, strict=True)}
    assert len(held_out) == len(valid) / 2 > 10
    assert not held_out & learned
    assert [(part.pairs, part.direction) for part in valid.parts] == [(len(held_out), THERE), (len(held_out), BACK)]
    assert [part.pairs for part in train_text.parts] == [400 - len(held_out)] * 2


def test_a_direction_of_which_nothing_is_held_out_is_not_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"text": {"pairs": PAIRS[1:2]}, "source": "fr", "target": "en"}
    of = data(train=[{"text": {"pairs": PAIRS}, "both": True}, few], valid="20%")
    apart = by_direction(load_both(of)[1])
    assert [len(text) > 0 for text in apart.values()] == [True, True, False]
    monkeypatch.setattr(directory, "check_text", lambda *_: None)
    opened: Any = SimpleNamespace(path="", record={})
    assert [one.name for one in test_sets._validation(opened, of)] == ["valid/de-en", "valid/en-de"]


@pytest.mark.parametrize("tags", [False, True])
def test_files_are_those_of_the_languages_that_data_names(tags: bool) -> None:
    """Whichever direction is learned, and whether the text says it."""
    files = {"source": "v.de", "target": "v.en"}
    of = data(train=[{"text": "x", "source": "en", "target": "de"}], valid=files, test=files, tags=tags)
    assert [(one.direction, one.swapped) for one in of.validated] == [(BACK, True)]
    assert [(one.direction, one.swapped) for one in of.tests.values()] == [(BACK, True)]


def test_each_test_set_has_each_direction_and_its_name() -> None:
    tests = load_tests(data())
    assert {name: (text.source[0], len(text)) for name, text in tests.items()} == {
        "own/de-en": (PAIRS[0][0], 12),
        "own/en-de": (PAIRS[0][1], 12),
        "few/de-en": (PAIRS[2][0], 3),
        "few/en-de": (PAIRS[2][1], 3),
    }
    book = DataConfig.model_validate({"train": [{"text": "phrasebook", "both": True}], "phrasebook": {"n_pairs": 1000}})
    found = load_tests(book)
    assert [*found] == ["test/de-en", "test/en-de", "combinations/de-en", "combinations/en-de"]
    assert found["test/de-en"].source[7].lower().split()[0] in found["test/en-de"].target[7]


def test_no_text_to_test_with_is_lost_behind_another_of_its_name() -> None:
    """In directions beyond the one that is learned, of which every text but the last was gone."""
    texts = [{"text": {"pairs": PAIRS[:3]}}, {"text": {"pairs": PAIRS[:2]}, "source": "fr"}]
    for said, name in ((texts, "test"), ({"news": texts}, "news")):
        found = load_tests(data(train={"pairs": PAIRS}, test=said))
        assert {name: len(text) for name, text in found.items()} == {f"{name}/de-en": 3, f"{name}/fr-en": 2}
    assert [*load_tests(data(train={"pairs": PAIRS}, test=texts[1:]))] == ["test"]


def test_one_direction_says_none(tmp_path: Path) -> None:
    """What was prepared before there were directions is still found."""
    plain = data(train=[{"text": {"pairs": PAIRS}}])
    text = load_training(plain)
    assert (plain.is_directed, plain.tagged, [*plain.tests]) == (False, (), ["own", "few"])
    assert text.as_json()["parts"] == [{"name": "text 1", "pairs": 12, "weight": 1.0}]
    tokenizer, _ = train_tokenizer(TokenizerConfig(vocab_size=100), *SIDES, seed=1)
    encoded = encode(text, tokenizer, tmp_path, split="train", source_eos=True, max_length=50)
    index = json.loads((encoded.places[0] / "index.json").read_text())
    kept = {"format", "text", "tokenizer", "source_eos", "max_length", "sampling", "counts", "files", "sha256"}
    assert index.keys() == kept


# --- tags ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "char", "byte"])
def test_a_tag_is_one_piece_that_no_text_is_cut_into(kind: str) -> None:
    tokenizer = tagged(kind, 70 if kind == "unigram" else 100)
    for text in ("<2en>", "<2en> ich", "ich<2en>", "<2de>ein bier", "▁<2en>", " <2en>"):
        assert not {*tokenizer.tags.values()} & {*tokenizer.source.encode([text])[0]}
    ids = tokenizer.source.encode(SIDES[0])
    for language, id in tokenizer.tags.items():
        assert tokenizer.source.piece(id) == f"<2{language}>"
        assert tokenizer.towards(language).encode_source(SIDES[0]) == [[id, *line] for line in ids]
        assert tokenizer.towards(language).encode_source([""]) == [[]]
        assert tokenizer.decode_source([[id, *ids[0]]]) == tokenizer.decode_source([ids[0]])
        assert id in tokenizer.banned_target_ids
    assert tokenizer.towards("de").encode_target(SIDES[0]) == ids


def test_the_tags_are_among_the_pieces_that_were_asked_for() -> None:
    assert tagged(size=90).source_size == 90
    assert (tagged("byte").source_size,) * 2 == (263, 263) == TokenizerConfig(kind="byte").asked(2)
    sides = tagged(size=90, joint=False)
    assert (sides.source_size, sides.target_size, [*sides.tags.values()]) == (90, 90, [88, 89])
    assert sides.towards("en").encode_source(["ein bier"])[0][0] == 89


def test_tags_are_added_to_a_model_that_is_given(tmp_path: Path) -> None:
    plain, _ = train_tokenizer(TokenizerConfig(vocab_size=100), *SIDES, seed=1)
    (tmp_path / "spm.model").write_bytes(plain.source.model)
    config = TokenizerConfig(model=str(tmp_path / "spm.model"))
    tokenizer, _ = train_tokenizer(config, *SIDES, seed=1, tags=("de", "en"))
    assert (tokenizer.source_size, tokenizer.tags) == (plain.source_size + 2, {"de": 100, "en": 101})
    assert tokenizer.source.encode(SIDES[0]) == plain.source.encode(SIDES[0])
    (tmp_path / "spm.model").write_bytes(appended(plain.source.model, {"<2en>": -1.0}))
    with pytest.raises(ModelError, match=r"spm\.model has <2en> as a piece of text, and a mark is none") as caught:
        train_tokenizer(config, *SIDES, seed=1, tags=("de", "en"))
    assert "--control_symbols='<2en>'" in str(caught.value.hint)


def test_a_tokenizer_keeps_its_tags_and_is_another_one_for_them(tmp_path: Path) -> None:
    tokenizer = tagged()
    tokenizer.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert (again.tags, again.fingerprint) == (tokenizer.tags, tokenizer.fingerprint)
    assert Tokenizer(tokenizer.source).fingerprint != tokenizer.fingerprint
    with pytest.raises(UsageError, match="translates into de or en: say which"):
        again.encode_source(["ein bier"])


# --- batches -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_processes", [1, 2])
def test_every_source_of_a_batch_begins_with_its_tag_and_every_pair_comes_once_each_way(
    n_processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "n_processes", lambda n_pairs: n_processes)
    monkeypatch.setattr(encoding, "CHUNK", 5)
    text, tokenizer = load_training(data()), tagged()
    encoded = encode(text, tokenizer, tmp_path, split="train", source_eos=True, max_length=50)
    found: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    for rank in range(2):
        plan = batching.plan(encoded.lengths, budget=60, seed=1, epoch=3, rank=rank, world=2)
        for batch in loader.batches(encoded, plan):
            for source, length, target in zip(
                batch.source_BS.tolist(), batch.source_lengths_B.tolist(), batch.target_out_BT.tolist(), strict=True
            ):
                found[tuple(source[:length]), tuple(target[: target.index(EOS)])] += 1
    there, back = tokenizer.towards("en"), tokenizer.towards("de")
    pairs = [*zip(there.encode_source(SIDES[0]), there.encode_target(SIDES[1]), strict=True)]
    pairs += zip(back.encode_source(SIDES[1]), back.encode_target(SIDES[0]), strict=True)
    assert found == Counter(((*source, EOS), tuple(target)) for source, target in pairs)


def test_pieces_that_are_drawn_come_after_the_tag(tmp_path: Path) -> None:
    text, tokenizer = load_training(data()), tagged()
    plain = encode(text, tokenizer, tmp_path, split="train", source_eos=False, max_length=50)
    drawn = SampledCorpus(plain, text, tokenizer, Draw(0.5, 1, 0), max_length=50)
    sources = drawn.sources(range(len(drawn)))
    assert [ids[0] for ids in sources] == [tokenizer.tags["en"]] * 12 + [tokenizer.tags["de"]] * 12
    assert tokenizer.decode_source(sources) == list(text.source)
    assert any(len(ids) > len(own) for ids, own in zip(sources, plain.sources(range(len(plain))), strict=True))


def test_the_directions_of_a_text_are_part_of_its_name(tmp_path: Path) -> None:
    text, tokenizer = load_training(data()), tagged()
    swapped = Corpus(text.source, text.target, parts=text.parts[::-1])
    for one in (text, swapped):
        first = encode(one, tokenizer, tmp_path, split="train", source_eos=True, max_length=50).sources([0])[0][0]
        assert first == tokenizer.tags["en" if one is text else "de"]


# --- training ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_processes", [1, 2])
def test_the_score_of_a_direction_is_that_of_its_text_alone(
    n_processes: int, trained_run: Path, tmp_path: Path
) -> None:
    """By sacreBLEU, of greedy translations of one direction, by the checkpoint that was validated."""
    config = settings(trained_run)
    if n_processes == 1:
        train(config, Path("run"))
    else:
        assert codes(start(2, lambda _: train(config, Path("run")), tmp_path), limit_s=100) == [0, 0]
    events = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    last = [event for event in events if event["event"] == "validation"][-1]
    model = tx.load(list_checkpoints("run")[-1])
    translated: list[str] = []
    for to, lines, references in (("en", *SIDES), ("de", *SIDES[::-1])):
        found = model.translate(lines, to=to, beam_size=1)
        expected = sacrebleu.corpus_bleu(found, [references]).score
        assert last["directions"]["de-en" if to == "en" else "en-de"] == pytest.approx(expected)
        translated += found
    both = sacrebleu.corpus_bleu(translated, [[*SIDES[1], *SIDES[0]]]).score
    assert last["bleu"] == pytest.approx(both)
    assert {sample["source"] for sample in last["samples"]} == {*PAIRS[0]}
    again = tx.evaluate(list_checkpoints("run")[-1], valid=True, beam_size=1, settings={"evaluation.metrics": ["bleu"]})
    again = {one["set"]: one["scores"][0]["value"] for one in again}
    assert again == {f"valid/{direction}": pytest.approx(score) for direction, score in last["directions"].items()}


def test_a_run_that_was_stopped_goes_on_with_the_same_bits(trained_run: Path) -> None:
    limits = {"validate_every": 4, "validation_bleu": False, "best_by": "loss", "schedule": "constant"}
    train(settings(trained_run, max_steps=8, **limits), Path("whole"))
    train(settings(trained_run, max_steps=4, **limits), Path("halves"))
    train(settings(trained_run, max_steps=8, **limits), Path("halves"))
    whole, halves = (load_checkpoint(list_checkpoints(run)[-1], with_optimizer=True) for run in ("whole", "halves"))
    assert whole.step == halves.step == 8
    assert all(torch.equal(tensor, halves.model[name]) for name, tensor in whole.model.items())


def test_a_run_does_not_go_on_in_other_directions(trained_run: Path) -> None:
    config = settings(trained_run, max_steps=1)
    train(config, Path("run"))
    pairs = [*PAIRS, *(pair[::-1] for pair in PAIRS)]
    other = config.model_dump()
    other["data"]["train"] = [{"text": {"pairs": pairs[:12]}}, {"text": {"pairs": pairs[12:]}}]
    with pytest.raises(DataError, match=r"data\.train has no longer the directions that"):
        train(RunConfig.model_validate(other), Path("run"))


def test_what_begins_with_another_run_has_its_tags(two_ways: Path, trained_run: Path) -> None:
    with pytest.raises(UsageError, match=r"data\.tags: sources begin with <2de> or <2en> here, of which nothing is"):
        train(settings(trained_run, init_from=str(trained_run)), Path("run"))
    alone = settings(trained_run, init_from=str(two_ways)).model_dump()
    alone["data"] |= {"train": {"pairs": PAIRS}}
    with pytest.raises(UsageError, match=r"data\.tags: sources begin without a tag here, with <2de> or <2en> there"):
        train(RunConfig.model_validate(alone), Path("run"))
    alone["data"]["tags"] = True
    train(RunConfig.model_validate(alone | {"training": alone["training"] | {"max_steps": 1}}), Path("run"))
    before, after = (load_checkpoint(find_checkpoint(str(run)), with_optimizer=False) for run in (two_ways, "run"))
    assert before.tokenizer == after.tokenizer


# --- what it is used for -------------------------------------------------------------------------------------------


def test_it_translates_into_the_language_that_is_asked_for(two_ways: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert call("translate", "-m", str(two_ways), "--to", "en", *SIDES[0]) == 0
    english = capfd.readouterr().out.splitlines()
    assert call("translate", "-m", str(two_ways), "--to", "de", *SIDES[1]) == 0
    german = capfd.readouterr().out.splitlines()
    assert sum(map(str.__eq__, english, SIDES[1])) >= 9
    assert sum(map(str.__eq__, german, SIDES[0])) >= 7
    model = tx.load(two_ways)
    assert model.translate(SIDES[0], to="en") == english
    assert model.translate(PAIRS[5][1], to="de") == german[5]


@pytest.mark.parametrize(
    "command",
    [
        ["translate", "ein bier"],
        ["score", "--source", "a", "--target", "b"],
        ["visualize-attention", "ein bier"],
        ["evaluate", "--source", "a", "--reference", "b"],
        ["evaluate", "--source", "a", "--check-batching"],
    ],
)
def test_which_language_has_to_be_said_and_has_to_be_known(
    command: list[str], two_ways: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, line in (("a", "ein bier\n"), ("b", "a beer\n")):
        Path(name).write_text(line)
    assert call(*command, "-m", str(two_ways)) == 2
    said = capfd.readouterr()
    assert "this model translates into de or en: say which" in said.err
    assert "--to de" in said.err
    assert call(*command, "-m", str(two_ways), "--to", "fr") == 2
    assert "this model does not translate into 'fr', but into de or en" in capfd.readouterr().err
    assert call(*command, "-m", str(two_ways), "--to", "en") == 0


@pytest.mark.parametrize(
    "command",
    [
        ["translate", PAIRS[0][0]],
        ["score", "--source", "a", "--target", "b"],
        ["visualize-attention", PAIRS[0][0], "-o", "page.html"],
        ["evaluate", "--source", "a", "--reference", "b"],
        ["export", "ctranslate2", "-i", "a", "-o", "exported"],
    ],
)
def test_a_run_that_learned_one_direction_needs_no_word_either(
    command: list[str], one_way: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its vocabulary has the tags of both, which it began with; the other one can be asked for."""
    for name, line in (("a", PAIRS[0][0]), ("b", PAIRS[0][1])):
        Path(name).write_text(f"{line}\n")
    said = []
    for to in ([], ["--to", "en"], ["--to", "de"]):
        shutil.rmtree("exported", ignore_errors=True)
        assert call(*command, "-m", str(one_way), *to) == 0
        said.append(capfd.readouterr().out)
    assert said[0] == said[1]
    if command[0] == "score":
        assert said[2] != said[0]


@pytest.fixture(scope="module")
def one_way(two_ways: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that begins with both directions and goes on with one."""
    place = tmp_path_factory.mktemp("one") / "run"
    tree = load_config(two_ways / "config.yaml").model_dump()
    tree["data"] |= {"train": {"pairs": PAIRS}, "tags": True}
    tree["training"] |= {"init_from": str(two_ways), "max_steps": 2, "learning_rate": 1e-9, "warmup_steps": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place.parent)
        train(RunConfig.model_validate(tree), place)
    return place


def test_a_model_of_one_language_needs_no_word_and_refuses_another(
    trained_run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call("translate", "-m", str(trained_run), "--to", "en", PAIRS[0][0]) == 0
    assert capfd.readouterr().out == f"{PAIRS[0][1]}\n"
    assert call("translate", "-m", str(trained_run), "--to", "de", PAIRS[0][0]) == 2
    assert "does not translate into 'de', but into en" in capfd.readouterr().err


def test_files_are_compared_in_the_direction_that_the_first_run_knows(
    two_ways: Path, trained_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The second was asked which language it should be, after the first had translated all."""
    files = []
    for language, lines in zip(("de", "en"), SIDES, strict=True):
        files.append(tmp_path / language)
        files[-1].write_text("".join(f"{line}\n" for line in lines), "utf-8")
    text = ("--source", str(files[0]), "--reference", str(files[1]))
    assert call("compare", str(trained_run), str(two_ways), *text, "--json") == 0
    assert len(json.loads(capfd.readouterr().out)["systems"]) == 2
    assert call("compare", str(trained_run), str(two_ways), *text, "--to", "de") == 2
    said = capfd.readouterr().err
    assert "does not translate into 'de', but into en" in said
    assert "translated" not in said
    assert call("compare", str(two_ways), str(trained_run), *text) == 2


def test_its_tests_are_scored_in_each_direction(
    two_ways: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(two_ways, tmp_path / "run")
    assert call("evaluate", "-m", str(run), "--json") == 0
    found = {one["set"]: one["scores"][0]["value"] for one in map(json.loads, capfd.readouterr().out.splitlines())}
    model = tx.load(run)
    for to, name, lines, references in (("en", "own/de-en", *SIDES), ("de", "own/en-de", *SIDES[::-1])):
        assert found[name] == pytest.approx(sacrebleu.corpus_bleu(model.translate(lines, to=to), [references]).score)
    assert [*found] == ["own/de-en", "own/en-de", "few/de-en", "few/en-de"]
    assert json.loads((run / "run.json").read_text())["scores"].keys() == found.keys()
    assert call("evaluate", "-m", str(run), "--to", "de") == 0
    shown = capfd.readouterr().out
    rows = [line.split()[:2] for line in shown.partition("All of them")[2].splitlines()[3:]]
    assert rows == [["own/en-de", "12"], ["few/en-de", "3"]]


def test_a_score_is_that_of_the_search_in_the_same_direction(two_ways: Path) -> None:
    model = tx.load(two_ways)
    for to, lines in (("en", SIDES[0]), ("de", SIDES[1])):
        found = model.translate_all(lines, to=to)
        scored = model.score(lines, [one.text for one in found], to=to)
        for here, one in zip(scored, found, strict=True):
            assert here is not None
            assert here.log_probability == pytest.approx(one.log_probability, abs=1e-4)


def test_the_tag_is_shown_where_pieces_are(two_ways: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert call("tokenize", "-m", str(two_ways), "--to", "en", "<2en> bier") == 0
    pieces, ids = capfd.readouterr().out.rstrip("\n").split("\t")
    assert pieces.split()[0] == "<2en>"
    assert ids.split()[0] == "99"
    assert "99" not in ids.split()[1:]
    maps = tx.load(two_ways).attention("ein bier", to="de")
    assert (maps.source.pieces[0], maps.source.language) == ("<2de>", 98)
    assert call("tokenize", "-m", str(two_ways), "--to", "en", "--target", "bier") == 2
    assert "a target has none" in capfd.readouterr().err


def test_all_its_parameters_are_counted(two_ways: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert call("count-params", str(two_ways), "--json") == 0
    counted = json.loads(capfd.readouterr().out)
    tensors = load_checkpoint(find_checkpoint(str(two_ways)), with_optimizer=False).model
    assert counted["parameters"] == sum(tensor.numel() for tensor in tensors.values())
