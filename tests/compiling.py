"""Whether there is a compiler: tests of compiled code need one, and `scripts/test` installs it in CI."""

from __future__ import annotations

import pytest

from transformer_cli.model.compiled import code

needs_compiler = pytest.mark.skipif(code().loaded is None, reason="no C++ compiler: apt install g++")
WRITTEN_OUT_OR_COMPILED = [False, pytest.param(True, marks=needs_compiler)]
