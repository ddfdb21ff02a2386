"""The I/O seam: what is written is whole or absent, whatever fails and wherever the process dies."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import faults
import pytest
from faults import Killer, Saboteur

from transformer_cli import files, trouble
from transformer_cli.errors import DataError, ModelError, ResourceError
from transformer_cli.trouble import hint_of


def write_new_file(folder):
    files.write_text(folder / "x.txt", "new\n" * 3)


def fill_new_directory(folder):
    with files.atomic_directory(folder / "d") as aside:
        with files.create_file(aside / "a") as file:
            file.write(b"a" * 10)
        (aside / "inner").mkdir()
        (aside / "inner" / "b").write_bytes(b"b")


def failure_of(action):
    try:
        action()
    except ResourceError as error:
        return error
    return None


def content(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


WRITERS = {
    "file": (write_new_file, {"x.txt": b"old"}, {"x.txt": b"new\n" * 3}),
    "directory": (fill_new_directory, {}, {"d/a": b"a" * 10, "d/inner/b": b"b"}),
}


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("writer", WRITERS)
def test_whichever_operation_fails_the_result_is_old_or_new_and_the_error_names_the_path(
    tmp_path, monkeypatch, writer, number
):
    write, old, new = WRITERS[writer]
    failures = 0
    for nth in range(1, 100):
        folder = tmp_path / str(nth)
        folder.mkdir()
        for name, data in old.items():
            (folder / name).write_bytes(data)
        saboteur = Saboteur(nth, OSError(number, os.strerror(number)))
        monkeypatch.setattr(files, "disk", saboteur)
        error = failure_of(lambda folder=folder: write(folder))
        if error is None:
            assert content(folder) == new
            assert not saboteur.struck
            break
        failures += 1
        assert str(folder) in error.message
        assert os.strerror(number) in error.message
        assert content(folder) in (old, new)
    assert failures == saboteur.count >= 4


@pytest.mark.parametrize("writer", WRITERS)
def test_a_process_that_dies_at_any_operation_leaves_the_old_or_the_new_and_sweepings(tmp_path, writer):
    write, old, new = WRITERS[writer]
    for nth in range(1, 100):
        folder = tmp_path / str(nth)
        folder.mkdir()
        for name, data in old.items():
            (folder / name).write_bytes(data)
        died = Killer(nth).run(lambda folder=folder: write(folder))
        swept = files.sweep(folder)
        assert content(folder) in (old, new)
        assert all(name.startswith((files.ASIDE, files.DOOMED)) for name in swept)
        if not died:
            break
    assert nth > 4
    assert content(folder) == new


def test_faults_that_happened_are_counted_in_every_process(tmp_path, monkeypatch):
    """What the tests say at their end."""
    counted = tmp_path / "counted"
    counted.touch()
    monkeypatch.setenv(faults.COUNTED, str(counted))
    assert faults.noted(counted) == ""
    for nth in (2, 1, 1000):
        monkeypatch.setattr(files, "disk", Saboteur(nth, OSError(errno.EIO, os.strerror(errno.EIO))))
        failure_of(lambda: files.write_text(tmp_path / "x", "y"))
        monkeypatch.undo()
        monkeypatch.setenv(faults.COUNTED, str(counted))
    for nth in (1, 1000):
        Killer(nth).run(lambda: files.write_text(tmp_path / "x", "y"))
    assert faults.noted(counted) == "3 faults happened: 2 EIO, 1 killed"


@pytest.mark.parametrize("open_something", [files.atomic_file, files.atomic_directory])
def test_an_error_in_the_block_leaves_nothing_behind(tmp_path, open_something):
    def fail_half_way():
        with open_something(tmp_path / "x") as opened:
            if isinstance(opened, Path):
                (opened / "half").write_bytes(b"half")
            else:
                opened.write(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        fail_half_way()
    assert list(tmp_path.iterdir()) == []


def test_short_writes_still_write_everything(tmp_path, monkeypatch):
    class Dribble(files.Disk):
        def write(self, descriptor, data):
            return os.write(descriptor, data[:7])

    monkeypatch.setattr(files, "disk", Dribble())
    data = bytes(range(256)) * 9
    with files.atomic_file(tmp_path / "x") as file:
        file.write(data)
    assert (tmp_path / "x").read_bytes() == data


def test_every_byte_is_on_the_disk_before_the_rename_and_the_name_after_it(tmp_path, monkeypatch):
    log = []

    class Recorder(files.Disk):
        def write(self, descriptor, data):
            log.append(("write", os.fstat(descriptor).st_ino))
            return super().write(descriptor, data)

        def sync(self, descriptor):
            log.append(("sync", os.fstat(descriptor).st_ino))
            super().sync(descriptor)

        def rename(self, old, new):
            log.append(("rename", old.stat().st_ino))
            super().rename(old, new)

    monkeypatch.setattr(files, "disk", Recorder())
    files.write_text(tmp_path / "x", "text")
    file, folder = (tmp_path / "x").stat().st_ino, tmp_path.stat().st_ino
    assert log == [("write", file), ("sync", file), ("rename", file), ("sync", folder)]

    log.clear()
    fill_new_directory(tmp_path)
    rename = log.index(("rename", (tmp_path / "d").stat().st_ino))
    synced_before = {number for what, number in log[:rename] if what == "sync"}
    assert synced_before >= {p.stat().st_ino for p in [tmp_path / "d", *(tmp_path / "d").rglob("*")]}
    assert log[rename + 1 :] == [("sync", folder)]


def test_the_real_disk_flushes_the_file_and_then_its_directory(tmp_path, monkeypatch):
    """The order is held on the seam above; that the seam asks the operating system, here."""
    flushed, fsync = [], os.fsync

    def noted(descriptor):
        flushed.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    files.write_text(tmp_path / "a", "text")
    assert flushed == [(tmp_path / "a").stat().st_ino, tmp_path.stat().st_ino]


@pytest.mark.parametrize("failure", [None, OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))])
def test_where_the_system_keeps_a_flush_from_the_disk_the_disk_is_asked_itself(tmp_path, monkeypatch, failure):
    """macOS does; a disk of a server there knows only the ordinary way."""
    asked = []

    def fully(descriptor, number):
        asked.append((number, os.fstat(descriptor).st_ino))
        if failure:
            raise failure

    monkeypatch.setattr(os, "fsync", lambda descriptor: asked.append(("fsync", os.fstat(descriptor).st_ino)))
    monkeypatch.setattr("fcntl.fcntl", fully)
    monkeypatch.setattr("transformer_cli.descriptor.FULLY", 51)
    files.write_text(tmp_path / "a", "text")
    places = [path.stat().st_ino for path in (tmp_path / "a", tmp_path)]
    assert asked == [(how, place) for place in places for how in (51, "fsync")[: 2 if failure else 1]]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM, errno.EIO])
def test_a_directory_that_knows_no_flushing_is_none_that_fails(tmp_path, monkeypatch, number):
    class NoFlushing(files.Disk):
        def sync(self, descriptor: int) -> None:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files, "disk", NoFlushing())
    error = failure_of(lambda: files.write_text(tmp_path / "a", "text"))
    assert (error is not None) == (number == errno.EIO)
    assert (tmp_path / "a").read_text() == "text"


def test_a_file_that_outgrows_the_limit_of_the_system_is_an_error_and_not_half_a_file(tmp_path):
    """RLIMIT_FSIZE is a real fault of the kernel, not one of ours."""
    program = f"""
