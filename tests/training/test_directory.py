"""A run directory that other hands have touched: nothing of anybody's is lost, nothing wrong is trained on."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import sentencepiece
from conftest import PAIRS
from faults import Saboteur

from transformer_cli import files
from transformer_cli.checkpoints import manifest
from transformer_cli.checkpoints.find import POINTERS, list_checkpoints
from transformer_cli.checkpoints.overview import overviews
from transformer_cli.checkpoints.record import read_record
from transformer_cli.checkpoints.standing import LOCK, is_training
from transformer_cli.cli import failures
from transformer_cli.cli.app import main
from transformer_cli.config.dotted import flat
from transformer_cli.config.evaluation import EvaluationConfig
from transformer_cli.config.run import RunConfig
from transformer_cli.config.source import dump_config, load_config
from transformer_cli.errors import (
    ConfigError,
    DataError,
    DivergedError,
    Interrupted,
    ModelError,
    ResourceError,
    UsageError,
)
from transformer_cli.files import json_line
from transformer_cli.training import beginning, directory, replacing
from transformer_cli.training.directory import check_alike, check_same, claimed, trained_in
from transformer_cli.training.forecast import forecast
from transformer_cli.training.parallel import World
from transformer_cli.training.reproduction import scored
from transformer_cli.training.run import Listener, train

pytestmark = pytest.mark.usefixtures("own_threads")

RUN = Path("runs/tiny")


@pytest.fixture(autouse=True)
def _own_copy(trained_run: Path, tmp_path: Path) -> None:
    shutil.copytree(trained_run, tmp_path / RUN)


def settings(**sections: Any) -> RunConfig:
    """The run's own configuration, and what differs from it; a few updates more."""
    tree = load_config(RUN / "config.yaml").model_dump()
    tree["training"]["max_steps"] = 152
    for name, values in sections.items():
        tree[name] |= values
    return RunConfig.model_validate(tree)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"data": {"train": "nowhere"}}, DataError),
        ({"data": {"valid": {"source": "empty", "target": "empty"}}}, DataError),
    ],
)
def test_overwriting_deletes_nothing_before_the_text_is_there(wrong: dict[str, Any], error: type[Exception]) -> None:
    """`--overwrite` with a mistyped data.train deleted the trained model, then said that there was no such file."""
    Path("empty").touch()
    before = contents(RUN)
    with pytest.raises(error):
        train(settings(**wrong), RUN, overwrite=True)
    assert contents(RUN) == before


@pytest.mark.parametrize(
    ("wrong", "error"),
    [({"tokenizer": {"vocab_size": 5}}, UsageError), ({"data": {"max_length": 2}}, DataError)],
)
def test_what_a_run_replaces_is_there_again_where_that_one_cannot_begin(
    wrong: dict[str, Any], error: type[Exception]
) -> None:
    """It was deleted before anybody knew: a tokenizer that cannot be, a text of which nothing is left."""
    (RUN / "checkpoints" / "notes.txt").write_text("mine", encoding="utf-8")
    (list_checkpoints(RUN)[0] / "notes.txt").write_text("mine, too", encoding="utf-8")
    before, said = contents(RUN), list[str]()
    with pytest.raises(error):
        train(settings(**wrong), RUN, overwrite=True, listener=Listener(say=said.append))
    assert contents(RUN) == before
    assert said[-1] == f"the new run has not begun: the one that was in {RUN} is there again"
    train(settings(training={"max_steps": 2}), RUN, overwrite=True)
    assert not (RUN / replacing.ASIDE).exists()
    assert {path.relative_to(RUN) for path in RUN.rglob("notes.txt")} == {
        path.relative_to(RUN) for path in before if path.name == "notes.txt"
    }


@pytest.mark.parametrize("place", ["run", "checkpoint", "link"])
def test_a_run_does_not_replace_what_it_begins_with(place: str) -> None:
    """All that was left was an error about a file that it had deleted."""
    Path("link").symlink_to(RUN.absolute())
    wanted = {"run": RUN, "checkpoint": list_checkpoints(RUN)[0], "link": Path("link")}[place]
    before = contents(RUN)
    config = settings(training={"init_from": str(wanted)})
    for attempt in (train, forecast):
        with pytest.raises(UsageError, match="the one that it would replace"):
            attempt(config, RUN, overwrite=True)
    assert contents(RUN) == before


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): content for path, content in contents(folder).items()}


def another_run_in_its_place(folder: Path) -> None:
    (folder / "run.json").write_text('{"data": {"train": {"sha256": ""}}}', encoding="utf-8")
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "spm.model").write_bytes(b"another")


def restarted(folder: Path) -> None:
    with trained_in(folder, lambda line: None):
        replacing.sweep(folder)


