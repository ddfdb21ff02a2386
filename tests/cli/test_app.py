"""The program as a whole: the table of commands, help, versions, and how it ends."""

from __future__ import annotations

import errno
import importlib.metadata
import importlib.util
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_cli.__main__ import main as program
from transformer_cli.cli import app, console, failures, help
from transformer_cli.config.source import load_config
from transformer_cli.errors import (
    ConfigError,
    DataError,
    DivergedError,
    Interrupted,
    ModelError,
    ResourceError,
    TxError,
    UsageError,
)

HEAVY = ("torch", "numpy", "sentencepiece", "sacrebleu", "rich")
WRITTEN = [name for name, entry in app.COMMANDS.items() if importlib.util.find_spec(entry.module)]


def tx(*arguments: str, code: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """The program in a process of its own; `code` is run in place of it."""
    start = ["-c", textwrap.dedent(code)] if code else ["-m", "transformer_cli"]
    return subprocess.run(
        [sys.executable, *start, *arguments],
        capture_output=True,
        encoding="utf-8",
        env={"PATH": os.environ["PATH"], "COLUMNS": "100", **environment},
        check=False,
    )


def failing(body: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program that ends as `body` does, reported as tx reports."""
    return tx(
        code=f"""
        import sys
        from transformer_cli.cli import console, failures
        console.open_streams()
        def main():
            {body}
            return 0
        sys.exit(failures.exit_code(main))
        """,
        **environment,
    )


# --- help and versions --------------------------------------------------------------------------------------------


def test_help_lists_every_command_and_ends_with_an_example():
    shown = tx("--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    width = max(map(len, app.COMMANDS)) + 2
    for name, entry in app.COMMANDS.items():
        assert f"  {name:<{width}}{entry.summary}\n" in shown.stdout
    assert shown.stdout.endswith(f"Examples:\n{textwrap.indent(app.EXAMPLES, '  ')}\n")
    assert load_config("tiny.yaml").name == "tiny"


def test_help_imports_nothing_heavy_and_answers_at_once():
    code = """
        import json, sys
        from transformer_cli.cli import app
        try:
            app.main(["--help"])
        finally:
            print(json.dumps(sorted(sys.modules)))
        """
    loaded = set(json.loads(tx(code=code).stdout.rstrip("\n").rpartition("\n")[2]))
    assert not loaded & {*HEAVY, "pydantic", "yaml"}
    seconds = []
    for _ in range(5):
        before = os.times()
        tx("--help")
        seconds.append(os.times().children_user - before.children_user)  # of the processor, whatever else it does
    assert min(seconds) < 0.3


@pytest.mark.parametrize("name", WRITTEN)
def test_a_commands_help_imports_nothing_heavy_and_ends_with_an_example(name):
    code = f"""
        import json, sys
        from transformer_cli.cli import app
        print(app.main([{name!r}, "--help"]))
        print(json.dumps(sorted(sys.modules)))
        """
    shown, _, loaded = tx(code=code).stdout.rstrip("\n").rpartition("\n")
    assert not set(json.loads(loaded)) & set(HEAVY)
    text, _, examples = shown.removesuffix("\n0").partition("\nExamples:\n")
    assert text.startswith(f"Usage: tx {name} ")
    lines = examples.strip("\n").split("\n")
    assert len(lines) == 3
    assert all(line.startswith(f"  tx {name}") or f"| tx {name} " in line for line in lines)
    for option in ("--quiet", "--traceback", "--json", "--help"):
        assert option in text


def test_python_m_and_the_script_are_the_same_program():
    script = importlib.metadata.entry_points(group="console_scripts")["tx"]
    from transformer_cli.__main__ import main

    assert script.load() is main


def test_in_a_folder_that_is_gone_it_tells_its_version(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert tx("--version", PYTHONPATH=str(Path(app.__file__).parents[2])).returncode == 0


def test_each_of_several_processes_runs_what_the_first_one_is(tmp_path, monkeypatch):
    """And no file of the user's, such as one that `python -m` itself would take for a module."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "transformer_cli").mkdir()
    for name in ("types", "functools", "transformer_cli/__main__", "transformer_cli/__init__"):
        Path(f"{name}.py").write_text("print('mine'); raise SystemExit(0)\n", encoding="utf-8")
    code = """
    import sys
    from transformer_cli.cli.processes import run_all
    sys.exit(run_all(2, [sys.executable, "-P", "-m", "transformer_cli", "--nothing"]))
    """
    found = tx(code=code, PYTHONPATH=str(Path(app.__file__).parents[2]), PYTHONSAFEPATH="1")
    assert (found.stdout, found.returncode) == ("", 2)
    assert found.stderr.count("no such option: --nothing") == 2
    places = "import os; print(os.environ['PYTHONPATH'].split(os.pathsep)[0])"
    code = f"""
    import sys
    from transformer_cli.cli.processes import run_all
    sys.exit(run_all(1, [sys.executable, "-c", {places!r}]))
    """
    repository = Path(app.__file__).parents[2]
    assert tx(code=code, PYTHONPATH=f"/nowhere{os.pathsep}{repository}", PYTHONSAFEPATH="1").stdout == f"{repository}\n"


@pytest.mark.parametrize("arguments", [("--version",), ("count-params", "tiny")], ids=" ".join)
def test_files_of_ones_own_are_none_of_its_modules(arguments, tmp_path, monkeypatch):
    """Each of `--processes N` ran them, and one that ended in success was a training that was done."""
    expected = tx(*arguments).stdout
    monkeypatch.chdir(tmp_path)
    for name in ("tokenize", "random", "typer", "yaml"):
        Path(f"{name}.py").write_text("print('mine'); raise SystemExit(0)\n", encoding="utf-8")
    found = tx(*arguments, PYTHONPATH=str(Path(app.__file__).parents[2]))
    assert (found.stdout, found.stderr, found.returncode) == (expected, "", 0)


def test_version_names_what_decides_without_importing_it():
    shown = tx("--version")
    python = ".".join(map(str, sys.version_info[:3]))
    installed = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "sentencepiece", "sacrebleu")]
    own = importlib.metadata.version("transformer-cli")
    assert shown.stdout == f"tx {own}, Python {python}, {', '.join(installed)}\n"
    code = """
        import sys
        from transformer_cli.cli import app
        app.version_text()
        sys.exit("torch" in sys.modules)
        """
    assert tx(code=code).returncode == 0