import resource, signal
from transformer_cli import files
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    files.write_text({str(tmp_path / "x")!r}, "a" * 5000)
except files.ResourceError as error:
    print(error.message)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f"cannot write {tmp_path / 'x'}: File too large\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "words"), [("file/x", "file: it is a file, not a dir"), ("n" * 300, "File name too long")]
)
def test_a_place_that_cannot_be_written_says_why(tmp_path, name, words):
    (tmp_path / "file").write_bytes(b"")
    path = tmp_path / name
    with pytest.raises(ResourceError, match=words) as caught:
        files.write_text(path, "text")
    assert caught.value.hint
    assert caught.value.exit_code == 5


def test_a_directory_is_refused_before_the_work_that_would_fill_the_file(tmp_path):
    """`tx translate -i long.de -o FOLDER` translated everything, then said "Is a directory"."""
    with pytest.raises(ResourceError, match="it is a directory"), files.atomic_file(tmp_path):
        pytest.fail("the work began")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["file/x", "file/x/y", "link/x", "link"])
def test_a_directory_that_could_not_be_made_is_known_without_writing(tmp_path, name):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to("nowhere")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ResourceError) as told:
        files.check_directory(tmp_path / name)
    with pytest.raises(ResourceError) as refused:
        files.make_directory(tmp_path / name)
    assert told.value.message == refused.value.message
    assert str(tmp_path / name.split("/")[0]) in told.value.message
    assert told.value.hint == refused.value.hint == "choose another directory, or move that away"
    files.check_directory(tmp_path / "new" / "x")
    assert sorted(tmp_path.iterdir()) == before