def test_what_ended_a_run_is_told_where_it_cannot_be_looked_up_what_to_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A disk that failed while something was saved failed next at `.replaced`, which was told instead."""

    def fail(path: Path) -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    def saving() -> None:
        with monkeypatch.context() as patch, trained_in(RUN, said.append):
            patch.setattr(Path, "is_dir", fail)
            raise ResourceError("cannot write x")

    said: list[str] = []
    with pytest.raises(ResourceError, match="cannot write x"):
        saving()
    [told] = said
    assert told.startswith("what was in runs/tiny could not be put back, the next start will: [Errno 5]")


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(5, "the disk is gone")], ids=["killed", "failed"])
def test_whenever_who_sets_a_run_aside_or_puts_it_back_is_killed_nothing_is_lost(
    failure: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, half = files_of(RUN), Path("half")
    for nth in range(1, 1000):
        shutil.copytree(RUN, half)
        saboteur = Saboteur(nth, failure)
        with monkeypatch.context() as patch, suppress(KeyboardInterrupt, ResourceError):
            patch.setattr(files, "disk", saboteur)
            replacing.set_aside(half, lambda line: None)
            another_run_in_its_place(half)
            replacing.put_back(half)
        restarted(half)
        assert files_of(half) == before
        shutil.rmtree(half)
        if not saboteur.struck:
            break
    assert nth > 40


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(5, "the disk is gone")], ids=["killed", "failed"])
def test_whenever_who_forgets_what_it_replaced_is_killed_one_of_both_is_whole(
    failure: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new one was taken for one that had not begun, and deleted; or half of the old one was put back."""
    before, half = files_of(RUN), Path("half")
    found = []
    for nth in range(1, 1000):
        shutil.copytree(RUN, half)
        replacing.set_aside(half, lambda line: None)
        another_run_in_its_place(half)
        new = files_of(half).keys() - {Path(replacing.ASIDE) / path for path in before}
        saboteur = Saboteur(nth, failure)
        with suppress(KeyboardInterrupt, ResourceError), replacing.undone(half, lambda line: None):
            with monkeypatch.context() as patch:
                patch.setattr(files, "disk", saboteur)
                replacing.forget(half)
            raise KeyboardInterrupt
        restarted(half)
        found.append(files_of(half) == before)
        assert found[-1] or files_of(half).keys() == new
        shutil.rmtree(half)
        if not saboteur.struck:
            break
    assert nth > 10
    assert found == sorted(found, reverse=True)  # from some operation on it is the new one
    assert not found[-1]


def test_what_a_killed_run_was_to_replace_is_there_again_for_whoever_comes_next() -> None:
    """The old command trained anew, and the trained model was gone."""
    before, said = files_of(RUN), list[str]()
    replacing.set_aside(RUN, said.append)
    another_run_in_its_place(RUN)
    outcome = train(RunConfig.model_validate(settings_of(before)), RUN, listener=Listener(say=said.append))
    assert outcome.was_finished
    assert files_of(RUN).keys() == before.keys()
    assert "had not begun: that is there again" in " ".join(said)


def settings_of(found: dict[Path, bytes]) -> dict[str, Any]:
    Path("before.yaml").write_bytes(found[Path("config.yaml")])
    return load_config("before.yaml").model_dump()


def test_a_folder_of_others_is_not_taken_for_a_run_that_had_not_begun() -> None:
    Path("mine").mkdir()
    shutil.copytree(RUN, Path("mine", replacing.ASIDE))
    Path("mine", "config.yaml").write_text("my: own\n", encoding="utf-8")
    before = contents(Path("mine"))
    with pytest.raises(UsageError, match=r"is not a run, but has config\.yaml"):
        train(settings(), Path("mine"))
    assert contents(Path("mine")) == before


def test_who_stops_a_run_before_it_begins_has_the_one_that_it_was_to_replace(monkeypatch: pytest.MonkeyPatch) -> None:
    """One update was made first, and what was there deleted for it."""
    before = files_of(RUN)
    monkeypatch.setattr(beginning, "tokenizer_of", interrupting(beginning.tokenizer_of))
    with pytest.raises(Interrupted, match="before the first update") as stopped:
        train(settings(training={"max_steps": 2}), RUN, overwrite=True)
    assert stopped.value.is_undone
    assert files_of(RUN) == before


def interrupting(really: Callable[..., Any]) -> Callable[..., Any]:
    def method(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return really(*arguments)

    return method


def test_a_run_whose_text_is_missing_leaves_no_folder_behind() -> None:
    """But those that were there."""
    Path("mine").mkdir()
    there = {*Path().rglob("*")}
    for place in ("mine/deep/new", "new", "mine"):
        with pytest.raises(DataError):
            train(settings(data={"train": "nowhere"}), Path(place))
        assert {*Path().rglob("*")} == there


def test_who_finds_another_at_work_leaves_it_its_empty_folder() -> None:
    """Even where both saw that there was none."""
    place, is_there = Path("both/new"), os.path.lexists
    with claimed(place):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os.path, "lexists", lambda path: Path(path) != place and is_there(path))
            with pytest.raises(UsageError, match="another"), claimed(place):
                pass
        files.write_text(place / "mine", "mine")
    assert [*Path("both").rglob("*")] == [place, place / "mine"]


@pytest.mark.parametrize("place", [Path("both/new"), RUN])
def test_who_waited_while_another_removed_its_lock_or_folder_has_one_of_its_own(place: Path) -> None:
    began = threading.Event()

    def other() -> None:
        with claimed(place):
            began.set()
            time.sleep(0.2)

    first = threading.Thread(target=other)
    first.start()
    began.wait()
    with claimed(place):
        first.join()
        assert is_training(place)
        assert (place / LOCK).exists()
        files.write_text(place / "mine", "mine")
    assert (place / "mine").read_text() == "mine"


