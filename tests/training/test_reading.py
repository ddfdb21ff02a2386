"""What is compressed is unpacked once on each machine, and is the same text to whoever unpacked it."""

from __future__ import annotations

import errno
import gzip
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from faults import Saboteur
from ranks import codes, start

from transformer_cli import files
from transformer_cli.cli.processes import run_all
from transformer_cli.config.data import DataConfig
from transformer_cli.config.run import RunConfig
from transformer_cli.data import text
from transformer_cli.data.corpus import Corpus, load_all
from transformer_cli.data.text import FileText, JoinedText
from transformer_cli.errors import DataError
from transformer_cli.training.listening import Listener
from transformer_cli.training.parallel import World, joined
from transformer_cli.training.reading import read_texts, used_texts

PAIRS = 30_000


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of files without names."""
    (folder := tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


def settings(**others: Any) -> DataConfig:
    """A text in two compressed files, of some blocks each."""
    for language, word in (("de", "Hund"), ("en", "dog")):
        lines = "".join(f"{word} {number}\r\n" for number in range(PAIRS))
        Path(f"text.{language}.gz").write_bytes(gzip.compress(lines.encode()))
    return DataConfig.model_validate({"train": "text", "valid": {"pairs": [["a", "b"]]}} | others)


def opened(texts: Mapping[str, Corpus]) -> str:
    """Which files the training text is read from."""
    return " ".join(
        str(os.fstat(part._file.descriptor).st_ino)
        for side in (texts["train"].source, texts["train"].target)
        for part in (side.parts if isinstance(side, JoinedText) else [side])
        if isinstance(part, FileText)
    )


def read(world: World, data: DataConfig) -> tuple[list[str], list[int]]:
    """By each process: which files its text is read from, and how many files it unpacked; where that is the right text,
    also once nobody else has the files open."""
    names, unpacking = list[str](), text._unpacking
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "_unpacking", lambda name: names.append(name) or unpacking(name))
        texts = read_texts(data, None, world)
    found = world.gather(opened(texts)), [int(n) for n in world.gather(str(len(names)))]
    if world.rank == 0:
        del texts
    world.wait()
    if world.rank:
        assert (texts["train"].source[-1], texts["train"].target[0]) == (f"Hund {PAIRS - 1}", "dog 0")
        assert texts["train"].sha256 == load_all(data)["train"].sha256
    return found


def all_end_well(n: int, action: Callable[[World], object], place: Path) -> None:
    def act(_: int) -> None:
        with joined("cpu") as world:
            action(world)

    assert codes(start(n, act, place), limit_s=60) == [0] * n


by_number = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="files of other processes are for Linux")


@by_number
def test_of_a_machine_the_first_process_unpacks_and_all_read_that(tmp_path: Path, temporary: Path) -> None:
    data = settings()

    def action(world: World) -> None:
        where, unpacked = read(world, data)
        assert len(set(where)) == 1
        assert len(set(where[0].split())) == 2
        assert unpacked == [2, 0, 0]

    all_end_well(3, action, tmp_path)
    assert left(temporary) == []


@by_number
def test_a_text_that_comes_again_is_unpacked_once(tmp_path: Path) -> None:
    data = settings(train=[{"text": "text", "both": True}, {"text": "text"}])

    def action(world: World) -> None:
        where, unpacked = read(world, data)
        assert len(set(where)) == 1
        assert (len(where[0].split()), len(set(where[0].split()))) == (6, 2)
        assert unpacked == [2, 0]

    all_end_well(2, action, tmp_path)


@by_number
def test_each_machine_has_files_of_its_own(tmp_path: Path) -> None:
    """Two in turns: a process of one sees none of the other's, or by that number another process."""
    data, stat = settings(), os.stat

    def action(world: World) -> None:
        os.environ["LOCAL_RANK"] = str(world.rank // 2)
        pids = world.gather(str(os.getpid()))
        strangers = dict.fromkeys(pids[1 - world.rank % 2 :: 2], pids[0] if world.rank == 1 else "none")

        def seen(path: Any, **options: Any) -> os.stat_result:
            parts = str(path).split("/")
            if parts[1:2] == ["proc"]:
                path = "/".join([*parts[:2], strangers.get(parts[2], parts[2]), *parts[3:]])
            return stat(path, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "stat", seen)
            where, unpacked = read(world, data)
        assert where[0] == where[2]
        assert where[1] == where[3]
        assert not set(where[0].split()) & set(where[1].split())
        assert unpacked == [2, 2, 0, 0]

    all_end_well(4, action, tmp_path)


def refused(path: Any, *others: Any, **named: Any) -> Any:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


def missing(path: Any, *others: Any, **named: Any) -> Any:
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def something_else(path: Any, *others: Any, **named: Any) -> os.stat_result:
    return os.lstat("text.de.gz")


@by_number
@pytest.mark.parametrize(("call", "says"), [("open", refused), ("stat", missing), ("stat", something_else)])
def test_a_process_that_may_not_open_those_unpacks_by_itself(
    call: str, says: Callable[..., Any], tmp_path: Path
) -> None:
    """Of another user, in a container of its own, or on a system without /proc; a process of that number may be any."""
    data, real = settings(), getattr(os, call)

    def action(world: World) -> None:
        def asked(path: Any, *others: Any, **named: Any) -> Any:
            if world.rank == 1 and str(path).startswith("/proc/"):
                return says(path, *others, **named)
            return real(path, *others, **named)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, call, asked)
            where, unpacked = read(world, data)
        assert where[0] == where[2]
        assert not set(where[0].split()) & set(where[1].split())
        assert unpacked == [2, 2, 0]

    all_end_well(3, action, tmp_path)


