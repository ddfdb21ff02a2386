"""What changes in its place on a terminal, and what a pipe gets instead."""

from __future__ import annotations

import errno
import io
import os
import pty
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import PAIRS
from rich.console import Console

from transformer_cli.cli import live
from transformer_cli.training.clock import Left
from transformer_cli.training.listening import Status

STATUS = Status(
    step=412,
    last_step=1200,
    done=0.25,
    epoch=2,
    loss=2.1344,
    learning_rate=0.00215,
    tokens_per_s=24310.4,
    mfu=0.412,
    passed_s=21.0,
    left=Left(41.0),
    score_name="BLEU",
    scores=(1.0, 40.0, 83.5),
)


def picture_of(status: Status) -> live.Picture:
    """At the moment at which that is told."""
    picture = live.Picture(now=lambda: 65.0)
    picture.show(status)
    return picture


def drawn(picture: live.Picture, *, columns: int = 80, colour: bool = False) -> list[str]:
    """The lines of the picture on a terminal of so many columns."""
    file = io.StringIO()
    output = Console(file=file, width=columns, force_terminal=colour, color_system="standard" if colour else None)
    output.print(picture)
    return file.getvalue().removesuffix("\n").split("\n")


def test_the_status_tells_loss_rates_time_and_scores_at_a_glance() -> None:
    steps, numbers, times, scores = drawn(picture_of(STATUS))
    assert steps.endswith("step 412 of 1,200  epoch 2")
    assert steps.count("━") == int(412 / 1200 * (steps.count("━") + steps.count("┄")))
    assert numbers == "loss 2.134  learning rate 0.0022  24,310 tokens/s  MFU 41%"
    assert times == "0:21 passed, about 0:41 left"
    assert scores == "BLEU ▁▄█ 83.50, the best so far"


def test_the_status_tells_how_much_of_a_budget_is_spent() -> None:
    (steps, *_) = drawn(picture_of(replace(STATUS, last_step=None)))
    assert steps.endswith("step 412, 25% of the budget  epoch 2")
    assert steps.count("━") == int(0.25 * (steps.count("━") + steps.count("┄")))


def test_the_clock_goes_on_during_validation() -> None:
    picture = picture_of(STATUS)
    picture.now = lambda: 65.0 + 12.0
    assert drawn(picture)[2] == "0:33 passed, about 0:29 left"


def test_a_picture_of_nothing_says_that_something_is_at_work() -> None:
    picture = live.Picture(now=lambda: 65.0, started=60.0)
    assert drawn(picture) == ["◐ working  0:05"]