def test_where_a_folder_may_not_be_made_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question of the system's was answered by a raw OSError of its own."""
    with pytest.raises(ResourceError, match="cannot write"), claimed(Path("x" * 300)):
        pass


def test_overwriting_leaves_the_files_of_others_in_the_folders_of_a_run() -> None:
    """`--run-dir . --overwrite` in a project deleted its whole `data/`."""
    others = [RUN / "data" / "corpus" / "train.de", RUN / "tokenizer" / "notes.txt", RUN / "checkpoints" / "mine"]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine", encoding="utf-8")
    train(settings(training={"max_steps": 2}), RUN, overwrite=True)
    assert [path.name for path in list_checkpoints(RUN)] == ["step-00000002"]
    assert [path.read_text(encoding="utf-8") for path in others] == ["mine"] * len(others)


def test_what_a_mac_puts_into_every_folder_keeps_no_run_from_its_place() -> None:
    """The folder of a checkpoint was not empty without it, and so no new one of that name could be written."""
    folders = [path for path in RUN.rglob("*") if path.is_dir()]
    assert {"checkpoints", "data"} < {folder.name for folder in folders}
    for folder in folders:
        for name in (".DS_Store", "._manifest.json"):
            (folder / name).write_bytes(b"a Mac's")
    step = list_checkpoints(RUN)[-1].name
    train(settings(training={"max_steps": int(step.removeprefix("step-"))}), RUN, overwrite=True)
    assert [path.name for path in list_checkpoints(RUN)][-1] == step
    assert not list((RUN / "checkpoints" / step).glob(".*"))


@pytest.mark.parametrize("overwrite", [False, True])
def test_nothing_that_a_killed_writer_left_outlives_the_next_start(overwrite: bool) -> None:
    """Of a run that had finished nothing is saved again, and only that swept."""
    left = [RUN / folder / f"{files.ASIDE}x-0123abcd" for folder in ("", "tokenizer", "data", "checkpoints")]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half")
    finished = settings(training={"max_steps": 2 if overwrite else 150})
    train(finished, RUN, overwrite=overwrite)
    assert [path for path in left if path.exists()] == []


FOREIGN = {
    "config.yaml": "extends: tiny.yaml # my notes\n",
    "run.json": '{"name": "my run", "data": {}}',
    "metrics.jsonl": '{"step": 1, "loss": 2.0}\n',
    "best": "the best of my life\n",
    "last": "step-00000001\n",
    "words.tsv.gz": "",
    "lines.npy": "",
    "tokenizer/tokenizer.json": '{"version": "1.0", "model": {"type": "BPE"}}',
    "tokenizer/spm.model": "",
    "data/train-0123456789abcdef": "",
    "checkpoints/step-00000001/manifest.json": '{"model": "mine"}',
    "checkpoints": "a list of them",
}
"""What others may have under the names of a run's parts; a folder's file is made with its folder."""