def test_no_command_shows_the_help_as_an_error():
    shown = tx()
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr == tx("--help").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "error: no such command: trian\n  hint: did you mean `tx train`?\n"),
        (["help", "train"], "error: no such command: help\n  hint: did you mean `tx train --help`?\n"),
        (["help", "me"], "error: no such command: help\n  hint: did you mean `tx --help`?\n"),
        (["presets"], "error: no such command: presets\n  hint: did you mean `tx count-params --list`?\n"),
        (["xyz"], f"error: no such command: xyz\n  hint: commands: {', '.join(app.COMMANDS)}.\n"),
        (["\x1b[31m"], f"error: no such command: \\x1b[31m\n  hint: commands: {', '.join(app.COMMANDS)}.\n"),
    ],
)
def test_an_unknown_command_is_answered_with_the_nearest(arguments, message):
    shown = tx(*arguments)
    assert (shown.returncode, shown.stdout, shown.stderr) == (2, "", message)


def test_an_unknown_option_is_a_usage_error():
    shown = tx("--no-such-option")
    assert shown.returncode == 2
    assert shown.stderr.startswith("error: no such option: --no-such-option")
    assert shown.stderr.endswith("  hint: `tx --help` shows what is possible.\n")


def test_a_configuration_without_its_option_is_told_where_it_belongs():
    shown = tx("train", "--quiet", "mine.yaml")
    assert shown.returncode == 2
    assert shown.stderr.endswith("  hint: a configuration is named by -c: tx train -c mine.yaml\n")
    assert tx("train", "mine").stderr.endswith("  hint: `tx train --help` shows what is possible.\n")


def single_valued() -> list[tuple[str, Any]]:
    """Every option of every command that takes one value."""
    commands = {name: help.command(name, entry.load()) for name, entry in app.COMMANDS.items()}
    return [
        (name, one)
        for name, command in commands.items()
        for one in command.params
        if one.param_type_name == "option" and not one.multiple and not one.is_flag
    ]


@pytest.mark.parametrize(("name", "option"), single_valued(), ids=lambda one: one if isinstance(one, str) else one.name)
def test_an_option_of_one_value_is_not_given_twice(name: str, option: Any) -> None:
    """The first used to be ignored, with exit code 0."""
    needed = {
        "score": ["--source=a", "--target=a"],
        "export": ["ctranslate2", "--output-dir=a"],
        "import": ["there", "--run-dir=a"],
    }.get(name, [])
    value = {"by": "component", "convention": "exact"}.get(option.name, "1")
    given = [option.opts[0], value, option.opts[-1], value]
    needed = [one for one in needed if not one.startswith(option.opts[0])]
    with pytest.raises(UsageError, match=f"{option.opts[0]}.* is given 2 times, but takes one value"):
        app.main([name, *needed, *given])


# --- how it ends --------------------------------------------------------------------------------------------------