def test_a_directory_that_may_not_be_written_into_is_known_without_writing(tmp_path, monkeypatch):
    """root may write everywhere."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ResourceError, match=f"cannot write {tmp_path}: Permission denied"):
        files.check_directory(tmp_path / "x")


def test_what_only_its_owner_may_replace_in_a_directory_of_everybody_is_known_without_writing(tmp_path, monkeypatch):
    """As in /tmp; whoever translated for an hour heard it at the end."""
    (tmp_path / "x").write_text("theirs")
    tmp_path.chmod(0o1777)
    files.check_file(tmp_path / "x")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    files.check_file(tmp_path / "y")
    with pytest.raises(ResourceError, match="/x: it is somebody else's, who alone may replace it there") as told:
        files.check_file(tmp_path / "x")
    assert told.value.hint == "name another file"
    tmp_path.chmod(0o777)
    files.check_file(tmp_path / "x")


def test_a_file_that_is_mounted_by_itself_is_known_without_writing(tmp_path, monkeypatch):
    """As by `docker run -v $PWD/out:/out`: everything was translated, and then nobody could give it its name."""
    place, beside = tmp_path / "an out", tmp_path / "beside"
    for path in (place, beside):
        path.write_text("before")
    mounted = str(place.resolve()).replace(" ", "\\040")
    (tmp_path / "mounts").write_text(
        f"1 2 0:3 / / rw - x y rw\n70 63 254:0 /x {mounted} rw,relatime - ext4 /dev/vda rw\n"
    )
    monkeypatch.setattr(trouble, "MOUNTS", tmp_path / "mounts")
    with pytest.raises(ResourceError, match="it is mounted there by itself, and cannot be replaced") as told:
        files.check_file(place)
    assert told.value.hint == "name another file"
    files.check_file(beside)
    files.check_file(tmp_path / "new")


def test_a_file_that_is_write_protected_is_not_replaced(tmp_path, monkeypatch):
    """As a shell refuses to; root, and whoever may write, replaces it."""
    (tmp_path / "x").write_text("before")
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(tmp_path / "x") and real(path, mode))
    with pytest.raises(ResourceError, match="it is write-protected"), files.atomic_file(tmp_path / "x"):
        pytest.fail("there is nothing to be done")
    assert (tmp_path / "x").read_text() == "before"
    files.check_file(tmp_path / "y")


def test_a_directory_of_a_file_system_that_is_read_only_is_named_as_such(tmp_path, monkeypatch):
    """No permission that anybody could give would help."""
    real = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(
        os, "statvfs", lambda path: os.statvfs_result([*real[:8], real.f_flag | os.ST_RDONLY, *real[9:]])
    )
    with pytest.raises(ResourceError, match=f"cannot write {tmp_path}: Read-only file system") as told:
        files.check_directory(tmp_path / "x")
    assert told.value.hint == "that file system is read-only: choose another directory"
    (tmp_path / "x").touch()
    with pytest.raises(ResourceError, match=f"cannot write {tmp_path}: Read-only"):  # not that of this file
        files.check_file(tmp_path / "x")


def test_a_full_disk_is_named_with_the_room_that_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "disk", Saboteur(1, OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(ResourceError, match=r"No space left on device \([0-9,]+ bytes free\)") as caught:
        files.write_text(tmp_path / "x", "text")
    assert "free some space" in caught.value.hint


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EIO, "`dmesg`"),
        (errno.ESTALE, "the server no longer has that file"),
        (errno.ETIMEDOUT, "the server of that disk does not answer"),
        (errno.EHOSTDOWN, "the server of that disk does not answer"),
        (errno.ENOLINK, "mount it again"),
        (errno.ENOTCONN, "mount it again"),
    ],
)
def test_of_a_disk_that_fails_whatever_is_asked_of_it_it_is_said_what_to_do(tmp_path, monkeypatch, number, words):
    failure = OSError(number, os.strerror(number))
    monkeypatch.setattr(files, "disk", Saboteur(1, failure))
    with pytest.raises(ResourceError, match=os.strerror(number)) as refused:
        files.write_text(tmp_path / "x", "text")
    assert words in refused.value.hint
    assert hint_of(failure, reads=True) == refused.value.hint
    told = files.unreadable(tmp_path / "x", failure, error=ModelError, hint="restore it")
    assert isinstance(told, ResourceError)  # of a run that may be whole
    assert told.hint == refused.value.hint


@pytest.mark.parametrize(
    ("number", "words"), [(errno.EDQUOT, "quota"), (errno.EROFS, "read-only"), (errno.EACCES, "you may not write")]
)
def test_what_to_do_where_writing_is_refused_is_not_said_of_reading(tmp_path, monkeypatch, number, words):
    failure = OSError(number, os.strerror(number))
    monkeypatch.setattr(files, "disk", Saboteur(1, failure))
    with pytest.raises(ResourceError) as refused:
        files.write_text(tmp_path / "x", "text")
    assert words in refused.value.hint
    assert words not in (hint_of(failure, reads=True) or "")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM], ids=os.strerror)
def test_what_may_not_be_read_need_not_be_made_anew(tmp_path, number):
    """It was to be restored from a copy."""
    told = files.unreadable(tmp_path / "x", OSError(number, os.strerror(number)), error=ModelError, hint="restore it")
    assert isinstance(told, ModelError)
    assert told.hint == "you may not read it: ask its owner, or change the permissions if you are"


def test_control_characters_of_a_path_do_not_reach_the_terminal(tmp_path):
    with pytest.raises(DataError) as caught:
        files.read_text(tmp_path / "a\x1b[31m\nb")
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "does not exist"),
        (b"\xff\xfe", "is not UTF-8: byte 0"),
        (b"{", "is not JSON: line 1, column 2"),
        (b"[" * 100_000, "is not JSON"),
        (b"1" * 10_000, "is not JSON"),
    ],
)
def test_reading_what_is_missing_or_damaged_raises_the_kind_of_error_that_the_caller_names(tmp_path, data, words):
    path = tmp_path / "x.json"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ModelError, match=words) as caught:
        files.read_json(path, error=ModelError, hint="train again")
    assert "x.json" in caught.value.message
    assert caught.value.hint == "train again"


def test_reading_a_directory_or_a_pipe_is_an_error_and_does_not_wait(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(DataError, match="is not a file"):
            files.read_bytes(path)


def test_text_and_json_come_back_as_they_were(tmp_path):
    text = "a\r\nb\u2028c\x00ü\r"
    files.write_text(tmp_path / "t", text)
    assert files.read_text(tmp_path / "t") == text
    files.write_json(tmp_path / "j", {"ü": [1, 1e-4, None, text]})
    assert files.read_json(tmp_path / "j") == {"ü": [1, 1e-4, None, text]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(tmp_path / "j", float("nan"))
    assert json.loads((tmp_path / "j").read_text("utf-8"))["ü"][0] == 1


def test_a_line_of_json_has_null_where_a_number_is_not_finite():
    value = {"a": [math.inf, 1.5, (-math.inf, {"b": math.nan})], "ü": True, "c": None}
    line = files.json_line(value)

    def refuse(constant: str):
        raise AssertionError(constant)

    assert json.loads(line, parse_constant=refuse) == {
        "a": [None, 1.5, [None, {"b": None}]],
        "ü": True,
        "c": None,
    }
    assert '"ü": true' in line


def test_sha256_is_that_of_the_empty_file_where_the_file_is_empty(tmp_path):
    (tmp_path / "x").write_bytes(b"")
    expected = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # FIPS 180-4
    assert files.sha256(tmp_path / "x") == expected


def test_new_files_get_the_rights_that_the_user_asked_for(tmp_path):
    before = os.umask(0o027)
    try:
        files.write_text(tmp_path / "x", "text")
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640


def test_removing_a_tree_follows_no_link_and_sweeping_touches_nothing_else(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"")
    run = tmp_path / "run"
    run.mkdir()
    (run / "link").symlink_to(outside)
    files.remove(run)
    files.remove(run)
    left = f"{files.ASIDE}x-0123abcd"
    (tmp_path / left).symlink_to(outside)
    (tmp_path / f"{files.ASIDE}mine").write_bytes(b"")
    assert files.sweep(tmp_path) == [left]
    assert content(tmp_path) == {"outside/kept": b"", f"{files.ASIDE}mine": b""}


class NetworkDisk(files.Disk):
    """NFS: what is deleted while somebody has it open stays beside, under a name of the system's, and busy."""

    def __init__(self, *in_use: str) -> None:
        self.in_use = in_use

    def remove_file(self, path: Path) -> None:
        if self.in_use and path.name.startswith(".nfs"):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        if path.name in self.in_use:
            path.rename(path.with_name(f".nfs0000{path.name}"))
        else:
            path.unlink()