@pytest.mark.parametrize("command", [["train"], ["train", "--overwrite"], ["train", "--dry-run"], ["tokenize"]])
@pytest.mark.parametrize("name", FOREIGN)
def test_in_a_directory_that_is_no_run_nothing_is_deleted_or_replaced(
    name: str, command: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """`--run-dir .` replaced `best`, `metrics.jsonl` and the like; `tx tokenize` deleted a whole `tokenizer/`."""
    Path("c.yaml").write_text(dump_config(settings()), encoding="utf-8")
    path = Path("mine", name)
    path.parent.mkdir(parents=True)
    path.write_text(FOREIGN[name], encoding="utf-8")
    assert failures.exit_code(lambda: main([*command, "-c", "c.yaml", "--run-dir", "mine"])) == 2
    said = capfd.readouterr().err
    assert "mine is not a run, but has" in said
    assert name.split("/")[0] in said
    assert contents(Path("mine")) == {path: FOREIGN[name].encode()}


def test_a_run_that_was_broken_off_before_its_record_is_still_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that lies there is what tx itself put there first."""
    for nth in range(1, 100):
        saboteur = Saboteur(nth, OSError(5, "the disk is gone"))
        with monkeypatch.context() as patch:
            patch.setattr(files, "disk", saboteur)
            with suppress(ResourceError):
                train(settings(training={"max_steps": 1}), Path("new"))
        directory.check_ours(Path("new"))
        if replacing.is_run(Path("new")):
            break
    assert nth > 4


def test_a_run_that_was_half_deleted_is_still_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record went first, so that the rest was taken for somebody else's."""
    for checkpoint in list_checkpoints(RUN):
        shutil.rmtree(checkpoint)  # the other proof
    for nth in range(1, 100):
        shutil.copytree(RUN, "half")
        saboteur = Saboteur(nth, OSError(5, "the disk is gone"))
        with monkeypatch.context() as patch:
            patch.setattr(files, "disk", saboteur)
            with suppress(ResourceError):
                replacing.discard(Path("half"))
        directory.check_ours(Path("half"))
        shutil.rmtree("half")
        if not saboteur.struck:
            break
    assert nth > 10


def test_beside_the_files_of_others_a_run_is_made() -> None:
    for name in ("notes.txt", "data/train.de", "tokenizer/notes.txt", "checkpoints/mine/best"):
        Path("mine", name).parent.mkdir(parents=True, exist_ok=True)
        Path("mine", name).write_text("mine", encoding="utf-8")
    theirs = contents(Path("mine"))
    said: list[str] = []
    for overwrite in (False, True):
        listener = Listener(warn=said.append)
        train(settings(training={"max_steps": 1}), Path("mine"), overwrite=overwrite, listener=listener)
        assert {path: path.read_bytes() for path in theirs} == theirs
    remarks = [line for line in said if "part of a run" in line]
    assert remarks == ["mine holds notes.txt, which is no part of a run: it stays as it is"]


def test_notes_in_a_checkpoint_outlive_it() -> None:
    notes = list_checkpoints(RUN)[0] / "notes.txt"
    notes.write_text("mine", encoding="utf-8")
    train(settings(training={"max_steps": 2}), RUN, overwrite=True)
    assert [path.name for path in notes.parent.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("folder", ["tokenizer", "data", "checkpoints"])
def test_what_a_link_leads_to_is_not_deleted(folder: str) -> None:
    """With `checkpoints` a link, `--overwrite` deleted the record and went on from the old weights."""
    (RUN / folder).rename("elsewhere")
    (RUN / folder).symlink_to(Path("elsewhere").absolute())
    before = contents(Path())
    with pytest.raises(UsageError, match=f"{folder} is a symbolic link"):
        train(settings(), RUN, overwrite=True)
    assert contents(Path()) == before


@pytest.mark.parametrize("command", [["train"], ["tokenize"], ["tokenize", "--ids", "a"]])
def test_an_empty_run_dir_is_refused(command: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    """`--run-dir "$UNSET"` trained in the current folder."""
    before = contents(Path())
    assert failures.exit_code(lambda: main([*command, "-c", "tiny.yaml", "--run-dir", ""])) == 2
    assert "--run-dir: the name is empty" in capfd.readouterr().err
    assert contents(Path()) == before


def test_a_tokenizer_of_the_same_size_is_refused() -> None:
    """Training went on with a model that had learned other pieces: it checked neither name nor content."""
    other = settings(data={"train": {"pairs": [["zwei alte autos fahren vorbei", "two old cars drive past"]] * 3}})
    train(other.model_copy(update={"training": other.training.model_copy(update={"max_steps": 1})}), Path("other"))
    shutil.rmtree(RUN / "tokenizer")
    shutil.copytree("other/tokenizer", RUN / "tokenizer")
    with pytest.raises(ModelError, match="is not the tokenizer that"):
        train(settings(), RUN)


def test_another_model_is_refused_even_where_its_configuration_is_lost() -> None:
    """Without config.yaml a run went on with another number of heads: all shapes agree."""
    other = settings(model={"n_heads": 4})
    (RUN / "config.yaml").unlink()
    with pytest.raises(ModelError, match="n_heads: 4 "):
        train(other, RUN)


def test_what_failed_before_it_trained_can_be_mended() -> None:
    """A first attempt with a wrong setting bound the directory to it: the right one was refused."""
    with pytest.raises(DataError, match="no sentence pair is left"):
        train(settings(data={"max_length": 1}), Path("new"))
    with pytest.raises(ConfigError, match="vocab_size"):
        train(settings(tokenizer={"vocab_size": 5}), Path("newer"))
    for name in ("new", "newer"):
        assert train(settings(training={"max_steps": 1}), Path(name)).steps == 1


def test_a_run_goes_on_however_its_shape_is_written() -> None:
    """As an import writes it, `{encoder: 2, decoder: 2}`: it was another configuration, "None now"."""
    short = settings(training={"max_steps": 1})
    long = short.model_copy(update={"model": short.model.model_copy(update={"n_layers": short.model.depths})})
    run = train(short, Path("run")).run_dir
    written = (run / "config.yaml").read_text()
    check_same(long, run)
    (run / "config.yaml").write_text(dump_config(long))
    check_same(short, run)
    other = short.model.depths.model_copy(update={"decoder": 3})
    with pytest.raises(UsageError, match=r"model.n_layers: 1 in the run, {'encoder': 1, 'decoder': 3} now") as caught:
        check_same(short.model_copy(update={"model": short.model.model_copy(update={"n_layers": other})}), run)
    assert "use its settings: --set model.n_layers=1;" in str(caught.value.hint)
    assert "n_layers: 1\n" in written  # as somebody wrote it


def test_until_it_is_trained_a_run_still_holds_to_its_tokenizer() -> None:
    with pytest.raises(DataError):
        train(settings(data={"max_length": 1}), Path("new"))
    with pytest.raises(UsageError, match="vocab_size: 100 in the run, 90 now"):
        train(settings(tokenizer={"vocab_size": 90}), Path("new"))


def test_until_it_is_trained_a_run_still_holds_to_what_it_begins_with() -> None:
    """Its tokenizer is that one's: without `init_from` it was kept in silence, and cut text that it never saw."""
    text = {"train": {"pairs": [[source[::-1], target[::-1]] for source, target in PAIRS]}}
    train(settings(data=text, training={"max_steps": 1}), Path("parent"))
    begun = {"init_from": "parent", "learning_rate": 1e30, "warmup_steps": 0, "max_skipped": 0, "clip_norm": None}
    with pytest.raises(DivergedError):
        train(settings(training=begun), Path("new"))
    with pytest.raises(UsageError, match="init_from: parent in the run, None now"):
        train(settings(), Path("new"))
    with pytest.raises(UsageError, match="init_from: parent in the run, None now"):
        forecast(settings(), Path("new"))
    learned = (
        train(settings(training={"max_steps": 1}), Path("new"), overwrite=True).run_dir / "tokenizer" / "spm.model"
    )
    assert learned.read_bytes() == (RUN / "tokenizer" / "spm.model").read_bytes()


def test_what_was_imported_does_not_begin_with_another_run() -> None:
    """It went on from its own weights, and recorded the other ones."""
    first = train(settings(training={"max_steps": 1}), Path("first")).run_dir
    [only] = list_checkpoints(first)
    only.rename(only.with_name("step-00000000"))
    for pointer in ("best", "last"):
        (first / pointer).write_text("step-00000000\n")
    with pytest.raises(UsageError, match="init_from: None in the run, nowhere now"):
        train(settings(training={"init_from": "nowhere"}), first)


def test_a_tokenizer_of_other_text_is_not_taken() -> None:
    """`tx tokenize`, another text, `tx train`: it used the first text's pieces without a word."""
    text = {"train": {"pairs": [["zwei alte autos fahren vorbei", "two old cars drive past"]] * 3}}
    other = settings(data=text, training={"max_steps": 2})
    Path("c.yaml").write_text(dump_config(other), encoding="utf-8")
    assert main(["tokenize", "-c", "c.yaml", "--run-dir", "new"]) == 0
    with pytest.raises(DataError, match=r"data\.train is no longer the text"):
        train(settings(), Path("new"))
    assert train(other.model_copy(update={"name": "moved"}), Path("new")).steps == 2


def test_two_at_once_do_not_train_in_one_directory(warm: list[str]) -> None:
    """Both did, by turns; whoever encoded the text later ended with "Directory not empty"."""
    Path("c.yaml").write_text(dump_config(settings()), encoding="utf-8")
    command = [*warm, "train", "-c", "c.yaml", "--run-dir", str(RUN)]
    before = contents(RUN)
    with claimed(RUN):
        second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (second.returncode, contents(RUN)) == (2, before)
    assert "another `tx train` is at work in runs/tiny" in second.stderr
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks is on a machine of its own: NFS tells no other one of a directory's lock."""
    lock = fcntl.flock

    def lock_of_a_file(descriptor: int, operation: int) -> None:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock_of_a_file)


@pytest.mark.usefixtures("machines")
def test_two_machines_do_not_train_in_one_directory() -> None:
    """The second one undid what the first had begun."""
    with claimed(RUN):
        assert is_training(RUN)
        with pytest.raises(UsageError, match="another `tx train` is at work"), claimed(RUN):
            pass
        assert is_training(RUN)
    assert not is_training(RUN)


def test_a_lock_goes_with_who_had_it_and_one_that_a_killed_process_left_stops_nobody() -> None:
    there = contents(RUN)
    (RUN / LOCK).touch()
    with claimed(RUN):
        assert is_training(RUN)
    assert contents(RUN) == there


@pytest.mark.usefixtures("machines")
def test_who_waited_on_another_machine_has_the_lock_that_counts() -> None:
    """And not the one that went with who had it."""
    test_who_waited_while_another_removed_its_lock_or_folder_has_one_of_its_own(RUN)


def test_a_folder_that_was_made_goes_where_open_files_stay_until_they_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unlink, close, left = Path.unlink, os.close, Path("both/new/.nfs0000")

    def close_and_forget(descriptor: int) -> None:
        is_it = left.exists() and os.path.samestat(left.stat(), os.fstat(descriptor))
        close(descriptor)
        if is_it:
            unlink(left)

    monkeypatch.setattr(Path, "unlink", lambda path: path.rename(left))
    monkeypatch.setattr(os, "close", close_and_forget)
    with claimed(left.parent):
        pass
    assert not Path("both").exists()


def test_the_lock_of_a_run_that_took_the_place_is_left_alone() -> None:
    with claimed(RUN):
        RUN.rename("elsewhere")
        RUN.mkdir()
        (RUN / LOCK).touch()
    assert (RUN / LOCK).exists()


def test_where_there_are_no_locks_a_run_begins_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on NFS without its lock service: two trained in one directory, and nothing had told."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    said: list[str] = []
    with claimed(RUN, said.append):
        assert said == [
            "nothing keeps a second `tx train` out of runs/tiny: locks are refused there (No locks available)"
        ]


def test_who_only_looks_keeps_nobody_from_training() -> None:
    """`tx runs` asks by the same lock whether somebody trains there."""
    descriptor = os.open(RUN, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    looking = threading.Timer(0.2, os.close, [descriptor])
    looking.start()
    with claimed(RUN):
        looking.join()
        assert is_training(RUN)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"a',
        '{"machine": 3}',
        '{"data": [1]}',
        '{"data": {"train": 3}}',
        '{"data": {"train": {"sha256": "0", "parts": 5}}}',
        '{"data": {"train": {"sha256": "0", "parts": [{}]}}}',
        '{"data": {"train": {"sha256": "0", "usual_sentences": "1"}}}',
        '{"versions": "2.0"}',
        '{"versions": [1]}',
        '{"scores": {"test": 5}}',
        '{"scores": {"test": {"scores": [{"name": "BLEU"}]}}}',
        '{"processes": "two"}',
        '{"seed": null}',
    ],
)
def test_a_damaged_record_is_a_damaged_run(text: str) -> None:
    """They ended in AttributeError and TypeError, or with the exit code of wrong text; one of them, in a list of runs,
    hid all others."""
    (RUN / "run.json").write_text(text, encoding="utf-8")
    for attempt in (lambda: train(settings(), RUN), lambda: read_record(RUN)):
        with pytest.raises(ModelError, match=r"run\.json"):
            attempt()
    (one,) = overviews(RUN)
    assert "run.json" in (one.trouble or "")


def test_the_same_text_may_lie_elsewhere_for_each_process() -> None:
    """A text in two files could; one by name, or one of several, could not."""
    here = load_config("tiny.yaml", ["data={train: a, valid: {source: b, target: c}, test: {x: d, y: e}}"])
    there = load_config("tiny.yaml", ["data={train: k, valid: {source: l, target: m}, test: {x: n, y: o}}", "seed=2"])
    facts = [json_line({"settings": one.model_dump(mode="json")}) for one in (here, there)]
    with pytest.raises(UsageError) as refused:
        check_alike(cast(World, SimpleNamespace(gather=lambda own: facts, is_main=True, size=2)), {})
    assert refused.value.message == "process 1 of 2 is not like process 0:\n  settings.seed: 2 there, 1 here"


def test_a_lost_record_is_said() -> None:
    (RUN / "run.json").unlink()
    warnings: list[str] = []
    train(settings(), RUN, listener=Listener(warn=warnings.append))
    assert any("run.json is missing" in line for line in warnings)


@pytest.mark.parametrize("lacking", [["train", "valid"], ["valid"]])
def test_a_record_that_lacks_only_a_text_says_so_and_notes_it_again(lacking: list[str]) -> None:
    """Whatever text there was in its place was taken without a word."""
    record = read_record(RUN)
    known = {name: text for name, text in record["data"].items() if name not in lacking}
    (RUN / "run.json").write_text(json.dumps(record | {"data": known}), encoding="utf-8")
    warnings: list[str] = []
    train(settings(), RUN, listener=Listener(warn=warnings.append))
    [said] = [line for line in warnings if "run.json" in line]
    names = " and ".join(f"data.{name}" for name in lacking)
    assert said == f"run.json does not say what {names} was: what there is now is not checked, and noted"
    assert read_record(RUN)["data"] == record["data"]
    train(settings(), RUN, listener=Listener(warn=warnings.append))
    assert len([line for line in warnings if "run.json" in line]) == 1


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl"])
def test_what_else_is_lost_is_said(name: str) -> None:
    """A run went on under other settings, or without its history, and nobody was told."""
    warnings: list[str] = []
    config = settings()
    (RUN / name).unlink()
    train(config, RUN, listener=Listener(warn=warnings.append))
    assert [line.split(":")[0] for line in warnings] == [f"{name} is missing"]
    assert (RUN / name).exists()


@pytest.mark.parametrize(("before", "now"), [("13a", "auto"), ("zh", "auto"), ("auto", "13a"), ("13a", "intl")])
def test_a_run_whose_default_was_another_tokenizer_of_bleu_goes_on_by_its_own_command(before: str, now: str) -> None:
    """All runs had 13a in their config.yaml. Who names one means it: scores of two do not compare."""
    own = settings().model_copy(update={"evaluation": EvaluationConfig(tokenize=before)})
    (RUN / "config.yaml").write_text(dump_config(own), encoding="utf-8")
    asked = settings().model_copy(update={"evaluation": EvaluationConfig(tokenize=now)})
    is_refused = pytest.raises(UsageError, match=f"tokenize: {before} in the run, {now} now")
    with nullcontext() if now == "auto" else is_refused:
        train(asked, RUN)


TOKENIZER_DEPENDS_ON = {
    "seed",
    *(f"tokenizer.{name}" for name in ("kind", "vocab_size", "joint", "model", "extend", "normalization")),
    *("tokenizer.byte_fallback", "tokenizer.character_coverage"),
    *(f"data.{name}" for name in ("source", "target", "tags", "phrasebook.n_pairs", "phrasebook.seed")),
    "data.phrasebook.reasons",
    "training.init_from",
}
"""And on the text, which is known by its hash."""


def without_checkpoints(run: Path) -> None:
    """As it was before it had saved any."""
    shutil.rmtree(run / "checkpoints")
    for pointer in POINTERS:
        (run / pointer).unlink(missing_ok=True)


@pytest.mark.parametrize("lost", ["checkpoints", "checkpoints/*/manifest.json"])
@pytest.mark.parametrize("left", [*POINTERS])
def test_a_run_whose_checkpoints_are_gone_does_not_begin_anew(lost: str, left: str) -> None:
    """Even as another model, and deleted what it had measured."""
    for pointer in {*POINTERS} - {left}:
        (RUN / pointer).unlink()
    for path in list(RUN.glob(lost)):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = contents(RUN)
    for call in (train, forecast):
        with pytest.raises(ModelError, match=f"{left} names a checkpoint, and .*{RUN.name} has none"):
            call(settings(training={"max_steps": 1}), RUN)
    assert contents(RUN) == before
    train(settings(training={"max_steps": 1}), RUN, overwrite=True)


def test_checkpoints_that_are_set_aside_are_not_called_gone() -> None:
    """The hint was to begin anew, and the next start puts them back."""
    (RUN / replacing.ASIDE).mkdir()
    (RUN / "checkpoints").rename(RUN / replacing.ASIDE / "checkpoints")
    forecast(settings(), RUN)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_before_there_is_a_checkpoint_all_may_change_that_a_tokenizer_does_not_depend_on() -> None:
    """`tokenizer.sampling` and `data.temperature` could not, which errors told to change once they had been noted."""
    without_checkpoints(RUN)
    own = settings()
    assert check_same(own, RUN).keys() == {"data"}
    check_same(own.model_copy(update={"model": own.model.model_copy(update={"n_layers": 3, "norm": "rms-norm"})}), RUN)
    refused = set()
    for key in flat(own.model_dump(exclude={"model"})):
        with suppress(UsageError):
            check_same(changed(own, key.split(".")), RUN)
            continue
        refused.add(key)
    assert refused == TOKENIZER_DEPENDS_ON


def changed(section: Any, path: list[str]) -> Any:
    """With another value of a setting, whatever it takes."""
    name, *inside = path
    value = changed(getattr(section, name), inside) if inside else ("another",)
    return section.model_copy(update={name: value})


def test_what_a_run_that_did_not_begin_noted_keeps_nobody_from_other_weights_or_another_validation() -> None:
    """Its texts were those of the failed start for ever, though only a tokenizer was there."""
    without_checkpoints(RUN)
    train_as = {"text": {"pairs": PAIRS}, "weight": 2.0}
    new = {"data": {"train": [train_as], "valid": {"pairs": PAIRS[:3]}}, "tokenizer": {"sampling": 0.1}}
    train(settings(**new, training={"max_steps": 1}), RUN)
    again = settings(**new | {"data": {"train": [train_as | {"weight": 3.0}]}}, training={"max_steps": 2})
    with pytest.raises(DataError, match=r"data\.train has no longer the weights"):
        train(again, RUN)


def test_a_model_that_cannot_sample_is_refused_before_anything_is_noted(tmp_path: Path) -> None:
    """It was in the first epoch; to follow the hint in the same directory was refused."""
    word = Path("word.model")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(side for pair in PAIRS for side in pair),
        model_prefix="word",
        model_type="word",
        vocab_size=40,
        hard_vocab_limit=False,
        pad_id=0,
        unk_id=1,
        bos_id=2,
        eos_id=3,
        minloglevel=2,
    )
    given = settings(tokenizer={"model": str(word), "sampling": 0.1}, training={"max_steps": 1})
    new = Path("new")
    for attempt in (train, forecast):
        with pytest.raises(ModelError, match="cannot sample") as caught:
            attempt(given, new)
        assert caught.value.hint == "set tokenizer.sampling to 0, or tokenizer.model to a model of kind bpe or unigram"
    another = settings(
        tokenizer={"model": str(RUN / "tokenizer" / "spm.model"), "sampling": 0.1}, training={"max_steps": 1}
    )
    train(another, new)
    plain = settings(tokenizer={"model": str(word), "sampling": 0.0}, training={"max_steps": 1})
    train(plain, new, overwrite=True)


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (("\nseed: 1", "\nseed: 7"), r"seed: 7 \(trained: 1\)"),
        (("activation: relu", "activation: gelu"), r"model.activation: gelu \(trained: relu\)"),
        (("source_eos: true", "source_eos: false"), r"data.source_eos: False \(trained: True\)"),
    ],
)
def test_settings_that_somebody_edited_are_to_be_restored_and_not_used(edit: tuple[str, str], named: str) -> None:
    """The hint was to continue with `--set seed=7`, or another shape of the model."""
    path, asked = RUN / "config.yaml", settings()
    before = path.read_text(encoding="utf-8")
    path.write_text(before.replace(*edit), encoding="utf-8")
    assert path.read_text(encoding="utf-8") != before
    for now in (asked, settings()):
        with pytest.raises(ModelError, match=named) as caught:
            train(now, RUN)
        assert caught.value.hint == "restore those settings; with others it is another run"