@pytest.fixture
def ends(monkeypatch, capsys):
    """The exit code and what is said when the program raises an error."""
    monkeypatch.setattr(failures, "_traceback_wanted", False)

    def ends(error: BaseException) -> tuple[int, str]:
        def main() -> int:
            raise error

        code = failures.exit_code(main)
        return code, capsys.readouterr().err

    return ends


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("it"), 2),
        (ConfigError("it"), 2),
        (DataError("it"), 3),
        (ModelError("it"), 4),
        (ResourceError("it"), 5),
        (DivergedError("it"), 6),
        (TxError("it"), 1),
    ],
)
def test_each_kind_of_failure_has_its_exit_code(ends, error, code):
    assert ends(error) == (code, "error: it\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_who_stops_a_program_made_no_error_and_is_told_what_goes_on(ends, number, code):
    assert ends(Interrupted("it", signal_number=number)) == (code, "it\n")
    assert ends(Interrupted("it", signal_number=number, hint="tx x")) == (code, "it\nto go on: tx x\n")


def test_a_hint_follows_the_message(ends):
    assert ends(DataError("a\nb", hint="c")) == (3, "error: a\nb\n  hint: c\n")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "error: not enough memory\n  hint: a smaller "),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "error: not enough memory\n"),
        (MemoryError("std::bad_alloc"), "error: not enough memory\n"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "error: not enough memory\n"),
        (RuntimeError("can't start new thread"), "error: no more threads can be started\n  hint: `ulimit -u`"),
        (RuntimeError("MPS backend out of memory (MPS allocated: 17.9 GB)"), "error: not enough memory\n"),
        (
            ImportError("libtorch_cpu.so: failed to map segment from shared object"),
            "error: a library cannot be loaded: libtorch_cpu.so: failed to map segment from shared object\n  hint: ",
        ),
        (OSError(errno.ENOSPC, "No space left on device", "a/b"), "error: a/b: No space left on device\n  hint: free"),
        (PermissionError(errno.EACCES, "Permission denied", "a/b"), "error: a/b: Permission denied\n"),
    ],
)
def test_what_the_machine_lacks_is_a_resource_error(ends, error, message):
    code, said = ends(error)
    assert code == 5
    assert said.startswith(message)


def test_where_a_library_finds_no_temporary_folder_it_is_said_how_to_name_one(ends):
    """`tx export hugging-face` in a container that is read-only."""
    lacks = FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp', '/var/tmp']")
    assert ends(lacks) == (
        5,
        "error: No usable temporary directory found in ['/tmp', '/var/tmp']\n  hint: TMPDIR may name another folder\n",
    )


@pytest.mark.parametrize("error", [SystemError("error return"), RuntimeError("could not create a primitive")])
def test_what_is_of_memory_only_where_that_is_limited(ends, monkeypatch, error):
    """Below `ulimit -v 900000` training ended with a bug in tx: oneDNN had no room for the code that it makes."""
    for is_limited, expected in ((True, (5, "error: not enough memory\n")), (False, (1, "error: a bug in tx: "))):
        monkeypatch.setattr(failures, "is_limited", lambda is_limited=is_limited: is_limited)
        code, said = ends(error)
        assert code == expected[0]
        assert said.startswith(expected[1])


def test_of_a_folder_that_may_not_be_entered_it_is_the_folder_that_is_named(ends, tmp_path, monkeypatch):
    """Of somebody's run it was `manifest.json`, which no run has there."""
    (tmp_path / "run").mkdir()
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(tmp_path / "run") and access(path, mode))
    where = str(tmp_path / "run" / "checkpoints" / "manifest.json")
    code, said = ends(PermissionError(errno.EACCES, "Permission denied", where))
    assert code == 5
    assert said.startswith(f"error: {tmp_path / 'run'}: Permission denied\n  hint: you may not read it: ask its owner")


def test_what_is_of_any_size_is_said_in_few_words(ends):
    """5,000 characters of somebody's were echoed whole."""
    for error in (DataError("x y" * 5000, hint="z" * 5000), ZeroDivisionError("x" * 5000)):
        _, said = ends(error)
        assert all(len(line) < 1300 for line in said.split("\n"))
        assert "[...]" in said


def test_a_wrong_value_is_told_in_our_words(ends):
    """The words were those of a library: `unable to parse string as an integer`."""
    with pytest.raises(Exception, match="integer") as failure:
        app.main(["translate", "--beam-size", "x"])
    said = "error: Invalid value for '--beam-size' / '-b': 'x' is not a whole number\n"
    assert ends(failure.value) == (2, said + "  hint: `tx translate --help` shows what is possible.\n")


def test_a_bug_is_one_line_and_a_traceback_on_request(ends):
    code, said = ends(ZeroDivisionError("a\nb"))
    assert (code, said) == (
        1,
        "error: a bug in tx: ZeroDivisionError: a b\n"
        "  hint: the same command with --traceback shows where; please report it.\n",
    )
    assert ends(ImportError("cannot import name", name="transformer_cli.nothing"))[0] == 1
    failures.show_tracebacks()
    code, said = ends(ZeroDivisionError("a"))
    assert code == 1
    assert said.startswith("error: a bug in tx: ZeroDivisionError: a\nTraceback (most recent call last):\n")