def test_what_somebody_has_open_on_a_server_goes_when_it_is_closed_and_stops_nobody(tmp_path, monkeypatch):
    """A training ended where its oldest checkpoint was open, and could not begin beside what was left of it."""
    for name in ("a", "in use", "z"):
        files.write_text(tmp_path / "run" / "step-1" / name, name)
    monkeypatch.setattr(files, "disk", NetworkDisk("in use"))
    files.remove(tmp_path / "run" / "step-1")
    [left] = (tmp_path / "run").iterdir()
    for _ in range(2):
        assert left.name.startswith(f"{files.DOOMED}step-1-")
        assert content(left) == {".nfs0000in use": b"in use"}
        assert files.sweep(tmp_path / "run") == []
    monkeypatch.setattr(files, "disk", NetworkDisk())
    assert files.sweep(tmp_path / "run") == [left.name]
    assert list((tmp_path / "run").iterdir()) == []


def test_what_a_server_was_asked_twice_to_delete_is_deleted(tmp_path, monkeypatch):
    """It said the second time that there is no such file, which ended a training."""

    class Twice(files.Disk):
        def remove_file(self, path: Path) -> None:
            path.unlink()
            path.unlink()

        def remove_directory(self, path: Path) -> None:
            path.rmdir()
            path.rmdir()

    files.write_text(tmp_path / "run" / "step-1" / "a", "a")
    files.write_text(tmp_path / f"{files.ASIDE}x-0123abcd", "a")
    monkeypatch.setattr(files, "disk", Twice())
    files.remove(tmp_path / "run")
    assert files.sweep(tmp_path) == [f"{files.ASIDE}x-0123abcd"]
    assert list(tmp_path.iterdir()) == []