def test_a_seed_is_known_without_the_configuration() -> None:
    config = settings().model_copy(update={"seed": 7})
    (RUN / "config.yaml").unlink()
    with pytest.raises(UsageError, match="seed: 1 in the run, 7 now"):
        train(config, RUN)


@pytest.mark.parametrize(
    "rest", [b'{"event": "upd', b'{"event": {}\n', b'{"event": {}}\n', b"[]}\n", b"mine \xff", b"[" * 100_000]
)
def test_a_line_that_is_no_event_is_kept_aside_and_said(rest: bytes) -> None:
    """Half a line without its end was kept, and the next event written behind it; then they went without a word."""
    with (RUN / "metrics.jsonl").open("ab") as file:
        file.write(rest)
    warnings: list[str] = []
    train(settings(), RUN, listener=Listener(warn=warnings.append))
    lines = (RUN / "metrics.jsonl").read_text(encoding="utf-8").split("\n")
    assert [json.loads(line)["step"] for line in lines[:-1]][-1] == 152
    assert (RUN / "metrics.damaged").read_bytes() == rest.rstrip(b"\n") + b"\n"
    assert f"{RUN / 'metrics.jsonl'}: 1 line is no event, now kept in metrics.damaged" in warnings


@pytest.mark.parametrize(
    ("schedule", "warmup", "is_told"),
    [("linear", 1, True), ("warmup-stable-decay", 1, True), ("constant", "50%", True), ("inverse-sqrt", 1, False)],
)
def test_a_run_whose_end_was_moved_after_its_rate_had_fallen_is_no_result_of_its_configuration(
    schedule: str, warmup: int | str, is_told: bool
) -> None:
    def last(steps: int, **options: Any) -> RunConfig:
        return settings(training={"max_steps": steps, "schedule": schedule, "warmup_steps": warmup, **options})

    new = Path("new")
    train(last(2), new)
    train(last(2, log_every=7), new)
    assert "changed" not in read_record(new)
    train(last(3), new)
    assert read_record(new).get("changed") == ({"2": {"training.max_steps": 2}} if is_told else None)
    with pytest.raises(ModelError) as failure:
        scored(new)
    assert ("training.max_steps was 2 until update 2, and is 3" in failure.value.message) == is_told
    train(last(4), new)
    assert len(read_record(new).get("changed", {})) == 2 * is_told


