"""A run goes on from what is whole, says what is not, and names nothing that is not there."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_run import assert_same_bits, settings

from transformer_cli.checkpoints import store
from transformer_cli.checkpoints.find import find_checkpoint, list_checkpoints
from transformer_cli.checkpoints.known import open_found
from transformer_cli.checkpoints.record import read_record
from transformer_cli.errors import ModelError, ResourceError, UsageError
from transformer_cli.model.transformer import Transformer
from transformer_cli.sealing import sealed, unsealed
from transformer_cli.training.forecast import forecast
from transformer_cli.training.reproduction import scored
from transformer_cli.training.run import Listener, Outcome, train
from transformer_cli.training.validation import Validation

pytestmark = pytest.mark.usefixtures("own_threads")

RUN = Path("runs/x")
CONFIG = settings(keep_best=1, keep_last=2, best_by="bleu", log_every=2)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 updates with checkpoints of 5, 10 and 12."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train(CONFIG, RUN)
    return folder / RUN


@pytest.fixture(scope="module", autouse=True)
def _first_is_best() -> Iterator[None]:
    """A score as high as the loss."""
    results = Validation.results

    def by_loss(self: Validation, model: Transformer) -> dict[str, Any]:
        found = results(self, model)
        return found | {"bleu": found["loss"]}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Validation, "results", by_loss)
        yield


@pytest.fixture(autouse=True)
def _own_copy(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished, RUN)


def go_on(steps: int = 14, **training: Any) -> tuple[Outcome, list[str]]:
    """More updates, and what was warned of."""
    warnings: list[str] = []
    options = CONFIG.training.model_copy(update={"max_steps": steps, **training})
    outcome = train(CONFIG.model_copy(update={"training": options}), RUN, listener=Listener(warn=warnings.append))
    return outcome, warnings


def names() -> list[str]:
    return [path.name for path in list_checkpoints(RUN)]


def damage(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").write_bytes(b"no")


def reseal(checkpoint: Path, **state: Any) -> None:
    """A checkpoint that is whole, with other things in its state."""
    data = json.dumps(json.loads((checkpoint / "state.json").read_bytes()) | state).encode()
    (checkpoint / "state.json").write_bytes(data)
    fields = unsealed((checkpoint / "manifest.json").read_bytes())
    assert fields is not None
    fields["files"]["state.json"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (checkpoint / "manifest.json").write_bytes(sealed(fields))


@pytest.mark.parametrize("steps", [12, 14])
def test_a_best_checkpoint_that_is_gone_is_forgotten_and_that_is_said(steps: int) -> None:
    """It trained to the end, and then ended with an error, every time."""
    best = find_checkpoint(str(RUN))
    shutil.rmtree(best)
    left = names()
    outcome, warnings = go_on(steps)
    assert any(f"of the best checkpoints, {best.name} is not there any more" in line for line in warnings)
    assert find_checkpoint(str(RUN)) == outcome.best
    assert outcome.best.name in names()
    assert outcome.was_finished == (steps == 12)
    if steps == 12:
        assert outcome.best.name == left[-1]


def test_a_best_checkpoint_that_goes_while_it_is_trained_does_not_end_it_either() -> None:
    best = find_checkpoint(str(RUN))

    def delete_best(line: str) -> None:
        if line.startswith("step "):
            shutil.rmtree(best, ignore_errors=True)

    options = CONFIG.training.model_copy(update={"max_steps": 20})
    outcome = train(CONFIG.model_copy(update={"training": options}), RUN, listener=Listener(say=delete_best))
    assert outcome.best.name in names()


def test_a_damaged_newest_checkpoint_is_kept_aside_and_the_one_before_continues() -> None:
    """It was an error, whose hint named an option that `tx train` has not."""
    train(CONFIG.model_copy(update={"training": CONFIG.training.model_copy(update={"max_steps": 14})}), Path("whole"))
    newest = list_checkpoints(RUN)[-1]
    damage(newest)
    before = {path.name: path.read_bytes() for path in newest.iterdir()}
    assert (forecast(CONFIG, RUN).step, newest.exists()) == (10, True)
    _, warnings = go_on()
    [said] = [line for line in warnings if "damaged" in line]
    aside = newest.with_name(f"damaged-{newest.name}")
    assert "model.safetensors is damaged" in said
    assert f"kept as {aside}, training goes on after step 10" in said
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == before
    assert_same_bits(Path("whole"), RUN)


def test_a_checkpoint_that_is_damaged_again_does_not_replace_the_first() -> None:
    for expected in (["damaged-step-00000012"], ["damaged-step-00000012", "damaged-step-00000012-2"]):
        damage(RUN / "checkpoints/step-00000012")
        go_on(12)
        assert sorted(path.name for path in (RUN / "checkpoints").glob("damaged*")) == expected
    train(CONFIG, RUN, overwrite=True)
    assert not list((RUN / "checkpoints").glob("damaged*"))


def test_where_no_checkpoint_is_whole_nothing_is_moved() -> None:
    for checkpoint in list_checkpoints(RUN):
        damage(checkpoint)
    before = names()
    with pytest.raises(ModelError, match="no other that is whole") as caught:
        go_on()
    assert caught.value.hint == "restore it from a copy, or start anew with --overwrite"
    assert names() == before


@pytest.mark.parametrize("there", ["a folder", "nothing, and nothing can be made"])
def test_a_latest_that_cannot_be_written_is_said_once_and_stops_nothing(there: str) -> None:
    """In a folder that is read-only, training ended after its first checkpoint."""
    shutil.move("runs", "elsewhere")
    Path("runs/latest" if there == "a folder" else "x").mkdir(parents=True)
    if there != "a folder":
        Path("runs").write_text("a file", encoding="utf-8")
    warnings: list[str] = []
    outcome = train(
        CONFIG.model_copy(update={"training": CONFIG.training.model_copy(update={"max_steps": 15})}),
        Path("elsewhere/x"),
        listener=Listener(warn=warnings.append),
    )
    assert outcome.steps == 15
    [said] = [line for line in warnings if "runs" in line]
    assert said.endswith("this run has to be named: -m elsewhere/x")


def test_another_number_of_processes_goes_on_and_says_that_bits_differ() -> None:
    """It repeated and left out sentences, or went on without end; a dry run promises what training does."""
    reseal(list_checkpoints(RUN)[-1], processes=2)
    longer = CONFIG.model_copy(update={"training": CONFIG.training.model_copy(update={"max_steps": 15})})
    assert forecast(CONFIG, RUN).finished
    assert forecast(longer, RUN, overwrite=True).step == 0
    assert forecast(longer, RUN).step == 12
    outcome, [said] = go_on(15)
    assert outcome.steps == 15
    assert "another number of processes, 1 instead of 2: " in said
    assert said.endswith("bits will differ")
    assert read_record(RUN)["changed"] == {"12": {"processes": 2}}
    with pytest.raises(ModelError, match="processes was 2 until update 12, and is 1"):
        scored(RUN)


def test_another_accumulation_is_refused() -> None:
    with pytest.raises(UsageError, match=r"training\.accumulation: 1 in the run, 2 now"):
        go_on(accumulation=2)


def test_a_place_beyond_the_end_of_the_epoch_is_refused() -> None:
    """There was no batch to take, without end."""
    reseal(list_checkpoints(RUN)[-1], batch=900, epoch_tokens=9, epoch_loss=9.0)
    with pytest.raises(ModelError, match="has used 900 batches of epoch 3, which has "):
        go_on()


@pytest.mark.parametrize("moment", ["before it is read", "half-way"])
def test_a_run_is_opened_while_its_best_checkpoint_is_replaced(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tx translate` failed, with the advice to train again with --overwrite."""
    old, new = (RUN / "checkpoints" / f"step-000000{step}" for step in (10, 12))
    if not old.exists():
        shutil.copytree(new, old)
    store.point(RUN, "best", 10)

    def replaced() -> None:
        store.point(RUN, "best", 12)
        shutil.rmtree(old, ignore_errors=True)

    name = "open_known" if moment == "before it is read" else "verified"
    original: Callable[..., Any] = getattr(store, name)

    def after(*arguments: Any) -> Any:
        replaced()
        return original(*arguments)

    monkeypatch.setattr(store, name, after)
    assert open_found(lambda: find_checkpoint(str(RUN)), store.open_run).checkpoint == new


