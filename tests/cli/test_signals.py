"""What Ctrl-C, SIGTERM and a closed terminal do, whenever they come."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

ENDS = [
    (signal.SIGINT, 130, "interrupted"),
    (signal.SIGTERM, 143, "terminated"),
    (signal.SIGHUP, 129, "the terminal was closed"),
    (signal.SIGUSR1, 128 + signal.SIGUSR1, "ended by SIGUSR1"),
]
each_signal = pytest.mark.parametrize(("number", "code", "words"), ENDS)
START = """
import os, signal, sys, time
from transformer_cli.cli import console, failures, signals
signals.end_by_signals()
console.open_streams()
sys.exit(failures.exit_code(main))
"""


def run(body: str, *folders: Path, ignored: int | None = None, **says: str) -> subprocess.CompletedProcess[str]:
    """A program that does what the body says, and ends as tx does; folders: where its modules are looked for first.
    says: more of its environment."""
    path = os.pathsep.join(map(str, [*folders, Path(__file__).parents[2]]))
    program = f"def main():\n    {body}\n    return 0\n{START}"
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        encoding="utf-8",
        check=False,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path, **says},
        preexec_fn=None if ignored is None else partial(signal.signal, ignored, signal.SIG_IGN),
    )


@each_signal
def test_a_signal_unwinds_and_has_its_exit_code(number: signal.Signals, code: int, words: str) -> None:
    ended = run(f"try: signal.raise_signal({number:d})\n    finally: print('tidied up')")
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "tidied up\n", f"{words}\n")


@pytest.mark.parametrize("imports", [False, True])
@pytest.mark.parametrize(
    ("rank", "size", "says"), [("0", "2", True), ("1", "2", False), ("1", "1", True), ("", "2", True)]
)
def test_of_several_processes_the_first_says_how_they_ended(
    tmp_path: Path, rank: str, size: str, says: bool, imports: bool
) -> None:
    """Each said `interrupted`. Who is told only how many there are says it, too."""
    (tmp_path / "heavy.py").write_text("import os\nos.kill(os.getpid(), 2)\n", encoding="utf-8")
    ended = run("import heavy" if imports else "signal.raise_signal(2)", tmp_path, RANK=rank, WORLD_SIZE=size)
    assert (ended.returncode, ended.stderr) == (130, "interrupted\n" * says)


def test_a_closed_terminal_is_ignored_where_it_is_to_be() -> None:
    """`nohup tx train ...`"""
    ended = run("signal.raise_signal(signal.SIGHUP); print('the end')", ignored=signal.SIGHUP)
    assert (ended.returncode, ended.stdout) == (0, "the end\n")


def test_a_job_of_a_script_can_be_interrupted() -> None:
    """`tx train ... &` in a script: its shell has Ctrl-C ignored, and Python goes along with that."""
    ended = run("signal.raise_signal(signal.SIGINT)", ignored=signal.SIGINT)
    assert (ended.returncode, ended.stderr) == (130, "interrupted\n")


def test_a_second_signal_waits_for_nothing() -> None:
    ended = run("try: signal.raise_signal(15)\n    finally: signal.raise_signal(15); print('still tidying up')")
    assert (ended.returncode, ended.stdout) == (-signal.SIGTERM, "")


@each_signal
def test_a_module_that_is_being_imported_cannot_swallow_a_signal(
    tmp_path: Path, number: signal.Signals, code: int, words: str
) -> None:
    """As torch does: three of 60 starts went on, one was aborted."""
    text = f"import os\ntry: os.kill(os.getpid(), {number:d})\nexcept BaseException: pass\n"
    (tmp_path / "heavy.py").write_text(text, encoding="utf-8")
    ended = run("import heavy; print('it went on')", tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", f"{words}\n")


@each_signal
@pytest.mark.parametrize("where", ["type('Freed', (), {'__del__': come})()", "gc.callbacks.append(come)"])
def test_a_signal_that_comes_where_nothing_can_be_raised_is_not_lost(
    where: str, number: signal.Signals, code: int, words: str
) -> None:
    """While an object is freed, or Python looks for garbage: it was dropped, and the program went on."""
    body = f"""
    import gc, time
    came = []
    def come(*_):
        if not came:
            came.append(True)
            signal.raise_signal({number:d})
    {where}
    gc.collect()
    try: time.sleep(20); print('it went on')
    finally: print('tidied up')
    """
    ended = run(body)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "tidied up\n", f"{words}\n")


@each_signal
def test_what_is_written_aside_is_gone_when_a_module_is_being_imported(
    tmp_path: Path, number: signal.Signals, code: int, words: str
) -> None:
    """`tx train --dry-run --time` left its folder in /tmp."""
    (tmp_path / "heavy.py").write_text(f"import os\nos.kill(os.getpid(), {number:d})\n", encoding="utf-8")
    (tmp_path / "there").mkdir()
    body = f"""
    import os, tempfile
    from transformer_cli import files
    from transformer_cli.temporary import temporary_directory
    tempfile.tempdir = there = {str(tmp_path / "there")!r}
    with temporary_directory() as folder, files.atomic_file(there + '/x'), files.atomic_directory(there + '/d') as d:
        (folder / 'run').mkdir()
        (d / 'half').touch()
        print(len(os.listdir(there)), flush=True)
        import heavy
    """
    ended = run(body, tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "3\n", f"{words}\n")
    assert list((tmp_path / "there").iterdir()) == []


@pytest.mark.parametrize("is_named", [False, True])
def test_no_folder_of_torchs_compiler_is_left_when_a_module_is_being_imported(tmp_path: Path, is_named: bool) -> None:
    """But where the user named one."""
    (tmp_path / "heavy.py").write_text(
        "import os; from torch._inductor.runtime.cache_dir_utils import cache_dir\n"
        "print(os.path.basename(cache_dir()).partition('_')[0], flush=True)\nos.kill(os.getpid(), 15)\n",
        encoding="utf-8",
    )
    (tmp_path / "there").mkdir()
    body = f"""
    import tempfile
    from transformer_cli.environment import prepare
    tempfile.tempdir = {str(tmp_path / "there")!r}
    {"os.environ['TORCHINDUCTOR_CACHE_DIR'] = tempfile.tempdir + '/mine'" if is_named else "pass"}
    prepare()
    import heavy
    """
    ended = run(body, tmp_path)
    assert (ended.returncode, ended.stdout) == (143, "mine\n" if is_named else "torchinductor\n"), ended.stderr
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["mine"] * is_named


@each_signal
def test_a_signal_while_the_program_starts_leaves_no_traceback(
    tmp_path: Path, number: signal.Signals, code: int, words: str
) -> None:
    """typer stands for the first module that takes time."""
    (tmp_path / "typer.py").write_text(f"import os\nos.kill(os.getpid(), {number:d})\n", encoding="utf-8")
    path = os.pathsep.join(map(str, [tmp_path, Path(__file__).parents[2]]))
    ended = subprocess.run(
        [sys.executable, "-m", "transformer_cli", "--help"],
        capture_output=True,
        encoding="utf-8",
        check=False,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path},
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", f"{words}\n")


def test_what_is_imported_before_signals_are_heeded_is_little() -> None:
    """`typing` alone, for annotations, was as long as the rest."""
    code = "import sys, transformer_cli.__main__, transformer_cli.cli.signals; print(*sys.modules)"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2])}
    # -S: an environment may import anything by itself.
    started = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, check=True, env=environment)
    assert not {b"typing", b"contextlib", b"re", b"pathlib"} & set(started.stdout.split())
