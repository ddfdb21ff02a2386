"""Files that somebody spoiled: bytes of good ones with some put in, taken out, repeated; values of good JSON likewise.

TX_FUZZ=N tries N of each instead of a few.
"""

from __future__ import annotations

import copy
import json
import os
import resource
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

TRIED = int(os.environ.get("TX_FUZZ", "0"))
SLOW_MS = 2000
MOST_BYTES = 200 << 20

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([-1, 2**31, 2**63, 10**40]) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


def tries(n: int) -> settings:
    """So many examples, or as many as the environment says, none of which may take long."""
    health = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(max_examples=TRIED or n, deadline=SLOW_MS, suppress_health_check=health)


@st.composite
def spoiled(draw: st.DrawFn, good: Sequence[bytes], snippets: Sequence[bytes] = ()) -> bytes:
    """Good bytes with a few put in, taken out, turned or repeated."""
    data = draw(st.sampled_from(good))
    put_in = st.binary(max_size=4) | st.sampled_from([b"", *snippets])
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 20)))
        data = data[:start] + draw(put_in | st.just(data[start:end] * 2)) + data[end:]
    return data


@st.composite
def spoiled_json(draw: st.DrawFn, good: Any) -> Any:
    """A good value of which a few parts are others, gone, or more."""
    value = {"": copy.deepcopy(good)}
    for _ in range(draw(st.integers(1, 3))):
        inside: Any = value
        key: Any = ""
        while isinstance(inside[key], dict | list) and inside[key] and draw(st.integers(0, 3)):
            inside = inside[key]
            key = draw(st.sampled_from(sorted(inside) if isinstance(inside, dict) else range(len(inside))))
        if draw(st.booleans()) or inside is value:
            inside[key] = draw(JSON)
        elif isinstance(inside, dict):
            inside[draw(st.text(max_size=8))] = inside.pop(key)
        else:
            inside.append(inside[key])
    return value[""]


def as_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True).encode()


@contextmanager
def little_memory() -> Iterator[None]:
    """The process needs not much more at the end than at the beginning, nor in between."""
    before = _most()
    yield
    assert _most() - before < MOST_BYTES


def _most() -> int:
    return (1 if sys.platform == "darwin" else 1024) * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