def test_another_reason_not_to_delete_is_an_error(tmp_path, monkeypatch):
    for number in (errno.EIO, errno.EACCES, errno.EROFS):
        files.write_text(tmp_path / "x" / "a", "a")
        monkeypatch.setattr(files, "disk", Saboteur(2, OSError(number, os.strerror(number))))  # renamed first
        with pytest.raises(ResourceError, match=f"cannot remove {tmp_path}/x: {os.strerror(number)}"):
            files.remove(tmp_path / "x")
        monkeypatch.setattr(files, "disk", files.Disk())


def test_the_seam_is_free_of_heavy_imports():
    heavy = {"torch", "numpy", "sentencepiece", "sacrebleu", "rich"}
    program = f"import sys, transformer_cli.files; sys.exit(bool({heavy!r} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_what_replaces_a_file_has_its_permissions(tmp_path):
    """`chmod 600 x; tx translate -o x` used to leave 644."""
    (tmp_path / "x").write_text("old")
    (tmp_path / "x").chmod(0o600)
    with files.atomic_file(tmp_path / "x") as file:
        file.write(b"new")
        file.flush()
        [aside] = tmp_path.glob(f"{files.ASIDE}*")
        assert aside.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "x").read_bytes() == b"new"


def test_a_name_that_is_not_utf8_is_json_like_any_other(tmp_path):
    """Written below a folder named in Latin-1, the record of an imported model was a bug of ours."""
    name = os.fsdecode(b"caf\xe9/\xf0\x9f")
    files.write_json(tmp_path / "a", {"from": name})
    assert files.read_json(tmp_path / "a") == {"from": name}
    line = files.json_line({"run": name, "text": "käse"})
    assert json.loads(line) == {"run": name, "text": "käse"}
    assert line.encode("utf-8") == b'{"run": "caf\\udce9/\\udcf0\\udc9f", "text": "k\xc3\xa4se"}'


@pytest.mark.parametrize("name", ["x" * 255, "\N{HIRAGANA LETTER A}" * 85, "x" * 242])
def test_a_name_as_long_as_file_systems_take_is_written_replaced_and_removed(tmp_path, name):
    """What is written aside has a longer name: from 242 bytes on, nothing could be written."""
    for text in ("a", "b"):
        files.write_text(tmp_path / name, text)
        assert content(tmp_path) == {name: text.encode()}
    files.remove(tmp_path / name)
    with files.atomic_directory(tmp_path / name) as place:
        (place / "a").write_bytes(b"a")
    assert content(tmp_path) == {f"{name}/a": b"a"}


def test_a_name_of_any_length_is_told_whole(tmp_path, monkeypatch):
    for name in ("x", "\N{HIRAGANA LETTER A}" * 85):
        monkeypatch.setattr(files, "disk", Saboteur(2, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        with pytest.raises(ResourceError, match=re.escape(f"cannot write {tmp_path}/{name}: ")):
            files.write_text(tmp_path / name, "a")
        assert content(tmp_path) == {}
