"""Where results may go, and that nothing is replaced by them."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_cli.cli.lines import incoming_lines, parse_request
from transformer_cli.cli.results import refuse_own_input, result_file, writer
from transformer_cli.cli.signals import Ended
from transformer_cli.data.stream import read_lines
from transformer_cli.errors import DataError, ResourceError, UsageError
from transformer_cli.training.replacing import FILES, FOLDERS


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a").write_text("ein bier\n", encoding="utf-8")


def on_streams(redirection: str, call: str) -> tuple[int, str]:
    """The exit code and the end of stderr of a program that makes this call, its streams redirected by a shell."""
    code = f"from transformer_cli.cli.results import refuse_own_input\n{call}"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2])}
    line = ["bash", "-c", f'"$@" {redirection}', "bash", sys.executable, "-c", code]
    ended = subprocess.run(line, stderr=subprocess.PIPE, encoding="utf-8", env=environment, check=False)
    return ended.returncode, ended.stderr.strip().rpartition("\n")[2].partition("UsageError: ")[2]


# --- inputs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "./a", "link", "twin"])
def test_a_result_does_not_replace_a_file_that_is_read(name: str) -> None:
    Path("link").symlink_to("a")
    Path("twin").hardlink_to("a")
    with pytest.raises(UsageError, match=f"^{name.removeprefix('./')}|a is read and would be replaced$"):
        refuse_own_input(name, None, "a")
    refuse_own_input(name, None, "other")


def test_a_result_does_not_replace_what_a_configuration_extends() -> None:
    """Only the file that -c names was safe."""
    for name, below in (("own", "middle.yaml"), ("middle", "lowest.yaml"), ("lowest", "tiny")):
        Path(f"{name}.yaml").write_text(f"extends: {below}\n", encoding="utf-8")
    for name in ("own.yaml", "middle.yaml", "lowest.yaml"):
        with pytest.raises(UsageError, match=f"^{name} is read and would be replaced$"):
            refuse_own_input(name, "a", config="own.yaml")
    refuse_own_input("other.yaml", "a", config="own.yaml")


@pytest.mark.parametrize(
    ("redirection", "call", "message"),
    [
        ("< a", "refuse_own_input('a', '-')", "a is read and would be replaced"),
        ("< a", "refuse_own_input('a', '/dev/stdin')", "a is read and would be replaced"),
        (">> a", "refuse_own_input(None, 'a')", "a is read, and is the file that stdout is written to"),
        ("< a >> a", "refuse_own_input(None, '-')", "stdin is read, and is the file that stdout is written to"),
        (">> a", "refuse_own_input('/dev/stdout', 'a')", "/dev/stdout is read and would be replaced"),
        ("< a > b", "refuse_own_input(None, '-')", ""),
        ("< /dev/null > /dev/null", "refuse_own_input(None, '-')", ""),
        ("< a", "refuse_own_input('b', '-', 'a')", ""),
    ],
)
def test_standard_streams_are_files_like_others(redirection: str, call: str, message: str) -> None:
    """`-o a < a` emptied its input, and `-i a >> a` read what it wrote, without end."""
    code, said = on_streams(redirection, call)
    assert (bool(code), said) == (bool(message), message)


@pytest.fixture
def run() -> Path:
    folder = Path("runs/x")
    for name in (*FILES, *(f"{folder}/some/file" for folder in FOLDERS)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("theirs", encoding="utf-8")
    (folder / "run.json").write_text(json.dumps({"versions": {"tx": "0.1.0"}}), encoding="utf-8")
    Path("runs/latest").write_text("x\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", [*FILES, *(f"{folder}/some/file" for folder in FOLDERS), "../latest"])
def test_a_result_does_not_replace_a_file_of_a_run(run: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"belongs to the run|names the latest run"):
        refuse_own_input(str(run / name))


def test_a_link_to_a_file_of_a_run_is_none_the_less(run: Path) -> None:
    Path("innocent").symlink_to(run / "best")
    with pytest.raises(UsageError, match="belongs to the run"):
        refuse_own_input("innocent")


@pytest.mark.parametrize("name", ["runs/x/out.en", "runs/x/mine/best", "best", "data/out"])
def test_results_may_lie_beside_what_a_run_consists_of(run: Path, name: str) -> None:
    refuse_own_input(name)


@pytest.mark.parametrize(("name", "found"), [("a/x", "a file, not a directory"), ("folder", "a directory")])
def test_a_place_that_cannot_hold_a_result_is_known_before_the_work(name: str, found: str) -> None:
    """`-o FILE/x.html` was an error after the translation, and "File exists"."""
    Path("folder").mkdir()
    with pytest.raises(ResourceError, match=f"it is {found}"):
        refuse_own_input(name)
    refuse_own_input("folder/new/x")
    refuse_own_input("/dev/stdout")
    assert sorted(os.listdir()) == ["a", "folder"]


# --- outputs ------------------------------------------------------------------------------------------------------


def test_what_ends_in_gz_is_compressed_as_it_is_read() -> None:
    """It used to be plain text, which then was damaged."""
    for name in ("one.gz", "two.gz"):
        with writer(name) as write:
            write("möchte")
            write("")
    assert read_lines("one.gz").lines == ["möchte", ""]
    assert Path("one.gz").read_bytes() == Path("two.gz").read_bytes()  # neither its time nor its name is in it


def test_an_output_that_fails_leaves_what_was_there() -> None:
    Path("out.gz").write_bytes(b"old")

    def fail() -> None:
        with writer("out.gz") as write:
            write("new")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert sorted(os.listdir()) == ["a", "out.gz"]
    assert Path("out.gz").read_bytes() == b"old"


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_a_file_that_stdout_is_appended_to_keeps_what_it_had(name: str) -> None:
    call = f"from transformer_cli.cli.results import writer\nwith writer('{name}') as write: write('bier')"
    assert on_streams(">> a", call) == (0, "")
    assert Path("a").read_text(encoding="utf-8") == "ein bier\nbier\n"


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_what_stdout_has_before_and_after_stays_where_it_is(name: str) -> None:
    """The same file, opened once more, was written from its beginning, over which others went on."""
    call = (
        "import os\nfrom transformer_cli.cli.results import writer\nos.write(1, b'head\\n')\n"
        f"with writer('{name}') as write: write('bier')\nos.write(1, b'end\\n')"
    )
    assert on_streams("> a", call) == (0, "")
    assert Path("a").read_text(encoding="utf-8") == "head\nbier\nend\n"


def test_a_number_that_nobody_has_opened_is_said() -> None:
    with pytest.raises(OSError, match="/dev/fd/999"), result_file("/dev/fd/999"):
        pass


def test_a_link_is_followed_and_stays() -> None:
    Path("link").symlink_to("a")
    with result_file("link") as file:
        file.write(b"new")
    assert Path("link").is_symlink()
    assert Path("a").read_bytes() == b"new"


# --- what is read -------------------------------------------------------------------------------------------------


def streamed(name: str) -> list[str]:
    with incoming_lines(None, name) as source:
        return [line for block in source.blocks for line in block]


@pytest.mark.parametrize("read", [streamed, lambda name: read_lines(name).lines])
def test_a_gz_of_no_bytes_is_damaged_and_one_of_no_text_is_empty(read) -> None:
    Path("none.gz").write_bytes(b"")
    Path("empty.gz").write_bytes(gzip.compress(b""))
    with pytest.raises(DataError, match=r"none.gz is damaged: it is empty, without even a header"):
        read("none.gz")
    assert read("empty.gz") == []


@pytest.mark.parametrize(
    "number",
    ["1e-400", "1e999", "-0", "0.1000000000000000055511151231257827", "1.00", "1E5", "1" * 5000, '[1.50, {"a": -0.0}]'],
)
def test_a_number_that_passes_through_keeps_its_text(number: str) -> None:
    request = parse_request(f'{{"x": {number}, "source": "a", "\\u00e4": [true, null, "\\n"]}}', "line 1")
    assert request.fields == {"x": number, "ä": '[true, null, "\\n"]'}


def test_a_name_with_a_line_break_passes_through_as_it_came() -> None:
    request = parse_request('{"source": "a", "b\\nc": 1, "\\ud800": 2}', "line 1")
    assert request.fields == {"b\nc": "1", "\ud800": "2"}


def test_who_ends_a_command_hears_that_its_file_was_not_written(capfd: pytest.CaptureFixture[str]) -> None:
    """It said "interrupted", after an hour of translating, and there was no file."""

    def write_half(name: str) -> None:
        with result_file(name) as file:
            file.write(b"half")
            raise Ended(signal.SIGINT)

    Path("there").write_text("as it was")
    for name in ("new", "there"):
        with pytest.raises(Ended):
            write_half(name)
        assert f"{name} was not written" in capfd.readouterr().err
    assert (Path("there").read_text(), Path("new").exists()) == ("as it was", False)
