"""What a run says while it goes on."""

from __future__ import annotations

import errno
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from transformer_cli import files
from transformer_cli.checkpoints.events import read_events, validation_scores
from transformer_cli.config.training import TrainingConfig
from transformer_cli.errors import ResourceError
from transformer_cli.training import reporting
from transformer_cli.training.clock import Clock, Horizon
from transformer_cli.training.listening import Listener, Status
from transformer_cli.training.progress import Progress
from transformer_cli.training.reporting import FIRST_S, SILENCE_S, Reporter, cut, forget_after, shown_sample
from transformer_cli.training.schedules import Spent
from transformer_cli.training.update import Update
from transformer_cli.training.utilisation import Utilisation
from transformer_cli.writing import width

UPDATE = Update(loss=2.0, learning_rate=1e-3, gradient_norm=1.0, source_tokens=4, target_tokens=6, spent=Spent())


class Run:
    """Updates that take a known time each, of 1,000 in all, and what is said of them."""

    def __init__(self, folder: Path | None = None, *, looks: bool = False, step: int = 0, **training: Any) -> None:
        options = {"max_steps": 1000, "log_every": 50, "validate_every": 1000, "validation_bleu": False}
        self.now = 0.0
        self.said: list[str] = []
        self.praised: list[str] = []
        self.shown: list[Status] = []
        self.progress = Progress(step=step)
        self.reporter = Reporter(
            folder,
            Listener(
                say=self.said.append, praise=self.praised.append, show=self.shown.append if looks else None, columns=60
            ),
            horizon=Horizon(TrainingConfig.model_validate({**options, **training}), 2000, 12_000, 0),
            progress=self.progress,
            clock=Clock(lambda: self.now),
            utilisation=Utilisation(flops_per_token=100.0, peak=3000.0),
        )

    def update(self, n: int, *, seconds: float) -> None:
        for _ in range(n):
            self.now += seconds
            self.progress.step += 1
            self.progress.batch += 1
            self.progress.epoch_tokens += UPDATE.target_tokens
            self.reporter.update(self.progress, UPDATE)

    def validate(self, bleu: float, *, seconds: float, is_best: bool = True, **results: Any) -> None:
        self.now += seconds
        found = {"loss": 1.0, "perplexity": 2.7, "bleu": bleu, **results}
        self.reporter.validation(self.progress, found, is_best=is_best)

    @property
    def steps(self) -> list[int]:
        """Of the lines of progress."""
        return [int(line.split()[1].replace(",", "")) for line in self.said if line.startswith("step")]


def test_a_line_comes_every_so_many_updates() -> None:
    run = Run()
    run.update(100, seconds=0.5)
    _, _, first, second = run.said
    assert first.split()[:2] == ["step", "50"]
    assert "20 tokens/s  MFU 40%  0:25 passed, about 7:55 left" in first
    assert "0:50 passed, about 7:30 left" in second


def test_the_first_loss_and_what_ends_the_run_come_at_once_whatever_log_every_is() -> None:
    """There was nothing until the update `log_every`, minutes later."""
    run = Run(log_every=1000, max_steps=4000)
    run.update(60, seconds=FIRST_S / 8)
    assert run.said[0] == "this takes about 17 min: training ends at step 4,000 (max_steps)"
    assert run.said[1].startswith("step      8 ")
    assert len(run.said) == 2


def test_a_slow_run_shows_its_first_loss_before_its_pace_is_known() -> None:
    run = Run(max_steps=10_000)
    run.update(6, seconds=9.0)
    assert run.said[0].endswith("0:09 passed")
    assert run.said[1] == "this takes about 25 h: training ends at step 10,000 (max_steps)"


def test_the_loss_of_the_first_batch_is_told_before_its_update() -> None:
    run = Run()
    run.reporter.first(9.0123)
    assert run.said == ["loss of the first batch: 9.012"]


def test_a_slow_run_is_not_silent() -> None:
    run = Run()
    run.update(100, seconds=SILENCE_S / 20)
    assert run.steps == [1, 25, 45, 50, 70, 90, 100]


def test_validations_and_checkpoints_do_not_slow_the_rate_down() -> None:
    run = Run(validate_every=50)
    run.update(50, seconds=0.5)
    run.validate(20.0, seconds=400.0)
    run.reporter.clock.lap("checkpoint")
    run.update(50, seconds=0.5)
    last = run.said[-1]
    assert "20 tokens/s  MFU 40%  7:30 passed" in last
    assert f"about {(19 * 400 + 450) // 3600}:14:10 left" in last  # 18 validations, and that of this update


def test_who_looks_at_a_terminal_has_the_status_of_every_update_and_no_periodic_lines() -> None:
    run = Run(looks=True)
    run.update(50, seconds=1.0)
    run.validate(20.0, seconds=5.0)
    run.update(50, seconds=1.0)
    assert run.steps == []
    assert [one.step for one in run.shown] == list(range(1, 101))
    assert run.shown[-1].scores == (20.0,)
    assert str(run.shown[-1].left) == "about 15:05 left"  # the last validation included
    assert run.shown[-1].passed_s == 105.0
    assert [line.split("BLEU")[1].strip() for line in run.praised] == ["20.00  best so far  (0:05)"]