@pytest.mark.parametrize("redirection", ["|", "2>&1 |"])
def test_a_closed_pipe_ends_the_program_quietly(tmp_path, redirection):
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "from transformer_cli.cli import console, failures\n"
        "def main():\n"
        "    for n in range(100_000):\n"
        "        console.result(str(n))\n"
        "console.open_streams()\n"
        "sys.exit(failures.exit_code(main))\n",
        encoding="utf-8",
    )
    ended = subprocess.run(
        ["bash", "-c", f"'{sys.executable}' '{program}' {redirection} head -1; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        encoding="utf-8",
        check=False,
        cwd=Path(__file__).parents[2],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert (ended.stdout, ended.stderr) == ("0\n0\n", "")


@pytest.mark.parametrize(
    ("line", "code", "error"),
    [
        ("--version >&-", 5, "error: stdout is closed: there is nowhere to write the result to\n"),
        ("--version >&- 2>&-", 5, ""),
        ("--version 2>&-", 0, ""),
    ],
)
def test_a_result_is_not_lost_in_silence_where_stdout_is_closed(line, code, error):
    """It used to be, with exit code 0."""
    ended = subprocess.run(
        ["bash", "-c", f"'{sys.executable}' -m transformer_cli {line}"],
        check=False,
        capture_output=True,
        encoding="utf-8",
    )
    assert (ended.returncode, ended.stderr) == (code, error)


def test_what_goes_into_a_file_needs_no_stdout(trained_run, tmp_path):
    translate = f"'{sys.executable}' -m transformer_cli translate -m '{trained_run}' -o '{tmp_path / 'out'}' hello >&-"
    assert subprocess.run(["bash", "-c", translate], check=False).returncode == 0
    assert (tmp_path / "out").read_text("utf-8").count("\n") == 1


# --- the console --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}])
def test_output_is_utf8_whatever_the_locale(locale):
    ended = failing("console.result('möchte 日本'); console.say('schön')", **locale)
    assert (ended.stdout, ended.stderr) == ("möchte 日本\n", "schön\n")


def test_quiet_leaves_results_and_errors():
    ended = failing(
        "console.be_quiet(); console.say('s'); console.warn('w'); console.result('r'); console.error('e', hint='h')"
    )
    assert (ended.stdout, ended.stderr) == ("r\n", "error: e\n  hint: h\n")


class Terminal:
    """A stream that a person looks at."""

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


def on_a_terminal(monkeypatch, speak, **environment: str) -> str:
    """What a person sees when `speak` is called; pytest's own streams come and go, so only for that long."""
    terminal = Terminal()
    with monkeypatch.context() as patch:
        for name in ("NO_COLOR", "TERM"):
            patch.delenv(name, raising=False)
        for name, value in environment.items():
            patch.setenv(name, value)
        for name in ("stdout", "stderr"):
            patch.setattr(sys, name, terminal)
        speak()
    return terminal.text


@pytest.mark.parametrize(
    ("environment", "seen"),
    [
        ({}, "\x1b[33mwarning:\x1b[0m w\n"),
        ({"NO_COLOR": "1"}, "warning: w\n"),
        ({"TERM": "dumb"}, "warning: w\n"),
    ],
)
def test_colours_are_for_terminals_that_want_them(monkeypatch, environment, seen):
    assert on_a_terminal(monkeypatch, lambda: console.warn("w"), **environment) == seen


def test_a_result_is_escaped_on_a_terminal_and_untouched_in_a_pipe(monkeypatch):
    seen = on_a_terminal(monkeypatch, lambda: console.result("a\x1b]0;title\x07\u202eb\tc"))
    assert seen == "a\\x1b]0;title\\x07\\u202eb\tc\n"
    ended = failing("console.result('a\\x1b\\u202eb')")
    assert ended.stdout == "a\x1b\u202eb\n"


@given(st.text())
def test_visible_text_drives_no_terminal(text):
    shown = console.visible(text)
    assert all(char in "\n\t" or char >= " " for char in shown)
    assert not any("\x7f" <= char <= "\x9f" or char in console.BIDIRECTIONAL for char in shown)
    shown.encode("utf-8")
    if text.isprintable() and not set(text) & console.BIDIRECTIONAL:
        assert shown == text


def test_windows_is_refused_with_a_sentence(monkeypatch, capsys):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SystemExit) as caught:
        program()
    assert caught.value.code == 5
    assert capsys.readouterr().err == (
        "error: tx runs on Linux and macOS; on Windows it runs in WSL: `wsl --install`\n"
    )
