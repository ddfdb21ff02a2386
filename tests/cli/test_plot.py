"""`tx plot`: the curves of runs."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from transformer_cli.cli import failures
from transformer_cli.cli.app import main
from transformer_cli.config.source import dump_config, load_config
from transformer_cli.training.curves import added

EVENTS = [
    {"event": "update", "step": 10, "loss": 4.0, "learning_rate": 0.1, "tokens_per_s": 100.0, "elapsed_s": 60.0},
    {"event": "validation", "step": 15, "loss": 3.0, "bleu": 5.0},
    {"event": "update", "step": 20, "loss": 2.0, "learning_rate": 0.05, "tokens_per_s": 50.0, "elapsed_s": 180.0},
    {"event": "validation", "step": 20, "loss": 2.5, "bleu": 7.5},
]


def tx(*arguments: str) -> int:
    return failures.exit_code(lambda: main(["plot", *arguments]))


@pytest.fixture
def run() -> None:
    """What is left of a run while its next event is being written."""
    Path("runs/a&b/checkpoints").mkdir(parents=True)
    lines = [json.dumps(event) for event in EVENTS]
    Path("runs/a&b/metrics.jsonl").write_text("\n".join([*lines, '{"event": "upd']))


@pytest.mark.parametrize(
    ("over", "updates", "validations"),
    [
        ("steps", [10, 20], [15, 20]),
        ("minutes", [1, 3], [2, 3]),
        ("tokens", [6000, 12_000], [9000, 12_000]),
    ],
)
def test_points_are_those_that_were_measured(
    run: None, over: str, updates: list[float], validations: list[float], capfd: pytest.CaptureFixture[str]
) -> None:
    assert tx("runs/a&b", "--over", over, "--json") == 0
    found = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert {one["curve"]: (one["x"], one["y"]) for one in found} == {
        "loss": (updates, [4, 2]),
        "validation loss": (validations, [3, 2.5]),
        "BLEU": (validations, [5, 7.5]),
        "learning rate": (updates, [0.1, 0.05]),
    }


def test_figures_have_the_same_bytes_each_time_and_a_page_asks_for_nothing(run: None) -> None:
    names = ["x.png", "x.svg", "x.html"]
    outputs = [option for name in names for option in ("-o", name)]
    assert tx("runs/a&b", "runs/a&b", *outputs) == 0
    first = [Path(name).read_bytes() for name in names]
    assert tx("runs/a&b", "runs/a&b", *outputs) == 0
    assert [Path(name).read_bytes() for name in names] == first
    assert first[0].startswith(b"\x89PNG")
    assert ElementTree.fromstring(first[1]).tag.endswith("svg")
    page = first[2].decode()
    assert "<h1>runs/a&amp;b, runs/a&amp;b</h1>" in page
    assert "<script" not in page
    assert set(re.findall(r'(?:src|href)="(.)', page)) <= {"#"}


def test_half_a_minute_is_half_a_minute(run: None) -> None:
    early = [event | {"elapsed_s": event["elapsed_s"] / 10} if "elapsed_s" in event else event for event in EVENTS]
    Path("runs/a&b/metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in early))
    assert tx("runs/a&b", "--over", "minutes", "-o", "x.svg") == 0
    labels = re.findall(r"<!-- ([\d.]+[a-z]?) -->", Path("x.svg").read_text())
    assert "0.2" in {label[:3] for label in labels}
    assert not any(label.endswith("m") for label in labels)


def test_a_terminal_has_a_small_curve_of_each(run: None, capfd: pytest.CaptureFixture[str]) -> None:
    assert tx("runs/a&b") == 0
    rows = [line.split() for line in capfd.readouterr().out.splitlines()[2:]]
    assert rows[0] == ["runs/a&b", "loss", "█▁", "4", "2"]
    assert rows[2] == ["runs/a&b", "BLEU", "▁█", "5", "7.5"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("-o", "x.gif"), 2, "expected a name that ends in .png, .svg, .html"),
        (("--over", "hours"), 2, "expected steps, tokens, minutes"),
        (("-o", "runs/a&b/metrics.jsonl"), 2, "expected a name"),
        (("runs/torn",), 4, "runs/torn/metrics.jsonl, line 1 is an update without its time or rate: it is damaged"),
    ],
)
def test_what_cannot_be_drawn_is_said(
    run: None, arguments: tuple[str, ...], code: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("runs/torn/checkpoints").mkdir(parents=True)
    Path("runs/torn/metrics.jsonl").write_text('{"event":"update","step":1,"loss":2.5,"tokens_per_s":3.0}\n')
    assert tx("runs/a&b", *arguments) == code
    assert said in capfd.readouterr().err


@pytest.mark.parametrize("spoil", ["x", "\0", "[1]", '{"step": -1}', '{"step": 1000000000000000000}', "9" * 9999])
def test_a_line_that_is_no_event_is_named(run: None, spoil: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Of a file that has nothing else it was said that there is no update yet, of another nothing."""
    path = Path("runs/a&b/metrics.jsonl")
    whole = path.read_text()
    path.write_text(f"\n{spoil}\n{whole}")
    assert tx("runs/a&b", "--json") == 0
    assert "runs/a&b/metrics.jsonl, line 2 is no event: it is damaged" in capfd.readouterr().err
    path.write_text(f"\n{spoil}\n{spoil}\n")
    assert tx("runs/a&b") == 4
    assert "metrics.jsonl, line 2 is no event, nor is 1 line more: it is damaged" in capfd.readouterr().err


