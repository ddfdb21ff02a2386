"""Standard streams as others leave them to the program: slow, full, closed, or such that they do not wait."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest
from test_live import on_a_terminal

ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2])}
FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device here that is always full")


def command(body: str) -> list[str]:
    """A program that does what the body says, its streams opened and its end reported as tx does it."""
    code = f"""
import sys
from transformer_cli.cli import console, failures
console.open_streams()
def main():
    {body}
    return 0
sys.exit(failures.exit_code(main))
"""
    return [sys.executable, "-c", code]


def shell(line: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line, "bash", *arguments], capture_output=True, encoding="utf-8", env=ENVIRONMENT, check=False
    )


def read_slowly(read_end: int, write_end: int, writer: subprocess.Popen[bytes]) -> bytes:
    """All that is written; while the writer lives, nothing is read before the pipe is full."""
    room = select.poll()
    room.register(write_end, select.POLLOUT)
    received = b""
    while writer.poll() is None:
        if not room.poll(0):
            received += os.read(read_end, 4096)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as rest:
        return received + rest.read()


@pytest.mark.parametrize(
    "speak", ["console.result(str(n))", "console.say(str(n))", "print(n)", "print(n, file=sys.stderr)"]
)
def test_a_pipe_that_does_not_wait_loses_no_line(speak: str) -> None:
    """Node and some notebooks start programs so; of 9,000 results 594 used to arrive, with exit code 0."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    name = "stderr" if "say" in speak or "stderr" in speak else "stdout"
    with subprocess.Popen(command(f"for n in range(50_000): {speak}"), env=ENVIRONMENT, **{name: write_end}) as process:
        received = read_slowly(read_end, write_end, process)
    assert process.returncode == 0
    assert received == "".join(f"{n}\n" for n in range(50_000)).encode()


