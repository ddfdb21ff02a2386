"""Attention maps as data: .npz for numpy, .json for everything else; what was saved can be drawn again.

Both hold the same, exactly: `meta`, in the .npz a JSON text, says what the pieces are; the weights are the arrays
encoder_1, ..., cross_6 of the .npz, each [head][query][key], and the `blocks` of the .json.

H heads, Q queries (rows), K keys (columns)
"""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
from numpy.typing import NDArray

from transformer_cli import files
from transformer_cli.attention_maps.maps import AttentionMaps, Block, Kind, Side, Step
from transformer_cli.config.complaints import complaint
from transformer_cli.errors import ModelError, UsageError

SCHEMA = 1
MAX_BYTES = 1 << 30
_HINT = "give a .npz or .json that tx visualize-attention -o wrote"


class _SavedBlock(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    kind: Kind
    layer: pydantic.PositiveInt
    heads: tuple[int, ...]
    module: str
    weights: Any = None


class _Saved(pydantic.BaseModel):
    """The fields of the JSON, in their order; the `meta` of an .npz is the same without weights."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    schema_: int = pydantic.Field(SCHEMA, alias="schema")
    model: str
    origin: str
    score: float | None
    source: Side
    target: Side
    steps: tuple[Step, ...]
    blocks: tuple[_SavedBlock, ...]


def as_json(maps: AttentionMaps) -> str:
    """One line of JSON; each weight has the fewest digits that give it back."""
    fields = _fields(maps)
    for block, saved in zip(maps.blocks, fields["blocks"], strict=True):
        digits = [float(str(weight)) for weight in block.weights_HQK.ravel()]
        saved["weights"] = np.array(digits).reshape(block.weights_HQK.shape).tolist()
    text = json.dumps(fields, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")  # half a surrogate pair stays the escape it was


def as_npz(maps: AttentionMaps) -> bytes:
    arrays: dict[str, Any] = {_array_name(block): block.weights_HQK for block in maps.blocks}
    buffer = io.BytesIO()
    np.savez(buffer, meta=np.array(json.dumps(_fields(maps), ensure_ascii=False, allow_nan=False)), **arrays)
    return buffer.getvalue()


def read_maps(path: str | Path) -> AttentionMaps:
    """The maps in a .npz or .json; UsageError for another suffix, ModelError for a file that does not hold maps."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (".npz", ".json"):
        raise UsageError(f"{files.shown(path)} is neither .npz nor .json", hint=_HINT)
    try:
        return _from_npz(path) if suffix == ".npz" else _from_json(path)
    except ModelError as failure:
        if str(path) in failure.message:
            raise
        raise ModelError(f"{files.shown(path)}: {failure.message}", hint=failure.hint or _HINT) from failure


def _from_json(path: Path) -> AttentionMaps:
    fields = files.read_json(path, error=ModelError, hint=_HINT)
    saved = _checked(fields, path)
    try:
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and that is refused
            weights = [np.array(block.weights, dtype=np.float32) for block in saved.blocks]
        return _maps(saved, weights)
    except (TypeError, ValueError, OverflowError):
        raise ModelError("the weights are not arrays of numbers") from None


def _from_npz(path: Path) -> AttentionMaps:
    data = files.read_bytes(path, error=ModelError, hint=_HINT)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MAX_BYTES:
                raise ModelError(f"more than {MAX_BYTES:,} bytes of arrays")
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            saved = _checked(json.loads(str(arrays["meta"])), path)
            # What does not begin like an array comes as bytes.
            weights = [np.asarray(arrays[f"{block.kind}_{block.layer}"]) for block in saved.blocks]
    except ModelError:
        raise
    except Exception:  # what numpy and zipfile raise for damage is no closed list: they parse Python, too
        raise ModelError("not a file of attention maps, or a damaged one") from None
    return _maps(saved, weights)


def _checked(fields: object, path: Path) -> _Saved:
    schema = fields.get("schema") if isinstance(fields, dict) else None
    if schema != SCHEMA or isinstance(schema, bool):
        found = "no attention maps" if schema is None else f"attention maps of schema {str(schema)[:20]}"
        raise ModelError(f"{files.shown(path)} holds {found}; this tx reads schema {SCHEMA}", hint=_HINT)
    try:
        return _Saved.model_validate(fields)
    except pydantic.ValidationError as failure:
        first = failure.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ModelError(f"{place}: {complaint(first)}") from None


def _fields(maps: AttentionMaps) -> dict[str, Any]:
    saved = _Saved(
        schema=SCHEMA,
        model=maps.model,
        origin=maps.origin,
        score=maps.score,
        source=maps.source,
        target=maps.target,
        steps=maps.steps,
        blocks=tuple(
            _SavedBlock(kind=block.kind, layer=block.layer, heads=block.heads, module=block.module)
            for block in maps.blocks
        ),
    )
    return saved.model_dump(mode="json", by_alias=True, exclude={"blocks": {"__all__": {"weights"}}})


def _maps(saved: _Saved, weights: list[NDArray[np.float32]]) -> AttentionMaps:
    blocks = (
        Block(block.kind, block.layer, block.heads, weights_HQK, block.module)
        for block, weights_HQK in zip(saved.blocks, weights, strict=True)
    )
    return AttentionMaps(
        model=saved.model,
        source=saved.source,
        target=saved.target,
        blocks=tuple(blocks),
        steps=saved.steps,
        origin=saved.origin,
        score=saved.score,
    )


def _array_name(block: Block) -> str:
    return f"{block.kind}_{block.layer}"