def test_a_text_at_another_place_is_not_taken_for_the_same(tmp_path: Path) -> None:
    """Names are relative to the folder of each process, and need not be Unicode."""
    data = settings()
    Path(elsewhere := os.fsdecode(b"\xe4")).mkdir()
    for language in ("de", "en"):
        Path(elsewhere, f"text.{language}.gz").write_bytes(gzip.compress(b"another one\n"))

    def action(world: World) -> None:
        if world.rank == 0:
            os.chdir(elsewhere)
        texts = read_texts(data, None, world)
        assert world.gather(texts["train"].source[0]) == ["another one", "Hund 0"]

    all_end_well(2, action, tmp_path)


@pytest.mark.parametrize("has_it", [0, 1])
def test_processes_meet_also_where_one_has_the_texts_already(has_it: int, tmp_path: Path) -> None:
    """As of a dry run."""
    data = settings()

    def action(world: World) -> None:
        texts = read_texts(data, load_all(data) if world.rank == has_it else None, world)
        assert len(set(world.gather(texts["train"].sha256))) == 1

    all_end_well(2, action, tmp_path)


def test_a_process_alone_reads_while_it_unpacks(monkeypatch: pytest.MonkeyPatch) -> None:
    data = settings()
    monkeypatch.setattr("transformer_cli.training.reading.unpack", refused)
    assert read_texts(data, None, World())["train"].source[1] == "Hund 1"


def test_one_process_looks_for_what_is_suspicious_and_refuses_it_for_all(tmp_path: Path) -> None:
    """By --strict each of them looked through all of the text."""
    pairs = [["der Hund schläft", "the dog sleeps"], ["die Katze schläft", "the cat sleeps"]]

    def ended(valid: list[list[str]]) -> tuple[list[int], str]:
        data = {"train": {"pairs": pairs}, "valid": {"pairs": valid}, "source": "de", "target": "en"}
        config = RunConfig.model_validate({"data": data})

        def act(rank: int) -> None:
            with pytest.MonkeyPatch.context() as patch, joined("cpu") as world:
                if rank:
                    patch.setattr("transformer_cli.training.reading.check_all", refused)
                used_texts(config, None, world, Listener(), is_new=True, is_strict=True)
                world.wait()

        return codes(start(2, act, tmp_path), limit_s=30), (tmp_path / "0").read_text()

    found, said = ended([["wo ist er", "where is he"]])
    assert found == [0, 0]
    assert "suspicious" not in said
    found, said = ended(pairs[:1])
    assert found == [3, 3]
    assert "the text is suspicious:\n  valid, pairs that train has, too: 1" in said