def test_a_stdin_that_does_not_wait_is_read_to_its_end() -> None:
    """Python reads None from it where nothing is there yet, which was taken for the end."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    body = "for line in sys.stdin.buffer: console.result(line.decode().strip())"
    with subprocess.Popen(command(body), env=ENVIRONMENT, stdin=read_end, stdout=subprocess.PIPE) as process:
        os.close(read_end)
        for n in range(100):  # each is sent when the one before it was read
            os.write(write_end, b"%d\n" % n)
            assert process.stdout.readline() == b"%d\n" % n
        os.close(write_end)
    assert process.returncode == 0


@FULL
@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-", "2> >(:)"])
def test_conversation_that_cannot_be_written_stops_nothing(redirection: str) -> None:
    """`tx train 2>&1 | head -12` used to end training, with exit code 0 and nothing saved."""
    body = "for n in range(9): console.say('s'); console.warn('w'); print('x' * 10_000, file=sys.stderr)\n"
    body += "    console.result('the end')"
    ended = shell(f'"$@" {redirection}', *command(body))
    assert (ended.returncode, ended.stdout) == (0, "the end\n")


@FULL
@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_a_failure_that_cannot_be_told_keeps_its_exit_code(redirection: str) -> None:
    body = "from transformer_cli.errors import DataError; raise DataError('it')"
    assert shell(f'"$@" {redirection}', *command(body)).returncode == 3


@pytest.mark.parametrize(("how", "ended"), [("", 0), ("with console.more_than_results(): ", 3)])
def test_what_ends_in_more_than_results_goes_on_without_a_reader(how: str, ended: int) -> None:
    body = "from transformer_cli.errors import DataError\n"
    body += f"    {how}console.result('r'); raise DataError('it')"
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as results:
        done = subprocess.run(command(body), env=ENVIRONMENT, stdout=results, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (ended, b"error: it\n" if ended else b"")


def test_a_reader_of_everything_that_leaves_lets_the_work_go_on_to_its_first_result() -> None:
    body = "print('s', file=sys.stderr); sys.stdin.readline(); console.say('s' * 99_999)\n"
    body += "    open('/dev/fd/3', 'w').write('worked'); console.result('r'); raise AssertionError"
    read_end, write_end = os.pipe()
    told, tell = os.pipe()
    line = ["bash", "-c", f'exec 3>&{tell}; exec "$@"', "bash", *command(body)]
    streams = {"stdin": subprocess.PIPE, "stdout": write_end, "stderr": write_end, "pass_fds": [tell]}
    with subprocess.Popen(line, env=ENVIRONMENT, **streams) as process:
        os.close(write_end)
        os.close(tell)
        assert os.read(read_end, 9) == b"s\n"
        os.close(read_end)
        process.communicate(b"go\n")
    with os.fdopen(told) as heard:
        assert (process.returncode, heard.read()) == (0, "worked")


@FULL
@pytest.mark.parametrize("speak", ["console.result('r')", "print('r')"])
def test_a_result_for_which_there_is_no_room_is_an_error(speak: str) -> None:
    """Said once: what is left in a buffer is not tried again while Python ends, which would be exit code 120."""
    ended = shell('"$@" > /dev/full', *command(speak))
    assert (ended.returncode, ended.stderr) == (5, "error: cannot write stdout: No space left on device\n")


def test_a_stream_that_is_closed_leaves_its_number_to_nobody() -> None:
    """Else what a library prints would end up in a file of ours."""
    body = "import os; console.say(str(os.open(os.devnull, os.O_RDONLY) > 2))"
    assert shell('"$@" <&- >&-', *command(body)).stderr == "True\n"


@pytest.mark.parametrize("speak", ["say", "warn", "error"])
def test_on_a_terminal_no_word_of_a_sentence_is_broken_and_nothing_is_lost(speak: str) -> None:
    """A terminal breaks where its last column is: `(lines 1, 10` and `, 21`."""
    words = [f"{'w' * (n % 17)}{n}" for n in range(90)]
    code, seen = on_a_terminal(command(f"console.{speak}({' '.join(words)!r})"), columns=50)
    assert code == 0
    lines = re.sub(r"\x1b\[[0-9;]*m", "", seen).splitlines()
    assert max(map(len, lines)) <= 50
    assert " ".join(lines).split()[-90:] == words


def test_what_is_pasted_or_points_into_a_file_stays_as_it_is() -> None:
    long = "tx translate " + "a " * 60 + "b"
    place = "  | " + "a " * 60 + "b"
    body = f"console.say({long!r}, to_paste=True); console.say({place!r}); console.farewell('so', command={long!r})"
    seen = on_a_terminal(command(body), columns=50, NO_COLOR="1")[1]
    assert seen.replace("\r", "").splitlines() == [long, place, "so", f"to go on: {long}"]


def test_a_pipe_has_a_sentence_in_one_line() -> None:
    ended = shell('"$@"', *command("console.say('word ' * 100 + 'end')"))
    assert ended.stderr == "word " * 100 + "end\n"


def test_a_name_that_is_not_utf8_is_shown_by_its_bytes() -> None:
    """It was a bug of ours, whichever result it stood in."""
    ended = shell('"$@"', *command("console.result('caf\\udce9'); print('\\udce9')"))
    assert (ended.returncode, ended.stdout) == (0, "caf\\udce9\n\\udce9\n")


@pytest.mark.parametrize("switches", [[], ["-X", "utf8=0"]])
def test_names_and_arguments_are_utf8_whatever_the_locale_says(tmp_path: Path, switches: list[str]) -> None:
    """In the locale C, where PYTHONUTF8=0 asked for it, `käse` was said to be no UTF-8."""
    (tmp_path / "käse").mkdir()
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ended = subprocess.run(
        [sys.executable, *switches, "-m", "transformer_cli", "runs", "käse"],
        **{"capture_output": True, "encoding": "utf-8", "cwd": tmp_path, "env": ENVIRONMENT | locale, "check": False},
    )
    assert (ended.returncode, ended.stderr.split("\n")[0]) == (4, "error: there is no run in käse")


@pytest.mark.parametrize("arguments", ["config -c tiny.yaml name", "average {} --best 1", "runs"])
def test_a_folder_that_was_deleted_is_said_to_be(tmp_path: Path, arguments: str) -> None:
    """It was "No such file or directory", and of which nobody said; oneMKL ended `tx average` and `tx export` with exit
    code 2, because it could not load PyTorch; `tx runs` had no run there."""
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    words = arguments.format(tmp_path / "run").split()
    program = [sys.executable, "-m", "transformer_cli", *words]
    ended = shell(f'mkdir {tmp_path}/x && cd {tmp_path}/x && rmdir {tmp_path}/x && "$@"', *program)
    assert (ended.returncode, ended.stderr.split("\n")[0]) == (5, "error: the current folder is not there any more")