def test_a_damaged_checkpoint_is_tried_once_and_advises_nothing_dangerous() -> None:
    for checkpoint in list_checkpoints(RUN):
        damage(checkpoint)
    with pytest.raises(ModelError, match="is damaged") as caught:
        open_found(lambda: find_checkpoint(str(RUN)), store.open_run)
    assert "--overwrite" not in (caught.value.hint or "")


@pytest.mark.parametrize("instead", ["nothing", "an empty folder", "another run"])
def test_a_run_that_is_moved_while_it_is_trained_leaves_nothing_half_made(instead: str, finished: Path) -> None:
    """Half a run appeared at the old place, exit code 0."""

    def move(line: str) -> None:
        if line.startswith("step ") and not Path("moved").exists():
            RUN.rename("moved")
            if instead == "another run":
                shutil.copytree(finished, RUN)
            elif instead == "an empty folder":
                RUN.mkdir()

    options = CONFIG.training.model_copy(update={"max_steps": 20})
    config = CONFIG.model_copy(update={"training": options})
    with pytest.raises(ResourceError, match="runs/x is not there any more: it was moved or deleted") as caught:
        train(config, RUN, listener=Listener(say=move))
    assert "move it back" in (caught.value.hint or "")
    if instead == "nothing":
        assert not RUN.exists()
    else:
        there = {path.relative_to(RUN): path.read_bytes() for path in RUN.rglob("*") if path.is_file()}
        expected = {path.relative_to(finished): path.read_bytes() for path in finished.rglob("*") if path.is_file()}
        assert there == (expected if instead == "another run" else {})
    assert train(config, Path("moved")).steps == 20