@pytest.mark.parametrize("is_small", [True, False])
def test_what_is_left_out_or_changed_is_said_once(is_small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a small text it was said twice: as suspicious, and in other words once more."""
    if not is_small:
        monkeypatch.setattr("transformer_cli.data.checks.AT_ONCE", 2)
    for side, first in (("de", b"\xef\xbb\xbf"), ("en", b"")):
        Path(f"odd.{side}").write_bytes(first + b"one\n" + (b"\n" if side == "de" else b"two\n") + b"three\n")
        Path(f"valid.{side}").write_bytes(f"{side} four\r\n".encode())
    data = {"train": "odd", "valid": "valid", "source": "de", "target": "en"}

    def said(is_new: bool, is_strict: bool = False) -> str:
        config, lines = RunConfig.model_validate({"data": data}), list[str]()
        used_texts(config, None, World(), Listener(warn=lines.append), is_new=is_new, is_strict=is_strict)
        return "\n".join(lines)

    for is_new in (True, False):
        found = said(is_new)
        for reason in ("empty source", "byte order mark removed", "carriage return stripped"):
            assert found.count(reason) == 1, found
        is_listed = "\n  train, empty source: 1 (line 2), left out\n" in found
        assert (is_listed, "left out of the training text: 1 empty source" in found) in ((True, False), (False, True))
        assert is_listed == (is_new and is_small)
    with pytest.raises(DataError) as failure:
        said(True, is_strict=True)
    assert str(failure.value).count("empty source") == 1


@pytest.mark.parametrize("who", [0, 1])
def test_what_is_wrong_ends_all_with_its_words(who: int, tmp_path: Path, temporary: Path) -> None:
    """Of whoever unpacks: another machine's first process, too, is heard."""
    data = settings()
    damaged = Path("text.en.gz").read_bytes()[:-5]
    Path("text.en.gz").unlink()

    def ended(action: Callable[[int], object]) -> tuple[list[int], str]:
        def act(rank: int) -> None:
            os.environ["LOCAL_RANK"] = "0"
            with joined("cpu") as world:
                action(rank)
                read_texts(data, None, world)
                world.wait()

        found = codes(start(2, act, tmp_path), limit_s=30)
        return found, (tmp_path / "0").read_text()

    def full(rank: int) -> None:
        if rank == who:
            files.disk = Saboteur(1, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    by = "process 1 of 2: " if who else ""
    found, said = ended(lambda _: None)
    assert found == [3, 3]
    assert said.startswith("text.en does not exist")
    Path("text.en.gz").write_bytes(damaged)
    found, said = ended(lambda _: None)
    assert found == [3, 3]
    assert "text.en.gz is damaged: Compressed file ended before" in said
    settings()
    found, said = ended(full)
    assert found == [5, 5]
    assert f"{by}text.de.gz cannot be unpacked into {temporary}: {os.strerror(errno.ENOSPC)} (" in said
    assert left(temporary) == []


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="shows what a process has open")
def test_two_processes_of_a_command_train_from_the_same_files_and_leave_none(
    warm: list[str], tmp_path: Path, temporary: Path, trained_run: Path
) -> None:
    settings()
    (tmp_path / "x.yaml").write_text((trained_run / "config.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    options = {"training.max_steps": 100_000, "training.log_every": 1, "data.train": "text"}
    command = [*warm, "train", "-c", "x.yaml", "--run-dir", "run", *(f"--set={k}={v}" for k, v in options.items())]
    (launcher,) = start(1, lambda _: os._exit(run_all(2, command)), tmp_path)
    end = time.monotonic() + 60
    while not Path("run/metrics.jsonl").exists() and time.monotonic() < end:
        time.sleep(0.05)
    found = unnamed(temporary)
    os.kill(launcher, signal.SIGTERM)
    assert codes([launcher], limit_s=60) == [143], (tmp_path / "0").read_text()
    assert len(found) == 2, "of processes"
    first, second = found.values()
    assert len(first) == 2, "of files"
    assert first == second
    assert unnamed(temporary) == {}
    assert left(temporary) == []


def left(folder: Path) -> list[Path]:
    """The files in it; PyTorch makes a folder."""
    return [path for path in folder.rglob("*") if path.is_file()]


def unnamed(folder: Path) -> dict[str, set[int]]:
    """The files without a name that were in this folder, by number of whoever has some open."""
    found: dict[str, set[int]] = {}
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(link).startswith(str(folder)):
                found.setdefault(link.parts[2], set()).add(os.stat(link).st_ino)
        except OSError:  # it has ended, or is another user's
            continue
    return found
