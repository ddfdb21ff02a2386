from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from drawn import drawn
from hypothesis import given
from hypothesis import strategies as st

from transformer_cli.config.data import DataConfig, InlinePairs, ParallelFiles, PhrasebookConfig
from transformer_cli.data.corpus import (
    EMPTY_BOTH,
    EMPTY_SOURCE,
    EMPTY_TARGET,
    Corpus,
    load_tests,
    load_training,
    load_validation,
    parallel,
)
from transformer_cli.data.lines import BOM_REMOVED, CR_STRIPPED, check_line, split_lines
from transformer_cli.data.stream import read_lines
from transformer_cli.errors import ConfigError, DataError

INSIDE = {
    "line separator": "\u2028",
    "paragraph separator": "\u2029",
    "next line": "\u0085",
    "form feed": "\x0c",
    "vertical tab": "\x0b",
    "file separator": "\x1c",
    "NUL": "\0",
    "carriage return": "\r",
}


def write(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8"))
    return path


def write_pair(folder: Path, source: str, target: str, *, name: str = "train") -> DataConfig:
    write(folder / f"{name}.de", source)
    write(folder / f"{name}.en", target)
    return DataConfig(train=str(folder / name))


# Lines


@pytest.mark.parametrize("character", INSIDE.values(), ids=INSIDE)
def test_only_a_line_feed_ends_a_line(character):
    assert split_lines(f"a{character}b\nc\n".encode(), "x").lines == [f"a{character}b", "c"]


@given(st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]))))
def test_lines_survive_writing_and_reading_but_for_one_final_carriage_return(lines):
    read = split_lines("".join(f"{line}\n" for line in lines).encode(), "x")
    without_bom = [lines[0].removeprefix("\ufeff"), *lines[1:]] if lines else []
    assert read.lines == [line.removesuffix("\r") for line in without_bom]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\n\n", ["a", ""]),
        (b"\n\n  \n", ["", "", "  "]),
    ],
)
def test_a_final_line_feed_ends_the_last_line_and_starts_none(data, lines):
    assert split_lines(data, "x").lines == lines


def test_one_carriage_return_before_a_line_end_is_stripped_and_counted():
    read = split_lines(b"a\r\nb\nc\r\r\nd\r", "x")
    assert read.lines == ["a", "b", "c\r", "d"]
    assert read.counts == {CR_STRIPPED: 3}


def test_a_byte_order_mark_at_the_start_is_removed_and_counted_and_elsewhere_it_is_text():
    read = split_lines("\ufeffa\n\ufeffb\n".encode(), "x")
    assert read.lines == ["a", "\ufeffb"]
    assert read.counts == {BOM_REMOVED: 1}


def test_text_that_needs_nothing_is_counted_nowhere():
    assert split_lines("schön\ngut\n".encode(), "x").counts == {}


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_bytes_that_are_not_utf8_are_named_by_file_line_and_byte(bom):
    with pytest.raises(DataError) as caught:
        split_lines(bom + b"gut\nsch\xf6n\n", "corpus.de")
    assert "corpus.de, line 2: byte 4 of the line (0xf6, byte " + str(len(bom) + 8) in caught.value.message
    assert "iconv -f latin1" in caught.value.hint


@pytest.mark.parametrize("data", [b"\xed\xa0\x80", b"\xc0\x80", b"\xf5\x80\x80\x80", b"abc\xe2\x82"])
def test_surrogates_overlong_forms_and_cut_characters_are_not_utf8(data):
    with pytest.raises(DataError, match="is not UTF-8"):
        split_lines(data, "x")


def test_utf16_is_recognised():
    with pytest.raises(DataError) as caught:
        split_lines("gut\n".encode("utf-16"), "x")
    assert "iconv -f utf-16" in caught.value.hint


# Files


def test_a_gz_file_reads_like_the_file_in_it(tmp_path):
    text = "ein Bier\r\nzwei\u2028Bier"
    plain = read_lines(write(tmp_path / "a.de", text))
    assert read_lines(write(tmp_path / "a.de.gz", gzip.compress(text.encode()))) == plain


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-5], lambda data: b"no gzip", lambda data: data[:10] + b"\xff" + data[11:]]
)
def test_a_damaged_gz_file_is_a_data_error_with_its_name(tmp_path, damage):
    path = write(tmp_path / "a.gz", damage(gzip.compress(b"some text, some more text, and the rest of it")))
    with pytest.raises(DataError, match=r"a\.gz is damaged"):
        read_lines(path)


