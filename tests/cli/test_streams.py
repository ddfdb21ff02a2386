"""Standard streams as others leave them to the program: slow, full, closed, or such that they do not wait."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

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
