"""How long training would take is told from a sample of its text and from parts of its updates."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from transformer_cli import files
from transformer_cli.config.run import RunConfig
from transformer_cli.data.corpus import load_all
from transformer_cli.data.used import as_used
from transformer_cli.machine import decide
from transformer_cli.training import rehearsal
from transformer_cli.training.forecast import forecast
from transformer_cli.training.listening import unseen
from transformer_cli.training.parallel import World
from transformer_cli.training.progress import Progress
from transformer_cli.training.rehearsal import Length, length_of
from transformer_cli.training.run import train


@pytest.fixture(autouse=True)
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates that are timed; and a sample that is a quarter of the text."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rehearsal, "SECONDS", 0.0)
    monkeypatch.setattr(rehearsal, "PAIRS", 500)


def settings(**sections: Any) -> RunConfig:
    small = {"d_model": 16, "n_heads": 2, "d_ff": 32, "n_layers": 1}
    fixed: dict[str, Any] = {"device": "cpu", "precision": "fp32", "threads": 1, "model": small}
    training = {"budget_tokens": 256, "validate_every": 100, "validation_bleu": False, "best_by": "loss"}
    fixed |= {"tokenizer": {"vocab_size": 150}, "data": {"phrasebook": {"n_pairs": 2000}}}
    return RunConfig.model_validate(fixed | sections | {"training": training | sections.pop("training", {})})


def told(config: RunConfig, *, is_thorough: bool = False) -> Length:
    used = as_used(load_all(config.data), config.data)
    known: dict[str, Any] = {"machine": decide(config), "is_thorough": is_thorough}
    return length_of(config, Path("run"), used, None, Progress(), World(), unseen, **known)


@pytest.mark.parametrize("data", [{}, {"valid": "10%"}, {"train": [{"text": "phrasebook", "weight": 2.5}]}])
def test_a_sample_tells_how_many_updates_all_of_the_text_has(data: dict[str, Any]) -> None:
    """Its epochs end nothing."""
    config = settings(training={"max_epochs": 3}, data={"phrasebook": {"n_pairs": 2000}} | data)
    part, whole = told(config), told(config, is_thorough=True)
    assert part.of_pairs == 500
    assert whole.of_pairs > 1500
    assert part.n_updates == pytest.approx(whole.n_updates, rel=0.04)
    assert part.ends == f"at about step {part.n_updates:,} (max_epochs 3)"
    assert whole.ends.startswith("at about" if "train" in data else "at step")
    assert part.left is not None


def test_an_update_of_known_cost_is_told_from_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three seconds whatever its size, and a hundredth for each token."""
    asked = []

    def of_a_part(run: object, learner: object, share: float, n: int = 1) -> tuple[float, float]:
        asked.append(share)
        return 1000 * share, 3 + 1000 * share / 100

    monkeypatch.setattr(rehearsal, "_of_a_part", of_a_part)
    data = {"phrasebook": {"n_pairs": 2000}, "valid": {"pairs": [["a", "b"]]}}
    config = settings(training={"budget_tokens": 3000, "max_steps": 100, "validate_every": 1000}, data=data)
    found = told(config)
    assert found.of_parts
    assert found.left is not None
    n_tokens = rehearsal.MANY / asked[-1]
    assert found.left.seconds == pytest.approx(100 * (3 + n_tokens / 100), rel=0.02)
    monkeypatch.setattr(rehearsal, "COSTLY_S", 3 + n_tokens / 100)
    assert not told(config).of_parts


def test_parts_are_as_large_for_each_process_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what two sizes differ by is nothing but chance, times all tokens of an update."""
    asked: dict[int, list[float]] = {1: [], 8: []}
    for size, shares in asked.items():

        def of_a_part(run: object, learner: object, share: float, n: int = 1, to: list[float] = shares) -> Any:
            to.append(share)
            return 1000 * share, 3 + 1000 * share / 100

        monkeypatch.setattr(rehearsal, "_of_a_part", of_a_part)
        run: Any = SimpleNamespace(world=SimpleNamespace(size=size), clock=SimpleNamespace())
        horizon: Any = SimpleNamespace(tokens_per_epoch=32_000 * size, updates_per_epoch=10)
        assert rehearsal._time_parts(run, None, horizon)  # type: ignore[arg-type]
        horizon.tokens_per_epoch = 10 * rehearsal.MANY * size
        assert not rehearsal._time_parts(run, None, horizon)  # type: ignore[arg-type]
    assert asked[1] == asked[8] != []


def test_what_validations_take_is_told_of_all_of_their_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a sample they take less."""
    monkeypatch.setattr(rehearsal, "_of_a_part", lambda run, learner, share, n=1: (1000 * share, 3 + 10 * share))
    data = {"train": {"pairs": [["a b", "c d"]] * 600}, "valid": {"pairs": [["a b", "c d"]] * 5000}}
    config = settings(training={"budget_tokens": 3000, "max_steps": 100, "validate_every": 1}, data=data)
    few = told(config)
    monkeypatch.setattr(rehearsal, "PAIRS", 10_000)
    whole = told(config)
    assert (few.of_pairs, whole.of_pairs) == (500, 600)
    assert few.left is not None
    assert whole.left is not None
    assert few.left.seconds == pytest.approx(whole.left.seconds, rel=0.02)


def test_parts_and_whole_updates_tell_about_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "COSTLY_S", 0.0)
    config = settings(training={"budget_tokens": 3000, "max_steps": 1000, "validate_every": 1000})
    part, whole = told(config), told(config, is_thorough=True)
    assert (part.of_parts, whole.of_parts) == (True, False)
    assert part.left is not None
    assert whole.left is not None
    assert 0.1 < part.left.seconds / whole.left.seconds < 10


def test_a_run_that_goes_on_needs_its_parent_no_longer() -> None:
    """Neither does training; `--dry-run --time` said that there is none."""
    train(settings(training={"max_steps": 2}), Path("parent"))
    child = settings(training={"max_steps": 2, "init_from": "parent"})
    train(child, Path("child"))
    shutil.rmtree("parent")
    longer = child.model_copy(update={"training": child.training.model_copy(update={"max_steps": 100})})
    found = forecast(longer, Path("child"), timed=True)
    assert found.step == 2
    assert found.length is not None
    assert found.length.left is not None


def test_a_run_that_goes_on_is_told_with_the_choices_that_it_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings()
    train(config.model_copy(update={"training": config.training.model_copy(update={"max_steps": 2})}), Path("run"))
    record = files.read_json(Path("run/run.json"))
    kept = record["machine"] | {"compiled": False, "reason": "because"}
    files.write_json(Path("run/run.json"), record | {"machine": kept})
    timed: list[Any] = []
    monkeypatch.setattr(rehearsal, "_time_parts", lambda run, *others: timed.append(run.machine.as_dict()) or 1)
    assert forecast(config, Path("run")).machine == kept
    assert timed == [kept]
