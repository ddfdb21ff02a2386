"""C++ of ours, compiled for this processor where there is a compiler that can. Nothing needs it.

What was compiled is kept in the user's cache, by source, compiler and processor, with its hash behind it; where that
takes nothing, it is compiled anew each time.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

from transformer_cli.environment import local_size, processors
from transformer_cli.errors import ResourceError, UsageError
from transformer_cli.files import atomic_file, make_directory
from transformer_cli.temporary import temporary_directory

FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fopenmp", "-fPIC")
LONGEST_S = 120
MOMENT_S = 0.01
MOST_AT_ONCE = 4
"""Each compiler takes up to 200 MiB; with more of them the longest file would still take as long."""
PROCESSOR = Path("/proc/cpuinfo")
DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Library:
    """What was compiled; None where there is no compiler, or it could not, and then why."""

    loaded: ctypes.CDLL | None = None
    trouble: str | None = None


@cache
def library(folder: Path) -> Library:
    """Of all sources there: found in the cache, or made now, in a few seconds."""
    try:
        command = _command()
    except ValueError as failure:
        return Library(trouble=f"CXX: {failure}")
    if not command:
        return Library()
    try:
        name = f"{_key(folder, command)}.so"
        return Library(_kept(name) or _made(folder, command, name))
    except (OSError, ResourceError) as failure:
        return Library(trouble=f"{shlex.join(command)}: {failure}")


def keeps() -> bool:
    """Whether there is a cache that takes what is made, and gives it back."""
    with suppress(OSError, RuntimeError, ResourceError):
        make_directory(folder := _cache(""))
        return _is_ours(folder) and os.access(folder, os.W_OK)
    return False


def _command() -> Sequence[str]:
    """CXX as the environment has it, else GCC; empty where there is none. Others mean another OpenMP than PyTorch's; of
    two in a process the threads of one would be in the way of the other's."""
    wanted = os.environ.get("CXX")
    if os.name != "posix":
        return ()
    if wanted is not None:
        command = shlex.split(wanted)
        return command if command and shutil.which(command[0]) else ()
    found = shutil.which("g++") if sys.platform == "linux" else None  # elsewhere it is Clang by another name
    return [found] if found else ()


def _key(folder: Path, command: Sequence[str]) -> str:
    [version] = _ask([*command, "--version"])
    code = [part for path in sorted(folder.iterdir()) for part in (path.name.encode(), path.read_bytes())]
    parts = *code, *map(os.fsencode, (*command, *FLAGS)), version, _processor().encode()
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]


def _processor() -> str:
    """What code is made for: the model and all instructions of it, for a home may be several machines'."""
    about = [platform.machine(), platform.processor()]
    with suppress(OSError):
        lines = PROCESSOR.read_text(encoding="utf-8", errors="replace").split("\n\n", 1)[0].split("\n")
        about += [line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))]
    return "\n".join(about)


def _cache(name: str) -> Path:
    """Raises RuntimeError where there is no home. A relative path names no cache (XDG)."""
    wanted = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (wanted if wanted.is_absolute() else Path.home() / ".cache") / "tx" / name


def _kept(name: str) -> ctypes.CDLL | None:
    """None where there is nothing, or no home; where it is damaged, for to load that may end the process; or another
    user's."""
    with suppress(OSError, RuntimeError):
        place = _cache(name)
        code, digest = (whole := place.read_bytes())[:-DIGEST], whole[-DIGEST:]
        if _is_ours(place) and _is_ours(place.parent) and hashlib.sha256(code).digest() == digest:
            return ctypes.CDLL(str(place))
    return None


def _is_ours(path: Path) -> bool:
    return path.stat().st_uid == os.geteuid()


def _ask(*commands: Sequence[str], at_once: int = 1, **environment: str) -> list[bytes]:
    """What each writes, so many at once. Where one fails, none goes on."""
    waiting, running, answers = enumerate(commands), dict[int, Callable[[], bytes | None]](), dict[int, bytes]()
    with ExitStack() as stack:
        while len(answers) < len(commands):
            for place, command in islice(waiting, at_once - len(running)):
                running[place] = stack.enter_context(_asked(command, environment))
            for place, answer in list(running.items()):
                if (found := answer()) is not None:
                    answers[place] = found
                    del running[place]
    return [answers[place] for place in range(len(commands))]


@contextmanager
def _asked(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Callable[[], bytes | None]]:
    """What it writes; None while it is at work, after a moment. It has a session of its own: Ctrl-C would end it, and
    lets a run save, as one without compiled code. With the block it ends at the latest, and what it started with it."""
    pipe, variables = subprocess.PIPE, {**os.environ, **environment}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=variables, start_new_session=True
    ) as process:
        latest = time.monotonic() + LONGEST_S

        def answer() -> bytes | None:
            try:
                output, errors = process.communicate(timeout=MOMENT_S)
            except subprocess.TimeoutExpired as failure:
                if time.monotonic() < latest:
                    return None
                raise ResourceError(f"it took more than {LONGEST_S} seconds") from failure
            if process.returncode:
                lines = errors.decode(errors="replace").strip().split("\n")
                said = next((line for line in lines if "error" in line), lines[0])  # before it, where it is
                raise ResourceError(said or f"it ended with {process.returncode}")
            return output

        try:
            yield answer
        finally:
            if process.returncode is None:
                with suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)


def _at_once() -> int:
    """How many compilers: of the processors this process's share, where others on its machine compile, too."""
    with suppress(UsageError):  # who asks for processes is told of it where they are made
        return max(1, min(MOST_AT_ONCE, processors() // local_size()))
    return 1


def _made(folder: Path, command: Sequence[str], name: str) -> ctypes.CDLL:
    with temporary_directory() as place:
        made, at = place / name, str(place)  # what it puts somewhere meanwhile goes with it
        # The longest first, for none to wait for it.
        sources = sorted(folder.glob("*.cpp"), key=lambda source: source.stat().st_size, reverse=True)
        parts = [str(place / f"{source.stem}.o") for source in sources]
        steps = ([*command, *FLAGS, "-c", str(one), "-o", part] for one, part in zip(sources, parts, strict=True))
        _ask(*steps, at_once=_at_once(), TMPDIR=at)
        _ask([*command, "-shared", *parts, "-o", str(made)], TMPDIR=at)  # OpenMP is whichever PyTorch has loaded
        with suppress(OSError, RuntimeError, ResourceError):  # it is made again next time
            kept = _cache(name)
            make_directory(kept.parent)
            with atomic_file(kept) as file:
                code = made.read_bytes()
                file.write(code + hashlib.sha256(code).digest())
        return _kept(name) or ctypes.CDLL(str(made))