@pytest.mark.parametrize("columns", [30, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    task = live.Task("validation: translating", 1000, started=0.0, done=340)
    picture = live.Picture(STATUS, [task], is_stopping=True, now=lambda: 65.0, told=65.0)
    lines = drawn(picture, columns=columns)
    assert len(lines) == (5 if columns == 200 else 6)
    assert max(map(len, lines)) <= columns


def test_a_best_score_has_a_colour_and_no_colour_is_unreadable_on_light_or_dark() -> None:
    task = live.Task("validation: loss", 10, started=0.0, done=4)
    text = "\n".join(drawn(live.Picture(STATUS, [task], is_stopping=True), colour=True))
    assert "\x1b[1;32m, the best so far" in text
    foregrounds = {code for codes in text.split("\x1b[")[1:] for code in codes.split("m")[0].split(";")}
    assert foregrounds <= {"0", "1", "2", "32", "35", "36"}


def test_a_stage_shows_how_much_is_done_or_at_least_for_how_long_it_goes_on() -> None:
    counted = live.Picture(tasks=[live.Task("encoding", 40_000, started=0.0, done=10_000)], now=lambda: 5.0)
    [line] = drawn(counted)
    assert line.startswith("encoding  ━━━━━━━┄┄")
    assert line.endswith("10,000/40,000  0:05")
    [line] = drawn(live.Picture(tasks=[live.Task("training the tokenizer", None, started=0.0)], now=lambda: 62.0))
    assert line.endswith(" training the tokenizer  1:02")


def test_of_scores_the_lowest_and_the_highest_can_be_told() -> None:
    assert live.sparkline([1.0, 8.0, 4.0]) == "▁█▄"
    assert live.sparkline([3.0, 3.0]) == "▅▅"


def test_a_pipe_gets_a_line_where_nobody_knows_how_long_it_takes_and_one_whenever_it_was_silent(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with live.plain_stage("training the tokenizer on 8 lines"):
        pass
    with live.plain_stage("validation: translating", 1000) as advance:
        for _ in range(10):
            now[0] += live.SILENCE_S / 4
            advance(100)
    assert capfd.readouterr().err.split("\n")[:-1] == [
        "training the tokenizer on 8 lines ...",
        "  validation: translating: 400 of 1,000",
        "  validation: translating: 800 of 1,000",
    ]


def on_a_terminal(command: list[str], *, columns: int = 80, **environment: str) -> tuple[int, str]:
    """The exit code, and all that a terminal gets."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"COLUMNS": str(columns), "LINES": "30", "TERM": "xterm"} | environment,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                data = os.read(ours, 4096)
            except OSError:  # Linux's way to say that nobody writes any more
                break
            if not data:
                break
            seen += data
            if b"step 3 of" in seen and environment.get("STOP"):
                process.send_signal(signal.SIGINT)
                environment["STOP"] = ""
        os.close(ours)
    return process.returncode, seen.decode()


def training(max_steps: int) -> list[str]:
    """What trains something small."""
    text = f"{{pairs: {PAIRS[:6]}}}"
    Path("mine.yaml").write_text(
        f"data: {{train: {text}, valid: {text}}}\nprecision: fp32\ndevice: cpu\nthreads: 1\n"
        "tokenizer: {vocab_size: 60}\nmodel: {d_model: 16, n_heads: 1, d_ff: 16, n_layers: 1}\n"
        f"training: {{max_steps: {max_steps}, validate_every: 3}}\n",
        encoding="utf-8",
    )
    return ["train", "-c", "mine.yaml"]


def test_training_on_a_terminal_draws_in_place_and_gives_the_cursor_back(warm: list[str]) -> None:
    code, seen = on_a_terminal([*warm, *training(5)])
    assert code == 0
    assert "\x1b[2K" in seen  # lines are drawn over
    assert seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l")
    assert "the best so far" in seen or "best so far" in seen
    assert "finished after step 5: max_steps 5 reached" in seen


def test_a_terminal_without_a_cursor_gets_lines_and_no_escapes(warm: list[str]) -> None:
    code, seen = on_a_terminal([*warm, *training(2)], TERM="dumb")
    assert code == 0
    assert "\x1b" not in seen
    assert "step      2  epoch" in seen


def test_a_person_who_declines_colours_gets_none(warm: list[str]) -> None:
    code, seen = on_a_terminal([*warm, *training(2)], NO_COLOR="1")
    assert code == 0
    colours = {code for codes in seen.split("\x1b[")[1:] for code in codes.partition("m")[0].split(";")}
    assert not colours & {"31", "32", "33", "34", "35", "36"}
    assert "\x1b[2K" in seen


def test_ctrl_c_on_a_terminal_ends_in_a_sentence_and_with_what_to_type_next(warm: list[str]) -> None:
    code, seen = on_a_terminal([*warm, *training(100_000)], STOP="now")
    assert code == 130
    end = seen.split("\x1b[?25h")[-1]
    assert "everything is saved in runs/mine" in end
    assert "to go on:\x1b[0m tx train -c mine.yaml" in end
    assert "error" not in seen


def test_a_signal_is_heeded_where_nobody_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With stderr closed (`2>&-`) the handler raised an error of its own into training."""

    def closed(descriptor: int, data: bytes) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(os, "write", closed)
    live._tell_stopping()
