"""What is compiled, kept and done without."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock, patch

import pytest
from compiling import needs_compiler

import transformer_cli as tx
from transformer_cli import compiler
from transformer_cli.cli import failures
from transformer_cli.cli.app import main
from transformer_cli.compiler import library
from transformer_cli.config.run import RunConfig
from transformer_cli.errors import Interrupted
from transformer_cli.machine import begin_or_resume, decide, settle
from transformer_cli.model.compiled import code, code_to_keep
from transformer_cli.model.compiled_steps import OneCall

CODE = 'extern "C" int answer() { return 42; }\n'
LOOP = """extern "C" int answer() {
    int sum = 0;
#pragma omp parallel for reduction(+ : sum)
    for (int i = 0; i < 42; i++) sum++;
    return sum;
}
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "code.cpp").write_text(CODE, encoding="utf-8")
    return folder


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often the compiler compiled."""
    script, log = tmp_path / "compiler with a space", tmp_path / "log"
    found = shlex.join(compiler._command())
    script.write_text(f'#!/bin/sh\n[ "$1" = -shared ] && echo >> "{log}"\nexec {found} "$@"\n', encoding="utf-8")
    script.chmod(0o700)
    monkeypatch.setenv("CXX", f'"{script}"')
    return lambda: len(log.read_bytes()) if log.exists() else 0


def fresh(source: Path) -> compiler.Library:
    """As another process finds it."""
    library.cache_clear()
    return library(source)


@needs_compiler
def test_it_is_compiled_once(source: Path, calls: Callable[[], int]) -> None:
    assert [fresh(source).loaded.answer() for _ in range(3)] == [42, 42, 42]
    assert calls() == 1
    (source / "code.cpp").write_text(CODE.replace("42", "43"), encoding="utf-8")
    assert fresh(source).loaded.answer() == 43
    assert calls() == 2


@needs_compiler
def test_for_another_processor_it_is_compiled_anew(
    source: Path, calls: Callable[[], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home may be that of several machines; what one can, another may die of."""
    fresh(source)
    about = tmp_path / "cpuinfo"
    about.write_text("processor : 0\nmodel name : another\nflags : fpu avx2\n\nprocessor : 1\n", encoding="utf-8")
    monkeypatch.setattr(compiler, "PROCESSOR", about)
    fresh(source)
    assert calls() == 2
    about.write_text("processor : 0\nmodel name : another\nflags : fpu avx2 avx512f\n\n", encoding="utf-8")
    fresh(source)
    assert calls() == 3


@needs_compiler
@pytest.mark.parametrize(
    "damage", [lambda b: b"", lambda b: b[:100], lambda b: b[:5000], lambda b: b[:900] + b"x" + b[901:]]
)
def test_what_is_damaged_is_made_anew(
    damage: Callable[[bytes], bytes], source: Path, calls: Callable[[], int], tmp_path: Path
) -> None:
    fresh(source)
    [kept] = (tmp_path / "cache" / "tx").iterdir()
    kept_bytes = kept.read_bytes()
    kept.unlink()  # it is open here, and what is open must not be changed
    kept.write_bytes(damage(kept_bytes))
    assert fresh(source).loaded.answer() == 42
    assert calls() == 2
    assert kept.read_bytes() == kept_bytes


@needs_compiler
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("of_another", ["file", "folder"])
def test_what_another_user_left_there_is_not_loaded(
    of_another: str, source: Path, calls: Callable[[], int], tmp_path: Path
) -> None:
    """A home may be a folder that is everybody's, such as /tmp."""
    fresh(source)
    [kept] = (tmp_path / "cache" / "tx").iterdir()
    os.chown(kept if of_another == "file" else kept.parent, 12345, -1)
    assert fresh(source).loaded.answer() == 42
    assert calls() == 2