@pytest.mark.parametrize("key", ["step", "loss", "learning_rate", "tokens_per_s", "elapsed_s"])
@pytest.mark.parametrize("value", ["NaN", "1e999", "9" * 400, "true", "null", "-1", "1e300", "[]"])
def test_no_number_in_it_is_too_strange_to_be_drawn_or_refused(
    run: None, key: str, value: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Infinity on the terminal, and a step of 400 digits, were "a bug in tx"."""
    path = Path("runs/a&b/metrics.jsonl")
    path.write_text(re.sub(rf'("{key}": )[0-9.]+', rf"\g<1>{value}", path.read_text(), count=1))
    assert {tx("runs/a&b", "--over", over) for over in ("steps", "tokens", "minutes")} <= {0, 4}


def test_a_run_whose_measurements_are_gone_is_not_one_that_has_none_yet(
    run: None, capfd: pytest.CaptureFixture[str]
) -> None:
    """It was to have its first after some updates, though it was finished."""
    Path("runs/a&b/checkpoints/step-00000001").mkdir(parents=True, exist_ok=True)
    Path("runs/a&b/checkpoints/step-00000001/manifest.json").touch()
    Path("runs/a&b/metrics.jsonl").unlink()
    assert tx("runs/a&b") == 4
    said = capfd.readouterr().err
    assert "runs/a&b/metrics.jsonl does not exist, and the curves were in it\n  hint: " in said
    assert "training.log_every" not in said


def test_a_run_without_curves_is_left_out_of_several_and_said(run: None, capfd: pytest.CaptureFixture[str]) -> None:
    """An average among the runs refused them all."""
    for name, record in (("mean", {"average": []}), ("theirs", {"imported": {}}), ("empty", {})):
        Path(f"runs/{name}/checkpoints").mkdir(parents=True)
        Path(f"runs/{name}/run.json").write_text(json.dumps(record))
    assert tx("runs/mean", "runs/a&b", "runs/theirs", "runs/empty", "--json", "-o", "x.svg") == 0
    out, err = capfd.readouterr()
    assert {json.loads(line)["run"] for line in out.splitlines()} == {"runs/a&b"}
    assert "left out: runs/mean is a mean of checkpoints, which has no curves" in err
    assert "left out: runs/theirs was imported" in err
    assert "left out: runs/empty/metrics.jsonl has no update" in err
    assert "runs/mean" not in Path("x.svg").read_text()
    assert tx("runs/mean", "runs/theirs") == 4
    assert "runs/mean is a mean of checkpoints, which has no curves" in capfd.readouterr().err
    assert tx("runs/empty") == 4
    assert "runs/empty/metrics.jsonl has no update" in capfd.readouterr().err


def test_validations_are_where_they_were_made_though_no_update_is_logged_after_them(
    run: None, capfd: pytest.CaptureFixture[str]
) -> None:
    """They were drawn at the last logged update, one above the other, and refused before the first of these."""
    late = [*EVENTS, {"event": "validation", "step": 27, "loss": 2.0, "bleu": 9.0}]
    Path("runs/a&b/metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in late))
    for over, expected in (("steps", [15, 20, 27]), ("minutes", [2, 3])):
        assert tx("runs/a&b", "--over", over, "--json") == 0
        out, err = capfd.readouterr()
        assert {one["curve"]: one["x"] for one in map(json.loads, out.splitlines())}["BLEU"] == expected
        assert ("1 validation after the last logged update left out" in err) == (over == "minutes")
    validations = [event for event in late if event["event"] == "validation"]
    Path("runs/a&b/metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in validations))
    assert tx("runs/a&b", "--json") == 0
    out, err = capfd.readouterr()
    assert [one["x"] for one in map(json.loads, out.splitlines())] == [[15, 20, 27]] * 2
    assert "runs/a&b: no point of loss and learning rate" in err
    assert tx("runs/a&b", "--over", "tokens") == 4
    assert "nobody knows after how many tokens its validations came" in capfd.readouterr().err


def test_updates_that_were_not_made_are_counted_beside_the_curves(run: None, capfd: pytest.CaptureFixture[str]) -> None:
    def skipped(step: int) -> dict[str, Any]:
        return {"event": "skipped", "step": step, "fault": "the loss", "in_a_row": 1, "lines": "train.de, line 3"}

    for faults, words in (([7], "1 update was"), ([7, 12, 12], "3 updates were")):
        events = sorted([*EVENTS, *map(skipped, faults)], key=lambda event: event["step"])
        Path("runs/a&b/metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        assert tx("runs/a&b", "--json") == 0
        assert f"{words} not made: runs/a&b/metrics.jsonl has each as `skipped`" in capfd.readouterr().err
    Path("runs/a&b/metrics.jsonl").write_text(json.dumps(skipped(1)) + "\n")
    assert tx("runs/a&b") == 4
    said = capfd.readouterr().err
    assert "runs/a&b/metrics.jsonl has no update: there is nothing to draw" in said
    assert "hint: 1 update was not made: runs/a&b/metrics.jsonl has each as `skipped`" in said


def test_a_curve_of_one_point_is_seen_and_said(run: None, capfd: pytest.CaptureFixture[str]) -> None:
    """A run of fewer updates than training.log_every has one of the loss: a line without a length."""
    Path("runs/a&b/metrics.jsonl").write_text(json.dumps(EVENTS[0]) + "\n")
    assert tx("runs/a&b", "-o", "x.png") == 0
    said = "one point of loss and learning rate: there is one every training.log_every updates, and at the end"
    assert said in capfd.readouterr().err.replace("\n", " ")
    from matplotlib.image import imread

    picture = imread("x.png")
    below = picture[len(picture) // 2 :]  # the learning rate, without a legend
    assert (below[..., 2] > below[..., 0] + 0.3).any()


def test_without_matplotlib_there_are_curves_on_the_terminal_alone(
    run: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert tx("runs/a&b") == 0
    assert tx("runs/a&b", "-o", "x.svg") == 5
    said = capfd.readouterr().err
    assert "a library cannot be loaded: import of matplotlib halted" in said
    assert "it has to be installed anew" in said
    assert not Path("x.svg").exists()


def test_why_the_losses_are_apart_is_said_and_drawn(trained_run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Training's was above validation's, and nobody said why."""
    assert tx(str(trained_run)) == 0
    note = "the training loss includes label smoothing 0.1; the validation loss does not"
    assert capfd.readouterr().err == f"{note}\n"
    assert tx(str(trained_run), "-o", "x.svg") == 0
    assert f"<!-- {note} -->" in Path("x.svg").read_text()
    shutil.copytree(trained_run, "other")
    changed = load_config("other/config.yaml", ["model.dropout=0.2"])
    Path("other/config.yaml").write_text(dump_config(changed))
    assert tx(str(trained_run), "other") == 0
    both = f"label smoothing 0.1 ({trained_run}); label smoothing 0.1 and dropout 0.2 (other)"
    assert f"the training loss includes {both}; the validation loss does not\n" in capfd.readouterr().err
    shutil.copytree("other", "another")
    assert tx("other", str(trained_run), "another") == 0
    all_three = f"label smoothing 0.1 and dropout 0.2 (other, another); label smoothing 0.1 ({trained_run})"
    assert f"the training loss includes {all_three}; the validation loss does not\n" in capfd.readouterr().err


def test_nothing_is_said_of_losses_that_can_be_compared(run: None) -> None:
    assert added(Path("runs/a&b")) == ""  # it has no configuration
    for settings, expected in (
        (["model.dropout=0.2"], "label smoothing 0.1 and dropout 0.2"),
        (["training.label_smoothing=0"], "dropout 0.1"),
        (["training.label_smoothing=0", "model.dropout=0"], ""),
        (
            ["training.r_drop=5", "tokenizer.sampling=0.2"],
            "label smoothing 0.1, dropout 0.1, drawn subwords 0.2 and R-Drop 5",
        ),
    ):
        Path("runs/a&b/config.yaml").write_text(dump_config(load_config("tiny.yaml", settings)))
        assert added(Path("runs/a&b")) == expected


def test_nothing_of_a_picture_is_cut_however_much_stands_above_it(run: None) -> None:
    from matplotlib.image import imread

    for number in range(4):
        shutil.copytree("runs/a&b", f"runs/{number}")
        settings = [f"model.dropout=0.{number}", "model.activation_dropout=0.2"]
        Path(f"runs/{number}/config.yaml").write_text(dump_config(load_config("tiny.yaml", settings)))
    assert tx(*(f"runs/{number}" for number in range(4)), "--over", "tokens", "-o", "x.png") == 0
    picture = imread("x.png")
    for edge in (picture[0], picture[-1], picture[:, 0], picture[:, -1]):
        assert (edge == 1).all()


def test_where_no_run_is_named_and_there_is_none_the_hint_has_no_option(capfd: pytest.CaptureFixture[str]) -> None:
    assert tx() == 4
    err = capfd.readouterr().err
    assert "name one that lies elsewhere: FOLDER/runs/NAME" in err


def test_letters_that_no_font_has_are_named_once_and_not_by_matplotlib(
    run: None, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    Path("runs/a&b").rename("runs/\U00012f90")  # Cypro-Minoan, of Unicode 14
    assert tx("runs/\U00012f90", "-o", "x.png", "-o", "x.svg") == 0
    [said] = [line for line in capfd.readouterr().err.splitlines() if "font" in line]
    assert said.startswith("warning: no installed font has \U00012f90 (U+12F90); install ")
    assert not [one for one in recwarn if "Glyph" in str(one.message)]


def test_names_are_no_wider_than_the_figure(run: None, capfd: pytest.CaptureFixture[str]) -> None:
    """The legend hid the curves of all panels' width, and matplotlib warned of it in its own words."""
    name = "runs/" + "-".join(["warm"] * 40)
    Path("runs/a&b").rename(name)
    assert tx(name, "-o", "x.svg") == 0
    assert "Warning" not in capfd.readouterr().err
    drawn = Path("x.svg").read_text(encoding="utf-8")
    frame = re.search(r'id="legend_1".*?<path d="([^"]*)"', drawn, re.DOTALL)[1]  # type: ignore[index]
    assert min(float(x) for x in re.findall(r"[ML] (-?[0-9.]+) ", frame)) > 0
    assert "".join(re.findall("<!-- (.*warm.*) -->", drawn)).startswith(name)


@pytest.mark.parametrize("n_runs", [2, 5, 30])
def test_a_legend_hides_no_curve_however_many_runs_there_are(run: None, n_runs: int) -> None:
    """Of twelve it covered the loss and what stands above it."""
    for number in range(n_runs - 1):
        shutil.copytree("runs/a&b", f"runs/{number}")
    names = sorted(str(path) for path in Path("runs").iterdir())
    assert tx(*names, "-o", "x.svg") == 0
    drawn = Path("x.svg").read_text(encoding="utf-8")
    whole = float(re.search(r'viewBox="0 0 [0-9.]+ ([0-9.]+)"', drawn)[1])  # type: ignore[index]
    frames = {}
    for name in ("axes_1", "axes_2", "legend_1"):
        path = re.search(rf'id="{name}".*?<path d="([^"]*)"', drawn, re.DOTALL)[1]  # type: ignore[index]
        heights = [float(y) for y in re.findall(r"[ML] [0-9.]+ ([0-9.]+)", path)]
        frames[name] = min(heights), max(heights)
    above, below = frames["legend_1"]
    assert 0 <= above < below <= whole
    if n_runs == 2:
        assert frames["axes_1"][0] < above < below < frames["axes_1"][1]
    else:
        assert above > frames["axes_2"][1]
    assert 100 < frames["axes_1"][1] - frames["axes_1"][0] < 187


def test_the_legend_names_a_run_whose_name_begins_with_an_underscore(
    run: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """matplotlib leaves such out, and warned of it in its own words."""
    monkeypatch.chdir("runs")
    Path("a&b").rename("_a")
    shutil.copytree("_a", "b")
    assert tx("_a", "b", "-o", "c.svg") == 0
    assert "Warning" not in capfd.readouterr().err
    drawn = Path("c.svg").read_text(encoding="utf-8")
    assert all(f"<!-- {name} -->" in drawn for name in ("./_a", "./_a, validation", "b"))