def test_a_run_that_continues_knows_its_earlier_scores(tmp_path: Path) -> None:
    before = Run(tmp_path)
    before.update(50, seconds=1.0)
    before.validate(20.0, seconds=5.0)
    before.update(50, seconds=1.0)
    before.validate(30.0, seconds=5.0)
    after = Run(tmp_path, looks=True, step=50)
    after.update(1, seconds=1.0)
    assert after.shown[0].scores == (20.0,)


def test_a_score_that_is_no_number_is_neither_praised_nor_drawn(tmp_path: Path) -> None:
    """The first one was the best so far, and a picture of it an error."""
    run = Run(tmp_path, looks=True, best_by="loss")
    run.validate(0.0, seconds=1.0, loss=math.nan)
    assert "best so far" not in run.praised[0]
    run.validate(20.0, seconds=1.0)
    run.update(1, seconds=1.0)
    assert run.shown[0].scores == (1.0,)
    with (tmp_path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"event": "validation", "step": 3, "loss": NaN}\n')
    assert validation_scores(read_events(tmp_path), "loss") == (1.0,)


def test_an_infinite_perplexity_is_null_in_the_metrics(tmp_path: Path) -> None:
    """It was written as `Infinity`, which is no JSON."""
    run = Run(tmp_path)
    run.validate(0.0, seconds=1.0, loss=800.0, perplexity=math.inf)
    text = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")
    assert '"loss": 800.0, "perplexity": null' in text


def test_samples_are_cut_at_words_where_they_are_shown_and_whole_in_the_metrics(tmp_path: Path) -> None:
    sample = {
        "source": "wo ist denn bloß jenes andere so gut wie neue haus geblieben",
        "reference": "x",
        "translation": "where " + "the " * 20,
    }
    run = Run(tmp_path)
    run.validate(1.0, seconds=1.0, samples=[sample])
    [line] = run.said
    assert len(line) <= 60
    assert line.startswith("    wo ist denn bloß…  ->  where the the")
    assert line.endswith("the…  (looped)")
    [event] = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").strip().split("\n")
    assert json.loads(event)["samples"] == [sample]


def test_a_text_is_cut_only_where_it_is_too_long_and_never_longer_than_asked_for() -> None:
    words = "one two three"
    assert [cut(words, n) for n in (13, 12, 8, 4, 2)] == ["one two three", "one two…", "one two…", "one…", "o…"]
    long = "the old man and the sea are both here today, it seems"
    assert shown_sample("a", long, len(long) + 7) == f"a  ->  {long}"
    wide = "\u732b\u5728\u55dd\u6c34" * 20  # each takes two columns
    assert [cut(wide, n) for n in (160, 159, 8, 3)] == [wide, wide[:79] + "…", wide[:3] + "…", wide[:1] + "…"]
    assert width(shown_sample(wide, wide, 76)) <= 76


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ("a.de, line 3", "a.de, line 3"),
        ("pairs 1, 2, 3, 4, 55", None),  # just short enough
        ("pairs 1, 2, 3, 4, 555", "pairs 1, 2, 3, 4"),
        ("pairs 10, 100, 1,000, 1,001", "pairs 10, 100, 1,000"),
        ("a, line 1; a, line 2; a, line 3", "a, line 1; a, line 2"),
        ("a.de, line 3; bcd.de, line 4", "a.de, line 3"),
        ("/a/long/1,2/path.de, line 4", None),  # the only one is named, however long its name is
        ("/a/long/1,2/path.de, lines 4, 5", "/a/long/1,2/path.de, lines 4"),
    ],
)
def test_the_lines_of_an_update_that_was_not_made_are_cut_behind_a_whole_one(
    lines: str, named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One alone in a folder of a long name lost its number, and the last file that was named had none."""
    monkeypatch.setattr(reporting, "LONGEST_LIST", 20)
    words = Run().reporter.skipped(Progress(skipped=1), replace(UPDATE, fault="the loss"), lines)
    cut_to = lines if named in (None, lines) else f"{named}, ...: metrics.jsonl has all"
    assert words.endswith(f"was not made (1 in a row; {cut_to})")


def test_events_that_may_not_be_added_to_are_known_before_the_first_update(tmp_path, monkeypatch) -> None:
    """Somebody else's run, in a folder for all: it was known after the updates of the first line of progress."""

    def refuse(disk: object, path: Path, data: bytes) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    (path := tmp_path / "metrics.jsonl").write_text('{"event": "update", "step": 1}\n', encoding="utf-8")
    before = path.read_bytes()
    forget_after(path, Progress(step=1), warn=pytest.fail)
    monkeypatch.setattr(files.Disk, "append", refuse)
    with pytest.raises(ResourceError, match=f"cannot write {path}: Permission denied"):
        forget_after(path, Progress(step=1), warn=pytest.fail)
    assert path.read_bytes() == before
