"""What TensorBoard reads back, with its own reader, is what metrics.jsonl says: each event once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_run import at_update, lose_power, settings

from transformer_cli import needs
from transformer_cli.errors import ResourceError
from transformer_cli.training.run import train
from transformer_cli.training.tensorboard import FOLDER, Board

pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")

Curves = dict[str, list[tuple[int, float]]]


def read_back(run_dir: Path, **what: bool) -> Curves:
    """Tag to steps and values."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run_dir / FOLDER), **what).Reload()
    return {tag: [(one.step, one.value) for one in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def said(run_dir: Path) -> Curves:
    """The same out of metrics.jsonl."""
    curves: Curves = {}
    for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").split("\n")[:-1]:
        event: dict[str, Any] = json.loads(line)
        for name, value in event.items():
            if isinstance(value, int | float) and name not in ("step", "elapsed_s"):
                curves.setdefault(f"{event['event']}/{name}", []).append((event["step"], value))
    return curves


def assert_same(run_dir: Path) -> None:
    read, wanted = read_back(run_dir), said(run_dir)
    assert read.keys() == wanted.keys()
    for tag, points in wanted.items():
        assert [step for step, _ in read[tag]] == [step for step, _ in points], tag
        assert [value for _, value in read[tag]] == pytest.approx([value for _, value in points], rel=1e-6), tag


def test_every_number_of_every_event_is_a_point_of_its_curve() -> None:
    train(settings(tensorboard=True), Path("x"))
    assert_same(Path("x"))
    assert {"update/loss", "update/learning_rate", "validation/loss", "validation/bleu"} <= read_back(Path("x")).keys()
    assert len(read_back(Path("x"))["update/loss"]) == 6


@pytest.mark.parametrize("step", [3, 8, 11])
def test_killed_at_any_update_and_continued_it_has_every_step_once(step: int) -> None:
    """Updates after the last checkpoint were made twice."""
    config = settings(checkpoint_every=5, log_every=1, tensorboard=True)
    with at_update(step, lose_power), pytest.raises(MemoryError):
        train(config, Path("x"))
    train(config, Path("x"))
    assert_same(Path("x"))
    assert [step for step, _ in read_back(Path("x"))["update/loss"]] == [*range(1, 13)]


def test_who_looks_on_forgets_what_was_made_twice_and_files_do_not_pile_up() -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = settings(checkpoint_every=5, log_every=1, tensorboard=True)
    for lost in (4, 8):
        with at_update(lost, lose_power), pytest.raises(MemoryError):
            train(config, Path("x"))
    looking = EventAccumulator(str(Path("x", FOLDER))).Reload()
    train(config, Path("x"))
    assert [one.step for one in looking.Reload().Scalars("update/loss")] == [*range(1, 13)]
    train(settings(checkpoint_every=5, log_every=1, tensorboard=True, max_steps=14), Path("x"))
    assert len(list(Path("x", FOLDER).iterdir())) == 2
    assert_same(Path("x"))


def test_half_a_record_is_no_harm() -> None:
    """What a crash may leave of the last one."""
    config = settings(checkpoint_every=5, log_every=1, tensorboard=True)
    with at_update(8, lose_power), pytest.raises(MemoryError):
        train(config, Path("x"))
    [file] = Path("x", FOLDER).iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    train(config, Path("x"))
    assert_same(Path("x"))


def test_asked_for_late_it_has_all_from_the_beginning_and_overwriting_deletes_it() -> None:
    train(settings(max_steps=6), Path("x"))
    assert not Path("x", FOLDER).exists()
    train(settings(max_steps=8, tensorboard=True), Path("x"))
    assert_same(Path("x"))
    train(settings(max_steps=2), Path("x"), overwrite=True)
    assert not Path("x", FOLDER).exists()


def test_what_is_damaged_or_not_finite_is_left_out(tmp_path: Path) -> None:
    lines = ['{"event": "update", "step": 1, "loss": 2.0, "elapsed_s": "x"}', '{"step": 2, "loss": 1.0}', '{"step"']
    lines += ['{"event": "update", "loss": 1.0}', '{"event": "validation", "step": 2, "directions": [1.0]}']
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines), encoding="utf-8")
    board = Board(tmp_path)
    board.take({"event": "update", "step": 3, "loss": float("inf"), "mfu": None, "learning_rate": 0.5})
    assert read_back(tmp_path) == {"update/loss": [(1, 2.0)], "update/learning_rate": [(3, 0.5)]}


def test_a_score_of_one_direction_has_its_curve_at_once_and_when_the_run_goes_on(tmp_path: Path) -> None:
    each = {"de-en": 31.5, "en-de": 28.25}
    event = {"event": "validation", "step": 5, "bleu": 30.0, "directions": each}
    (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(event)}\n", encoding="utf-8")
    Board(tmp_path).take({**event, "step": 10})
    found = read_back(tmp_path)
    assert found["validation/bleu/de-en"] == [(5, 31.5), (10, 31.5)]
    assert found["validation/bleu/en-de"] == [(5, 28.25), (10, 28.25)]


def test_without_the_extra_nothing_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "lacking", lambda package: "which is not installed")
    with pytest.raises(ResourceError, match="needs the package tensorboard") as caught:
        train(settings(tensorboard=True), Path("x"))
    assert caught.value.exit_code == 5
    assert "[tensorboard]'" in str(caught.value.hint)
    assert not Path("x").exists()