@needs_compiler
@pytest.mark.parametrize("cache", ["a file", "/proc/nobody", "/dev/full"])
def test_where_nothing_can_be_kept_it_is_compiled_each_time(
    cache: str, source: Path, calls: Callable[[], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
    assert [fresh(source).loaded.answer() for _ in range(2)] == [42, 42]
    assert calls() == 2


@needs_compiler
def test_a_cache_is_not_made_where_somebody_is_just_now(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XDG: paths that are relative are not valid."""
    monkeypatch.setenv("XDG_CACHE_HOME", "a cache")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert fresh(source).loaded.answer() == 42
    assert not Path("a cache").exists()
    assert [kept.suffix for kept in (tmp_path / ".cache" / "tx").iterdir()] == [".so"]


@pytest.mark.parametrize("wanted", ["", "there-is-no-such-compiler -O2"])
def test_without_a_compiler_there_is_nothing_and_nothing_is_said(
    wanted: str, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", wanted)
    assert fresh(source) == compiler.Library()


def test_a_command_that_is_none_is_said(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", '"unclosed')
    assert fresh(source).trouble == "CXX: No closing quotation"


def test_it_is_looked_for_under_its_usual_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: f"/opt/{name}")
    monkeypatch.setattr(sys, "platform", "linux")
    assert compiler._command() == ["/opt/g++"]
    monkeypatch.setattr(sys, "platform", "darwin")  # where it is Clang, which does not know OpenMP
    assert not compiler._command()
    monkeypatch.setenv("CXX", "g++-15 -O2")
    assert compiler._command() == ["g++-15", "-O2"]
    monkeypatch.setattr(compiler.os, "name", "nt")
    assert not compiler._command()
    monkeypatch.undo()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert not compiler._command()


@needs_compiler
def test_no_openmp_of_its_own_is_loaded(source: Path, tmp_path: Path) -> None:
    """PyTorch has one. Of two, the threads of one spin while those of the other compute."""
    (source / "code.cpp").write_text(LOOP, encoding="utf-8")
    assert fresh(source).loaded.answer() == 42
    [kept] = (tmp_path / "cache" / "tx").iterdir()
    assert b"GOMP_parallel" in kept.read_bytes()
    assert b"libgomp" not in kept.read_bytes()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ('[ "$1" = --version ] && exit 0\necho "code.cpp:1:1: error: no" >&2\nexit 1', "error: no"),
        ('[ "$1" = --version ] && exit 0\nexit 3', "ended with 3"),
        ("exit 1", "ended with 1"),
        ('[ "$1" = --version ] && exit 0\nsleep 60; exit 0', "it took more than 0.5 seconds"),
        (
            '[ "$1" = --version ] && exit 0\necho "code.cpp: In function f:\ncode.cpp:1: error: no" >&2; exit 1',
            ":1: error",
        ),
        ('while [ $# -gt 1 ]; do shift; done\n[ "$1" = --version ] || echo nonsense > "$1"', "invalid ELF|too short"),
    ],
)
def test_a_compiler_that_fails_is_named(
    script: str, said: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "failing"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(path))
    monkeypatch.setattr(compiler, "LONGEST_S", 0.5)
    found = fresh(source)
    assert found.loaded is None
    assert re.search(said, str(found.trouble))
    assert str(found.trouble).startswith(str(path))


@needs_compiler
def test_ctrl_c_lets_it_end(source: Path, tmp_path: Path) -> None:
    """It lets a run be saved, and whether code was compiled is kept with it: so the compiler must not hear of it."""
    script, begun = tmp_path / "slow", tmp_path / "begun"
    found = shlex.join(compiler._command())
    script.write_text(
        f'#!/bin/sh\n[ "$1" = -shared ] && touch "{begun}" && sleep 1\nexec {found} "$@"\n', encoding="utf-8"
    )
    script.chmod(0o700)
    python = (
        "import signal, sys; from pathlib import Path; from transformer_cli.compiler import library; "
        "signal.signal(signal.SIGINT, lambda *_: None); print(library(Path(sys.argv[1])).trouble)"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "CXX": str(script)}
    command = [sys.executable, "-c", python, str(source)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    while not begun.exists() and process.poll() is None:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate()[0] == "None\n"


def test_of_a_compiler_that_hangs_nothing_is_left(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it puts somewhere meanwhile, and what it started."""
    script, log = tmp_path / "hanging", tmp_path / "log"
    hang = f'sleep 60 &\necho $! > "{log}"; echo "$TMPDIR" >> "{log}"; touch "$TMPDIR/ccx.s"; wait; exit 0'
    script.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exit 0\n{hang}\n', encoding="utf-8")
    script.chmod(0o700)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setattr(compiler, "LONGEST_S", 0.5)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert fresh(source).loaded is None
    child, folder = log.read_text(encoding="utf-8").split()
    assert not (Path(folder) / "ccx.s").exists()
    end = time.monotonic() + 10
    while (still := is_running(int(child))) and time.monotonic() < end:
        time.sleep(0.01)
    assert not still


def test_what_ends_the_program_ends_it(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second Ctrl-C is no failure of the compiler."""
    script = tmp_path / "hanging"
    script.write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\nkill -USR1 $PPID; sleep 60\n', encoding="utf-8")
    script.chmod(0o700)
    monkeypatch.setenv("CXX", str(script))

    def end(number: int, frame: object) -> None:
        raise Interrupted("stopped at once", signal_number=number)

    before = signal.signal(signal.SIGUSR1, end)
    try:
        with pytest.raises(Interrupted):
            fresh(source)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def three(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Three sources, and a compiler that runs such a script for each, in a folder that is empty at first: this one."""
    for name in ("one", "two"):
        (source / f"{name}.cpp").write_text(CODE.replace("answer", name), encoding="utf-8")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))

    def by(script: str) -> Path:
        path, told = tmp_path / "stand-in", tmp_path / "told"
        told.mkdir()
        real = f'real() {{ {shlex.join(compiler._command())} "$@"; }}'
        wait = 'wait_for() { for n in $(seq 1000); do [ $(ls | wc -l) -ge "$1" ] && return; sleep 0.01; done; exit 1; }'
        others = '[ "$1" = --version ] && exit 0\n[ "$1" = -shared ] && { real "$@"; exit; }'
        path.write_text("\n".join(["#!/bin/sh", real, wait, others, f'cd "{told}"', script, ""]), encoding="utf-8")
        path.chmod(0o700)
        monkeypatch.setenv("CXX", str(path))
        return told

    return by


@needs_compiler
def test_files_are_compiled_side_by_side(
    source: Path, three: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    three('touch $$; wait_for 2; real "$@"')
    monkeypatch.setattr(compiler, "processors", lambda: 2)
    found = fresh(source)
    assert found.trouble is None
    assert [found.loaded.answer(), found.loaded.one(), found.loaded.two()] == [42, 42, 42]


@needs_compiler
@pytest.mark.parametrize(
    ("processors", "processes", "most"), [(1, "1", 1), (2, "1", 2), (2, "2", 1), (2, "4", 1), (9, "1", 2), (9, "x", 1)]
)
def test_no_more_at_once_than_there_are_processors(
    processors: int,
    processes: str,
    most: int,
    source: Path,
    three: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which are shared by all processes that train together; nor than memory may be enough for."""
    told = three('touch $$; ls | wc -l >> ../counted; real "$@" && rm $$')
    monkeypatch.setattr(compiler, "processors", lambda: processors)
    monkeypatch.setattr(compiler, "MOST_AT_ONCE", 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
    assert fresh(source).trouble is None
    counted = [int(line) for line in (told.parent / "counted").read_text(encoding="utf-8").split()]
    assert len(counted) == 3
    assert max(counted) <= most


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ('echo "one.cpp:1:1: error: no" >&2; exit 1', "one.cpp:1:1: error: no"),
        ("kill -KILL $$", "it ended with -9"),
        ("kill -USR1 $PPID; sleep 60", None),
        ("sleep 60", "it took more than 5 seconds"),
    ],
    ids=["fails", "is killed", "interrupts", "hangs"],
)
def test_where_one_of_several_ends_it_nothing_is_left(
    ends: str,
    said: str | None,
    source: Path,
    three: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No file, and no process, though the others would go on for a minute."""
    told = three(f'case "$*" in *one.cpp*) wait_for 4; {ends}; exit;; esac; touch $$; sleep 60 & touch $!; wait')
    monkeypatch.setattr(compiler, "processors", lambda: 3)
    monkeypatch.setattr(compiler, "LONGEST_S", 5 if ends == "sleep 60" else 30)

    def end(number: int, frame: object) -> None:
        raise Interrupted("stopped at once", signal_number=number)

    before = signal.signal(signal.SIGUSR1, end)
    try:
        assert fresh(source).trouble == f"{tmp_path}/stand-in: {said}"
    except Interrupted:
        assert said is None
    finally:
        signal.signal(signal.SIGUSR1, before)
    others = [int(path.name) for path in told.iterdir()]
    assert len(others) == 4
    limit = time.monotonic() + 10
    while (left := [pid for pid in others if is_running(pid)]) and time.monotonic() < limit:
        time.sleep(0.01)
    assert not left
    assert not list((tmp_path / "temporary").iterdir())


def is_running(pid: int) -> bool:
    """Or waits for nobody but its parent to hear of its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@needs_compiler
def test_a_name_that_is_no_text_names_a_compiler(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = tmp_path / os.fsdecode(b"g\xff++")
    link.symlink_to(str(shutil.which(compiler._command()[0])))
    monkeypatch.setenv("CXX", str(link))
    assert fresh(source).loaded.answer() == 42


@needs_compiler
def test_processes_that_compile_at_once_do_not_disturb_each_other(source: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from transformer_cli.compiler import library; "
        "found = library(Path(sys.argv[1])); print(found.loaded and found.loaded.answer(), found.trouble)"
    )
    command = [sys.executable, "-c", script, str(source)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(4)]
    assert [process.communicate()[0] for process in started] == ["42 None\n"] * 4


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CXX", "")
    library.cache_clear()
    code.cache_clear()
    yield
    library.cache_clear()
    code.cache_clear()


@pytest.fixture
def broken_compiler(no_compiler: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")


@needs_compiler
def test_what_a_run_begins_with_is_what_it_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunConfig(device="cpu", precision="fp32")
    begun = decide(config)
    assert begun.compiled
    assert begin_or_resume(config, begun.as_dict()) == (begun, None)
    before = {name: value for name, value in begun.as_dict().items() if name != "compiled"}  # by an older version
    assert begin_or_resume(config, before) == (replace(begun, compiled=False), None)
    assert not decide(RunConfig(device="cpu", precision="fp16")).compiled
    monkeypatch.setattr("transformer_cli.machine.code", None)  # whoever only translates compiles nothing
    assert not settle(config, begun.as_dict()).compiled


@needs_compiler
@pytest.mark.parametrize("lack", ["no_compiler", "broken_compiler"])
def test_a_run_goes_on_where_nothing_can_be_compiled(
    lack: str, trained_run: Path, capfd: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    shape = ["d_model=32", "n_heads=2", "d_ff=32", "n_layers=1"]
    sets = [f"--set={value}" for value in (*map("model.{}".format, shape), "precision=fp32")]
    train = ["train", "-c", str(trained_run / "config.yaml"), "--run-dir", "run", *sets]
    assert failures.exit_code(lambda: main([*train, "--set=training.max_steps=4"])) == 0
    assert "threads: 1, compiled\n" in capfd.readouterr().err
    assert machine(Path("run"))["compiled"] is True

    request.getfixturevalue(lack)
    train.append("--set=training.max_steps=8")
    assert failures.exit_code(lambda: main(train)) == 0
    said = capfd.readouterr().err
    assert "the run began with compiled code and continues without, for there is none here; bits will differ" in said
    assert ("for the C++ compiler failed: false: " in said) is (lack == "broken_compiler")
    assert machine(Path("run"))["compiled"] is False

    assert failures.exit_code(lambda: main([*train, "--overwrite"])) == 0
    assert "bits will differ" not in capfd.readouterr().err


def test_nothing_is_compiled_that_a_run_does_not_use(
    trained_run: Path, capfd: pytest.CaptureFixture[str], no_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that began without compiled code goes on so, and fp16 has none."""
    shape = ["d_model=32", "n_heads=2", "d_ff=32", "n_layers=1"]
    sets = [f"--set={value}" for value in (*map("model.{}".format, shape), "training.max_steps=1")]
    train = ["train", "-c", str(trained_run / "config.yaml"), *sets]
    assert failures.exit_code(lambda: main([*train, "--run-dir=run", "--set=precision=fp32"])) == 0
    code.cache_clear()
    library.cache_clear()
    monkeypatch.setenv("CXX", "false")
    assert failures.exit_code(lambda: main([*train, "--run-dir=run", "--set=training.max_steps=2"])) == 0
    assert failures.exit_code(lambda: main([*train, "--run-dir=another", "--set=precision=fp16"])) == 0
    assert "compiler" not in capfd.readouterr().err
    assert code.cache_info().currsize == 0


@needs_compiler
def test_a_dry_run_says_whether_there_would_be_compiled_code(
    trained_run: Path, capfd: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    dry = ["train", "-c", str(trained_run / "config.yaml"), "--run-dir", "run", "--set=precision=fp32", "--dry-run"]
    assert failures.exit_code(lambda: main(dry)) == 0
    assert ", compiled" in "".join(capfd.readouterr())
    request.getfixturevalue("no_compiler")
    assert failures.exit_code(lambda: main(dry)) == 0
    assert ", compiled" not in "".join(capfd.readouterr())


@needs_compiler
def test_what_was_trained_is_translated_alike_with_it_and_without(
    trained_run: Path, capfd: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    native = ["--set=precision=fp32", "--set=decoding.engine=native", "--json"]
    translate = ["translate", "-m", str(trained_run), *native, "ein bier", "ich mochte zwei kaffee"]
    found = []
    for lack in (None, "no_compiler", "broken_compiler"):
        if lack is not None:
            request.getfixturevalue(lack)
            library.cache_clear()
            code.cache_clear()
        with patch(
            "transformer_cli.model.compiled_steps.OneCall.step", autospec=True, side_effect=OneCall.step
        ) as step:
            assert failures.exit_code(lambda: main(translate)) == 0
        output, said = capfd.readouterr()
        found.append(
            [
                (one["translation"], pytest.approx(one["score"], abs=1e-4))
                for one in map(json.loads, output.splitlines())
            ]
        )
        assert bool(step.call_count) is (lack is None)
        assert ("the C++ compiler failed (CXX= leaves it out): false: " in said) is (lack == "broken_compiler")
    assert found[0] == found[1] == found[2]


@needs_compiler
@pytest.mark.parametrize(
    "command",
    [
        ["visualize-attention", "ein bier", "-m"],
        ["compare", "--source=text", "--reference=text", "--set=decoding.workers=1", "copy"],
        ["evaluate", "--source=text", "--check-batching", "-m"],
        ["serve", "--port=0", "-m"],
    ],
)
def test_whatever_translates_says_that_the_compiler_failed(
    command: Sequence[str],
    trained_run: Path,
    capfd: pytest.CaptureFixture[str],
    broken_compiler: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if command[0] == "serve":
        server = pytest.importorskip("transformer_cli.serving.server", reason="the extra `serve` is not installed")
        monkeypatch.setattr(server, "server", MagicMock())
    Path("text").write_text("ein bier\n", encoding="utf-8")
    shutil.copytree(trained_run, "copy")
    assert failures.exit_code(lambda: main([*command, str(trained_run)])) == 0
    assert capfd.readouterr().err.count("the C++ compiler failed (CXX= leaves it out): false: ") == 1


@needs_compiler
@pytest.mark.parametrize("lack", ["no_compiler", "broken_compiler"])
def test_python_is_warned_once_that_the_compiler_failed(
    lack: str, trained_run: Path, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(lack)
    Path("text").write_text("ein bier\n", encoding="utf-8")
    for use in (
        lambda: tx.load(trained_run).translate("ein bier"),
        lambda: tx.evaluate(
            trained_run, source="text", reference="text", beam_size=1, settings={"decoding.engine": "native"}
        ),
    ):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            use()
        found = [one for one in told if "the C++ compiler failed (CXX= leaves it out): false: " in str(one.message)]
        assert len(found) == (lack == "broken_compiler"), lack


@needs_compiler
def test_nothing_is_compiled_for_a_model_that_has_no_use_for_it(
    trained_run: Path, capfd: pytest.CaptureFixture[str], no_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = ["d_model=32", "n_heads=4", "d_ff=32", "n_layers=1"]
    sets = [f"--set={value}" for value in (*map("model.{}".format, shape), "training.max_steps=1", "precision=fp32")]
    train = ["train", "-c", str(trained_run / "config.yaml"), "--run-dir=run", *sets]
    assert failures.exit_code(lambda: main(train)) == 0
    code.cache_clear()
    library.cache_clear()
    monkeypatch.setenv("CXX", "false")
    capfd.readouterr()
    assert failures.exit_code(lambda: main(["translate", "-m", "run", "--set=decoding.engine=native", "ein bier"])) == 0
    assert "compiler" not in capfd.readouterr().err
    assert code.cache_info().currsize == 0


@needs_compiler
@pytest.mark.parametrize("cache", ["a file", "/proc/nobody"])
def test_where_nothing_can_be_kept_translating_does_without(
    cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
    code.cache_clear()
    assert code_to_keep() == compiler.Library()
    with monkeypatch.context() as without_home:
        without_home.delenv("XDG_CACHE_HOME")
        without_home.delenv("HOME")
        without_home.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
        assert code_to_keep() == compiler.Library()
    begun = code()  # as a run does, whose validation translates
    assert code_to_keep() == begun != compiler.Library()


@needs_compiler
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_where_what_is_kept_would_not_be_loaded_translating_does_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of root with somebody else's home: it may write there, and compiled anew each time it would be."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "tx").mkdir()
    os.chown(tmp_path / "tx", 12345, -1)
    code.cache_clear()
    assert code_to_keep() == compiler.Library()
    os.chown(tmp_path / "tx", os.geteuid(), -1)
    assert code_to_keep() == code()


def machine(run: Path) -> dict[str, object]:
    return json.loads((run / "run.json").read_text(encoding="utf-8"))["machine"]