def test_a_missing_file_is_reported_with_the_nearest_name(tmp_path):
    write(tmp_path / "train.de", "a\n")
    with pytest.raises(DataError, match=r"trian\.de does not exist") as caught:
        read_lines(tmp_path / "trian.de")
    assert caught.value.hint == f"did you mean {tmp_path / 'train.de'}?"
    write(tmp_path / "input.txt", "a\n")
    with pytest.raises(DataError, match=r"input\.tx does not exist") as caught:
        read_lines(tmp_path / "input.tx")
    assert caught.value.hint == f"did you mean {tmp_path / 'input.txt'}?"


def test_for_a_language_that_is_not_there_the_other_ones_file_is_not_offered(tmp_path):
    """For `source: ger` it was, as what was meant; so was the only one that is there."""
    write(tmp_path / "k.en", "a\n")
    with pytest.raises(DataError, match=r"k\.de does not exist") as caught:
        read_lines(tmp_path / "k.de")
    assert caught.value.hint == "beside it is k.en; of a prefix, data.source and data.target say what follows the dot"
    for name in ("train.de", "train.en", "trainer.en"):
        write(tmp_path / name, "a\n")
    with pytest.raises(DataError, match=r"train\.ger does not exist") as caught:
        read_lines(tmp_path / "train.ger")
    assert str(caught.value.hint).startswith("beside it are train.de, train.en; of a prefix, data.source and")


AS_NOBODY = ["setpriv", *(f"--{caps}=-dac_override,-dac_read_search" for caps in ("bounding-set", "inh-caps"))]
"""For root nothing is forbidden."""
BARRED = """
import json, sys
from pathlib import Path
from transformer_cli.config.data import DataConfig
from transformer_cli.config.source import load_config
from transformer_cli.data.corpus import load_training
from transformer_cli.data.stream import opened, read_lines
from transformer_cli.errors import TxError

def train(prefix):
    load_training(DataConfig(train=prefix, source="de", target="en"))

for action in (read_lines, lambda name: opened(Path(name)), train, load_config):
    for name in sys.argv[1:]:
        try:
            action(name)
        except TxError as failure:
            print(json.dumps([failure.exit_code, failure.message, failure.hint or ""]))
"""


