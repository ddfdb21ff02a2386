"""The page of an evaluation as text: what it says without a script, what it lets a browser do."""

from __future__ import annotations

import html
import html.parser
import json
import re
import shutil
import unicodedata
from pathlib import Path

import pytest
from conftest import PAIRS
from evaluated import HOSTILE, judged, written
from sacrebleu.metrics.chrf import CHRF

from transformer_cli.cli import failures
from transformer_cli.cli.app import main
from transformer_cli.evaluation.page import PAGE


class Elements(html.parser.HTMLParser):
    """Start tags with their attributes, and the text in each kind of element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: dict[str, str] = {}
        self.open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open = tag if tag != "script" else str(dict(attributes)["type"])

    def handle_endtag(self, tag: str) -> None:
        self.open = ""

    def handle_data(self, data: str) -> None:
        self.texts[self.open] = self.texts.get(self.open, "") + data


def data(text: str) -> list[dict[str, object]]:
    return json.loads(Elements(text).texts["application/json"])


def test_nothing_in_the_file_refers_to_anything_outside_it() -> None:
    text = written(judged())
    assert re.findall(r"https?:[^\"']*", text) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"\b(?:src|srcset|action|data)\s*=|@import|url\(|fetch\(|XMLHttpRequest|import\(", text)
    assert set(re.findall(r'href="([^"]*)"', text)) <= {"#test-1", "#test-2"}
    assert "default-src 'none'; script-src 'sha256-" in text


def test_hostile_text_opens_and_closes_no_element_and_arrives_as_it_is() -> None:
    harmless = [f"text {n}" for n in range(len(HOSTILE))]
    bad, good = (written(judged(lines, lines[::-1], lines, name=lines[0])) for lines in (HOSTILE, harmless))
    assert Elements(bad).tags.count("script") == 2
    assert set(Elements(bad).tags) <= set(Elements(good).tags)
    assert Elements(bad).texts["module"] == Elements(good).texts["module"]
    [test] = data(bad)
    assert (test["source"], test["translation"]) == (HOSTILE, HOSTILE[::-1])


def test_controls_are_shown_and_leave_the_file_text() -> None:
    """For grep and mail programs, which take a NUL for a sign that it is none."""
    controls = [chr(n) for n in range(0xA0) if unicodedata.category(chr(n)) == "Cc" and chr(n) not in "\t\n"]
    line = "".join(controls)
    text = written(judged([line], [f"{line}x"], [line], name=f"a{line}"))
    assert not set(text) & set(controls)
    assert text.count("".join(f"U+{ord(control):04X}" for control in controls)) == 4  # its name, and all three sides
    [test] = data(text)
    assert test["source"] == [line]


def test_the_same_evaluation_gives_the_same_bytes() -> None:
    assert written(judged()) == written(judged())


def test_every_sentence_has_sacrebleus_chrf_and_every_part_its_lines() -> None:
    one = judged()
    [test] = data(written(one))
    pairs = zip(one.system.lines, one.text.references[0], strict=True)
    assert test["scores"] == [round(CHRF().sentence_score(line, [wanted]).score, 2) for line, wanted in pairs]
    assert test["parts"] == {
        "up to 10 words": [*range(12)],
        "with a number": [*range(12)],
        "other numbers": [2, 4],
        "empty translation": [4],
        "looped": [2],
        "unsure": [2, 5],
    }


def test_scores_signatures_parts_and_the_worst_are_there_without_a_script() -> None:
    one = judged()
    text = re.sub(r"<script.*?</script>", "", written(one), flags=re.DOTALL)
    for score in one.report.scores:
        assert f"<dt>{score.name}</dt><dd>{score.value:.2f} <small>&#177; {score.margin:.2f}</small></dd>" in text
        assert f"<dd>{html.escape(score.signature)}</dd>" in text
    assert '<th scope="row">unsure</th><td>2</td>' in text
    assert all(html.escape(sentence.translation) in text for sentence in one.report.worst)
    assert "beam_size: 5" in text


def test_the_histogram_counts_every_sentence_once() -> None:
    counts = [int(n) for n in re.findall(r"<title>chrF \d+ to \d+: (\d+) of 12 sentences", written(judged()))]
    assert sum(counts) == 12
    assert len(counts) > 1


def test_every_part_of_the_page_is_used() -> None:
    assert {path.name for path in PAGE.folder.iterdir()} == {f"{name}.js" for name in PAGE.scripts} | {
        *("page.html", "page.css")
    }


def test_the_command_writes_it_with_the_runs_step_and_configuration(
    here: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    sides = []
    for side, lines in enumerate(zip(*PAIRS, strict=True)):
        sides.append(tmp_path / f"side{side}")
        sides[-1].write_text("".join(f"{line}\n" for line in lines))
    arguments = ["evaluate", "--source", str(sides[0]), "--reference", str(sides[1]), "-b", "3", "-o", str(page)]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert "BLEU" in printed.out
    assert f"wrote {page}" in printed.err
    text = page.read_text(encoding="utf-8")
    assert re.search(r'<p id="about">tiny · step \d+ · de to en · beam 3, length penalty 1</p>', text)
    assert "validate_every: 50" in text
    [test] = data(text)
    assert test["source"] == [source for source, _ in PAIRS]
    assert test["languages"] == ["de", "en"]


@pytest.mark.parametrize("wanted", [[], ["--to", "de"]])
def test_each_test_set_is_in_the_languages_of_its_direction(two_ways: Path, tmp_path: Path, wanted: list[str]) -> None:
    run, page = shutil.copytree(two_ways, tmp_path / "tiny"), tmp_path / "report.html"
    assert main(["evaluate", "-m", str(run), *wanted, "--worst", "0", "-o", str(page), "-q"]) == 0
    text = page.read_text(encoding="utf-8")
    names = re.findall(r'<h2 id="name-\d" dir="auto">\w+/(\w+)-(\w+) ', text)
    assert len(names) == (2 if wanted else 4)
    assert [test["languages"] for test in data(text)] == [[*name] for name in names]
    assert re.search(r'<p id="about">tiny · step \d+ · de to en, en to de · beam', text)


@pytest.mark.parametrize(("to", "languages"), [("de", ["en", "de"]), ("en", ["de", "en"])])
def test_files_are_in_the_languages_of_the_direction_that_is_asked_for(
    two_ways: Path, tmp_path: Path, to: str, languages: list[str]
) -> None:
    for side, lines in zip(("de", "en"), zip(*PAIRS, strict=True), strict=True):
        (tmp_path / side).write_text("".join(f"{line}\n" for line in lines))
    files = ["--source", str(tmp_path / languages[0]), "--reference", str(tmp_path / languages[1])]
    page = tmp_path / "report.html"
    assert main(["evaluate", "-m", str(two_ways), *files, "--to", to, "-o", str(page), "-q"]) == 0
    assert [test["languages"] for test in data(page.read_text(encoding="utf-8"))] == [languages]


def test_several_translations_stand_in_one_page_with_their_differences(tmp_path: Path) -> None:
    one = judged()
    files = {}
    for name, lines in {"a": one.system.lines, "b": one.text.references[0], "r": one.text.references[0]}.items():
        files[name] = str(tmp_path / name)
        Path(files[name]).write_text("".join(f"{line}\n" for line in lines))
    page = tmp_path / "both.html"
    hypotheses = ["--hypotheses", files["a"], "--hypotheses", files["b"]]
    assert main(["evaluate", *hypotheses, "--reference", files["r"], "-o", str(page), "-q"]) == 0
    text = page.read_text(encoding="utf-8")
    assert len(data(text)) == 2
    assert text.count("from the baseline, p ") == 4


@pytest.mark.parametrize(
    ("name", "message"),
    [("report.pdf", "expected a name that ends in .html"), ("r.html", "is read and would be replaced")],
)
def test_where_it_cannot_go_is_said_before_anything_is_scored(tmp_path, capsys, monkeypatch, name, message) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.html").write_text("a b c d\n")
    arguments = ["evaluate", "--hypotheses", "r.html", "--reference", "r.html", "-o", name]
    assert failures.exit_code(lambda: main(arguments)) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""