def test_an_end_that_was_moved_and_moved_back_before_an_update_was_made_is_none() -> None:
    def last(steps: int) -> RunConfig:
        return settings(training={"max_steps": steps, "schedule": "linear", "warmup_steps": 1})

    new = Path("new")
    train(last(2), new)
    record = read_record(new) | {"changed": {"2": {"training.max_steps": 2}}}
    (new / "run.json").write_text(json.dumps(record))
    Path("new/config.yaml").write_text(dump_config(last(4)))
    assert check_same(last(5), new)["changed"] == {"2": {"training.max_steps": 2}}
    Path("new/config.yaml").write_text(dump_config(last(2)))
    with pytest.raises(ModelError, match="has no scores"):
        scored(new)


@pytest.mark.parametrize("schedule", ["linear", "inverse-sqrt"])
def test_a_finished_run_that_is_started_again_stays_as_it_was_trained(schedule: str) -> None:
    """What it was trained by became what the last command said, and its scores were those of other settings, of another
    number of processes and of another machine."""

    def last(steps: int, **options: Any) -> RunConfig:
        return settings(training={"max_steps": steps, "schedule": schedule, "warmup_steps": 1, **options})

    new = Path("new")
    train(last(3, patience=9), new)
    then = {"versions": {"torch": "1.0"}, "processes": 4, "command": ["tx"], "machine": read_record(new)["machine"]}
    (new / "run.json").write_text(json.dumps(read_record(new) | then | {"steps": 2, "finished": None}))
    moved = last(2, patience=1).model_copy(update={"name": "moved", "device": "cpu", "deterministic": True})
    assert train(moved, new).was_finished
    config, record = load_config(new / "config.yaml"), read_record(new)
    assert (config.training.max_steps, config.training.patience, config.deterministic) == (3, 9, False)
    assert (config.name, config.device) == ("moved", settings().device)
    assert then.items() <= record.items()
    assert (record["steps"], record["finished"]) == (3, "max_steps 3 reached")  # killed before that was written
    with pytest.raises(ModelError, match="has no scores"):
        scored(new)
    (new / "config.yaml").unlink()
    assert train(moved, new).was_finished
    assert load_config(new / "config.yaml").training.max_steps == 2  # nobody knows better


def test_more_epochs_of_the_same_schedule_are_no_other_training() -> None:
    new = Path("new")
    for epochs in (1, 2):
        train(settings(training={"max_steps": 900, "max_epochs": epochs, "schedule": "linear"}), new)
    assert "changed" not in read_record(new)
    with pytest.raises(ModelError, match="has no scores"):
        scored(new)


def test_of_a_directory_that_somebody_else_uses_too_only_what_was_named_is_removed(tmp_path):
    for folder in ("ours", "shared"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.npy").write_bytes(b"")
    (tmp_path / "shared" / "notes.npy.txt").write_bytes(b"mine")
    for folder in ("ours", "shared"):
        manifest.remove_only(tmp_path / folder, r"\w\.npy")
    assert not (tmp_path / "ours").exists()
    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["notes.npy.txt"]