@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root may read everything")
def test_a_folder_that_may_not_be_listed_or_entered_is_said_to_be_so(tmp_path):
    """As of a disk that fails, with its exit code; and a configuration in it was none."""
    for name, mode in (("unlisted", 0o111), ("barred", 0)):
        (tmp_path / name).mkdir()
        for file in ("a.de", "a.en", "a"):
            write(tmp_path / name / file, "a\n")
        (tmp_path / name).chmod(mode)
    done = subprocess.run(
        [*(AS_NOBODY if os.geteuid() == 0 else []), sys.executable, "-c", BARRED, "unlisted/b", "barred/a"],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    for name in ("unlisted", "barred"):
        (tmp_path / name).chmod(0o700)
    found = [json.loads(line) for line in done.stdout.split("\n")[:-1]]
    assert [code for code, _, _ in found] == [3] * 6 + [2] * 2, done.stderr
    missing, hidden = found[:6:2], [*found[1:6:2], found[7]]
    assert {(message.partition("/")[2].partition(" ")[2], hint) for _, message, hint in missing} == {
        ("does not exist", f"what {tmp_path / 'unlisted'} has may not be looked at")
    }
    assert all("Permission denied" in message and "you may not read it" in hint for _, message, hint in hidden)


def test_what_is_offered_for_a_missing_file_is_a_file_that_can_be_meant(tmp_path):
    """A circle of links was offered as its own correction, and somebody's `.xde` for `x.de`."""
    (tmp_path / "x.de").symlink_to("x.de")
    (tmp_path / "y.de").symlink_to("nowhere")
    (tmp_path / "z.de").mkdir()
    write(tmp_path / ".zz.de", "a\n")
    for name, message in (
        ("x.de", "cannot be read: Too many levels of symbolic links"),
        ("y.de", "y.de is a symbolic link to 'nowhere', which does not exist"),
        ("zz.de", "zz.de does not exist"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            read_lines(tmp_path / name)
        assert "did you mean" not in str(caught.value.hint)
    with pytest.raises(DataError) as caught:
        read_lines(tmp_path / ".z.de")
    assert caught.value.hint == f"did you mean {tmp_path / '.zz.de'}?"


@pytest.mark.parametrize("end", [b"", b"\nand more\n"])
def test_a_line_longer_than_any_book_is_refused_wherever_it_comes_from(tmp_path, monkeypatch, end):
    """300 MB of NULs in a small .gz ended in an abort of SentencePiece."""
    for module in ("lines", "stream"):
        monkeypatch.setattr(f"transformer_cli.data.{module}.LONGEST_LINE", 100)
    data = b"first\n" + b"\0" * 98 + "ä".encode()
    assert len(split_lines(data + end, "x").lines) in (2, 3)
    for text in (data + b"!" + end, data + b"\0" * 10**7 + end):
        for path in (write(tmp_path / "a.de", text), write(tmp_path / "a.de.gz", gzip.compress(text))):
            with pytest.raises(DataError, match="line 2 has more than 100 bytes"):
                read_lines(path)
        with pytest.raises(DataError, match="line 2 has more than 100 bytes"):
            split_lines(text, "x")


def test_a_missing_folder_is_reported_with_the_one_that_exists(tmp_path):
    with pytest.raises(DataError) as caught:
        read_lines(tmp_path / "no" / "such" / "train.de")
    assert caught.value.hint == f"the folder {tmp_path / 'no' / 'such'} does not exist; {tmp_path} does"


def test_a_folder_is_not_text(tmp_path):
    with pytest.raises(DataError, match="is not a file"):
        read_lines(tmp_path)


def test_one_file_may_be_both_sides(tmp_path):
    corpus = parallel(*[write(tmp_path / "corpus", "a\nb\n")] * 2)
    assert corpus.source == corpus.target == ["a", "b"]


def test_files_of_unequal_length_are_refused_with_both_counts(tmp_path):
    source = write(tmp_path / "corpus.de", "a\n" * 1200)
    target = write(tmp_path / "corpus.en", "b\n" * 1199)
    with pytest.raises(DataError) as caught:
        parallel(source, target)
    assert caught.value.message == (
        "corpus.de has 1,200 lines, corpus.en has 1,199: parallel files must match line by line.\n"
        f"  first file: {source}   second file: {target}"
    )
    assert (
        caught.value.hint == "nothing shows where: too little tells which of their lines are translations of each other"
    )


@pytest.mark.parametrize("character", [c for c in INSIDE.values() if c != "\r"])
def test_odd_characters_on_one_side_do_not_shift_the_other(tmp_path, character):
    corpus = load_training(write_pair(tmp_path, f"a{character}b\nc\n", "x\ny\n"))
    assert list(zip(corpus.source, corpus.target, strict=True)) == [(f"a{character}b", "x"), ("c", "y")]


# Splits


def test_a_prefix_names_both_files_by_language(tmp_path):
    write_pair(tmp_path, "hallo\n", "hello\n")
    forward = load_training(DataConfig(train=str(tmp_path / "train")))
    backward = load_training(DataConfig(train=str(tmp_path / "train"), source="en", target="de"))
    assert (forward.source, forward.target) == (["hallo"], ["hello"])
    assert (backward.source, backward.target) == (["hello"], ["hallo"])


def test_a_prefix_finds_compressed_files_too(tmp_path):
    write(tmp_path / "train.de.gz", gzip.compress(b"hallo\n"))
    write(tmp_path / "train.en", "hello\n")
    assert load_training(DataConfig(train=str(tmp_path / "train"))).source == ["hallo"]
    write(tmp_path / "train.de", "guten tag\n")
    assert load_training(DataConfig(train=str(tmp_path / "train"))).source == ["guten tag"]  # as the manual says


def test_a_prefix_that_is_the_file_itself_is_explained(tmp_path):
    write_pair(tmp_path, "hallo\n", "hello\n")
    with pytest.raises(DataError, match=r"train\.de\.de does not exist") as caught:
        load_training(DataConfig(train=str(tmp_path / "train.de")))
    assert "name it without its language" in caught.value.hint


def test_a_table_that_is_named_as_a_text_is_told_how_it_becomes_two_files(tmp_path):
    """It was to be named without its language, which it has not."""
    place = tmp_path / "my text.tsv"
    write(place, "hallo\thello\nhund\tdog\n")
    data = DataConfig(train=str(place))
    with pytest.raises(DataError, match=r"my text\.tsv\.de does not exist") as caught:
        load_training(data)
    hint = str(caught.value.hint)
    assert "two files of as many lines, one for each language: `cut -f1 " in hint
    assert hint.endswith(f"makes them, of a table without headings, then name {tmp_path}/my text")
    subprocess.run(hint.split("`")[1], shell=True, check=True)
    found = load_training(DataConfig(train=str(tmp_path / "my text")))
    assert (list(found.source), list(found.target)) == (["hallo", "hund"], ["hello", "dog"])
    write(tmp_path / "sheet.tsv", "hallo\thello\n")
    with pytest.raises(DataError, match=r"sheet\.de does not exist") as caught:
        load_training(DataConfig(train=str(tmp_path / "sheet")))
    assert "sheet.tsv is a file: parallel text is two files of as many lines" in str(caught.value.hint)
    write(tmp_path / "t.csv", "hallo,hello\n")
    with pytest.raises(DataError) as caught:
        load_training(DataConfig(train=str(tmp_path / "t.csv")))
    words = f"put what it has into {tmp_path}/t.de and {tmp_path}/t.en, by the program in docs/how-do-i.md, then name"
    assert words in str(caught.value.hint)


def test_one_language_for_both_sides_is_refused(tmp_path):
    write_pair(tmp_path, "hallo\n", "hello\n")
    with pytest.raises(ConfigError, match="would be both sides"):
        load_training(DataConfig(train=str(tmp_path / "train"), source="de", target="de"))


def test_explicit_files_may_have_any_name(tmp_path):
    files = ParallelFiles(source=str(write(tmp_path / "a", "1\n")), target=str(write(tmp_path / "b", "2\n")))
    corpus = load_training(DataConfig(train=files))
    assert (corpus.source, corpus.target) == (["1"], ["2"])


def test_pairs_may_stand_in_the_configuration():
    data = DataConfig(train=InlinePairs(pairs=[["ich mochte ein bier", "i want a beer"]]))
    assert load_training(data).target == ["i want a beer"]


@pytest.mark.parametrize(("text", "message"), [("a\nb", "line break"), ("\ud800", "character 1 is not text")])
def test_a_sentence_in_the_configuration_is_one_line_of_text(text, message):
    with pytest.raises(DataError, match=message) as caught:
        load_training(DataConfig(train=InlinePairs(pairs=[["a", "b"], [text, "c"]])))
    assert caught.value.message.startswith("data.train, pair 2: ")


def test_bytes_that_python_smuggled_into_a_string_are_not_text():
    with pytest.raises(DataError, match="bytes that are not UTF-8"):
        check_line(b"sch\xf6n".decode("utf-8", "surrogateescape"), place="the argument")


def test_training_leaves_out_pairs_with_an_empty_side_and_shifts_no_other(tmp_path):
    data = write_pair(tmp_path, "a\n\n \t\nd\n\u3000\nf\n", "1\n2\n\n\n5\n6\n")
    corpus = load_training(data)
    assert list(zip(corpus.source, corpus.target, strict=True)) == [("a", "1"), ("f", "6")]
    assert corpus.counts == {EMPTY_SOURCE: 2, EMPTY_BOTH: 1, EMPTY_TARGET: 1}


def test_training_text_with_nothing_on_both_sides_is_an_error(tmp_path):
    with pytest.raises(DataError, match="of 2 pairs, none has text on both sides"):
        load_training(write_pair(tmp_path, "a\n\n", "\nb\n"))
    with pytest.raises(DataError, match="it is empty"):
        load_training(write_pair(tmp_path, "", ""))


def test_validation_and_test_keep_every_pair(tmp_path):
    prefix = write_pair(tmp_path, "a\n\n \n", "\n2\n3\n").train
    data = DataConfig(train=prefix, valid=prefix, test=prefix)
    for corpus in (load_validation(data), *load_tests(data).values()):
        assert corpus.source == ["a", "", " "]
        assert corpus.target == ["", "2", "3"]


def test_what_was_touched_is_counted_over_both_files(tmp_path):
    corpus = load_training(write_pair(tmp_path, "\ufeffa\r\nb\n", "\ufeffc\r\nd\r\n"))
    assert corpus.counts == {BOM_REMOVED: 2, CR_STRIPPED: 3}


@pytest.fixture
def book():
    return drawn(n_pairs=1000)


@pytest.mark.parametrize(("source", "target"), [("de", "en"), ("en", "de")])
def test_the_phrasebook_is_the_corpus_of_a_configuration_without_files(book, source, target):
    data = DataConfig(source=source, target=target, phrasebook=PhrasebookConfig(n_pairs=1000))
    fields = {"de": "german", "en": "english"}
    corpora = {"train": load_training(data), "valid": load_validation(data)} | load_tests(data)
    expected = {"train": book.train, "valid": book.valid, "test": book.test, "combinations": book.test_combinations}
    assert {name: corpus.target for name, corpus in corpora.items()} == {
        name: [getattr(pair, fields[target]) for pair in pairs] for name, pairs in expected.items()
    }
    assert all(len(corpus.source) == len(corpus.target) for corpus in corpora.values())
    assert any(text != text.lower() for text in corpora["train"].source)


def test_the_phrasebook_can_validate_a_text_of_ones_own(book, tmp_path):
    data = DataConfig(
        train=write_pair(tmp_path, "a\n", "b\n").train, valid="phrasebook", phrasebook=PhrasebookConfig(n_pairs=1000)
    )
    assert load_validation(data).target == [pair.english for pair in book.valid]


def test_test_sets_have_names_and_one_may_be_the_phrasebooks(book, tmp_path):
    (tmp_path / "t.de").write_text("eins\n", "utf-8")
    (tmp_path / "t.en").write_text("one\n", "utf-8")
    named = {"2016": str(tmp_path / "t"), "own": InlinePairs(pairs=[["a", "b"]]), "book": "phrasebook"}
    tests = load_tests(DataConfig(test=named, phrasebook=PhrasebookConfig(n_pairs=1000)))
    assert list(tests) == ["2016", "own", "book", "book/combinations"]
    assert (tests["2016"].source, tests["own"].target) == (["eins"], ["b"])
    unnamed = load_tests(DataConfig(phrasebook=PhrasebookConfig(n_pairs=1000)))
    assert list(unnamed) == ["test", "combinations"]
    assert [tests["book"], tests["book/combinations"]] == list(unnamed.values())


def test_a_pair_of_a_named_test_set_that_is_no_line_is_named():
    with pytest.raises(DataError, match=r"data\.test\.own, pair 1"):
        load_tests(DataConfig(test={"own": InlinePairs(pairs=[["a", "b\nc"]])}))


def test_languages_that_the_phrasebook_does_not_know_are_refused():
    with pytest.raises(ConfigError, match="the phrasebook knows de and en, not fr and en"):
        load_training(DataConfig(source="fr"))


def test_files_without_validation_or_test_text_have_none(tmp_path):
    data = write_pair(tmp_path, "a\n", "b\n")
    assert load_validation(data) is None
    assert load_tests(data) == {}


def test_the_hash_of_a_corpus_is_that_of_its_pairs():
    hashes = {
        Corpus(source, target).sha256
        for source, target in [
            ([], []),
            ([""], [""]),
            (["a", "b"], ["c", "d"]),
            (["b", "a"], ["c", "d"]),
            (["c", "d"], ["a", "b"]),
            (["ab", ""], ["c", "d"]),
            (["a", "bc"], ["", "d"]),
        ]
    }
    assert len(hashes) == 7
    assert Corpus(["a"], ["b"], {"x": 1}).sha256 == Corpus(["a"], ["b"]).sha256
