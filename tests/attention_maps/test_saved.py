"""What is saved is what was captured, and a file that is not that is refused by name."""

from __future__ import annotations

import io
import json
import re
import zipfile

import numpy as np
import pytest
from synthetic import synthetic_maps

from transformer_cli.attention_maps.saved import as_json, as_npz, read_maps
from transformer_cli.errors import ModelError, UsageError

MAPS = synthetic_maps(["▁a", "\u202e", "▁</script>", "猫\ud800", "▁" + "x" * 200], 3, layers=(1, 2), n_padding=1)


def write(path, maps):
    path.write_bytes(as_npz(maps) if path.suffix == ".npz" else as_json(maps).encode())
    return path


@pytest.mark.parametrize("suffix", [".npz", ".json"])
def test_what_is_read_is_what_was_written_bit_for_bit(tmp_path, suffix):
    found = read_maps(write(tmp_path / f"maps{suffix}", MAPS))
    for block, other in zip(found.blocks, MAPS.blocks, strict=True):
        assert block.weights_HQK.tobytes() == other.weights_HQK.tobytes()
        assert (block.kind, block.layer, block.heads, block.module) == (
            other.kind,
            other.layer,
            other.heads,
            other.module,
        )
    for name in ("model", "source", "target", "steps", "origin", "score"):
        assert getattr(found, name) == getattr(MAPS, name)


def test_numpy_and_json_read_the_files_without_us(tmp_path):
    arrays = np.load(io.BytesIO(as_npz(MAPS)))
    assert sorted(arrays) == ["cross_1", "cross_2", "decoder_1", "decoder_2", "encoder_1", "meta"]
    fields = json.loads(as_json(MAPS))
    assert fields["schema"] == json.loads(str(arrays["meta"]))["schema"] == 1
    weights = np.array(fields["blocks"][0]["weights"], dtype=np.float32)
    np.testing.assert_array_equal(weights, arrays["encoder_1"])


def damaged_json(change):
    fields = json.loads(as_json(MAPS))
    change(fields)
    return json.dumps(fields).encode()


def archive(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)
    return buffer.getvalue()


def rezipped(field, value):
    """What as_npz writes, with one field of the archive's headers, by its place in the local ones, set otherwise."""
    data = bytearray(as_npz(MAPS))
    for signature, at in ((b"PK\x03\x04", field), (b"PK\x01\x02", field + 2)):
        for match in re.finditer(re.escape(signature), bytes(data)):
            data[match.start() + at] = value
    return bytes(data)


def overwritten(member, at, new):
    """What as_npz writes, with other bytes at a place of one array's header."""
    with zipfile.ZipFile(io.BytesIO(as_npz(MAPS))) as file:
        members = {name.removesuffix(".npy"): file.read(name) for name in file.namelist()}
    data = members[member]
    return archive(**members | {member: data[:at] + new + data[at + len(new) :]})


def put(*path, value):
    def change(fields):
        for key in path[:-1]:
            fields = fields[key]
        fields[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.json", b"", "is not JSON"),
        ("a.json", b"\xff", "is not UTF-8: byte 0"),
        ("a.json", b"[]", "holds no attention maps"),
        ("a.json", b"[" * 100_000, "is not JSON that can be read"),
        ("a.json", damaged_json(put("schema", value=2)), "schema 2; this tx reads schema 1"),
        ("a.json", damaged_json(put("schema", value=True)), "schema True; this tx reads schema 1"),
        ("a.json", damaged_json(put("blocks", value=[])), "no blocks"),
        ("a.json", damaged_json(put("blocks", 0, "heads", value=[])), "heads do not rise from 1"),
        ("a.json", damaged_json(put("blocks", 0, "heads", value=[0, 1])), "heads do not rise from 1: 0, 1"),
        ("a.json", damaged_json(put("blocks", 0, "heads", value=[2, 2])), "heads do not rise from 1: 2, 2"),
        ("a.json", damaged_json(put("blocks", 0, "heads", value=[2, 1])), "heads do not rise from 1: 2, 1"),
        ("a.json", damaged_json(put("steps", 1, "probability", value=17)), "step 2: expected the likeliest"),
        ("a.json", damaged_json(put("steps", 1, "best", value=[])), "step 2: expected the likeliest"),
        ("a.json", damaged_json(put("steps", 1, "best", 0, 1, value=0.1)), "step 2: expected the likeliest"),
        ("a.json", damaged_json(put("target", "ids", 0, value=5)), "the target does not begin with <s>"),
        ("a.json", damaged_json(put("target", "ids", -1, value=5)), "<s> and end with </s>"),
        ("a.json", damaged_json(put("source", "n_padding", value=0)), "source has 0 pieces of padding, but its ids"),
        ("a.json", damaged_json(put("source", "ids", 2, value=0)), "source has 1 piece of padding, but its ids"),
        ("a.json", damaged_json(put("source", "ids", 0, value=-1)), "the source has a negative id"),
        (
            "a.json",
            damaged_json(put("target", "pieces", 1, value="")),
            "the target has a negative id or an empty piece",
        ),
        ("a.json", damaged_json(put("blocks", 0, "weights", 0, 0, 0, value=1e300)), "not finite"),
        ("a.json", damaged_json(put("blocks", 0, "weights", 0, 0, 0, value=10**400)), "not arrays of numbers"),
        ("a.json", damaged_json(put("source", "ids", value=[1])), "the source has 7 pieces, 1 ids"),
        ("a.json", damaged_json(put("source", "ids", value="x")), r"source\.ids: 'x' is not a list"),
        ("a.json", damaged_json(put("surplus", value=1)), "surplus: nothing of that name belongs here"),
        ("a.json", damaged_json(lambda fields: fields.pop("target")), "target: it is missing"),
        ("a.json", damaged_json(put("blocks", 0, "weights", value=[[1], [1, 2]])), "not arrays of numbers"),
        (
            "a.json",
            damaged_json(put("blocks", 0, "weights", 0, 0, 0, value=7.0)),
            "encoder 1, head 1, row 1: .* sum to",
        ),
        ("a.json", damaged_json(put("blocks", 0, "weights", 0, 0, 0, value=float("nan"))), "not finite"),
        ("a.npz", b"", "not a file of attention maps"),
        ("a.npz", b"PK\x03\x04 and nothing more", "not a file of attention maps"),
        ("a.npz", as_npz(MAPS)[:-500], "not a file of attention maps"),
        ("a.npz", archive(x=b"no array"), "not a file of attention maps"),
        ("a.npz", archive(meta=b"\x93NUMPY\x01\x00\x06\x00{}    "), "not a file of attention maps"),
        ("a.npz", overwritten("cross_1", 0, b"r"), "cross 1: expected float32 weights of shape .*, found .S"),
        ("a.npz", overwritten("cross_1", 99, b"("), "not a file of attention maps, or a damaged one"),
        ("a.npz", overwritten("cross_1", 21, b"<04"), "not a file of attention maps, or a damaged one"),
        ("a.npz", rezipped(6, 1), "not a file of attention maps, or a damaged one"),
        ("a.npz", rezipped(8, 8).replace(b"\x93NUMPY", b"\xffNUMPY"), "not a file of attention maps, or a damaged one"),
        ("a.npz", rezipped(8, 99), "not a file of attention maps, or a damaged one"),
    ],
)
def test_another_file_is_refused_with_its_name_and_the_reason(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ModelError, match=message) as failure:
        read_maps(tmp_path / name)
    assert name in failure.value.message


def test_a_pickle_in_an_archive_is_not_opened(tmp_path):
    buffer = io.BytesIO()
    np.savez(buffer, meta=np.array([object()], dtype=object))
    (tmp_path / "a.npz").write_bytes(buffer.getvalue())
    with pytest.raises(ModelError, match="not a file of attention maps, or a damaged one"):
        read_maps(tmp_path / "a.npz")


def test_a_file_that_is_missing_or_of_another_kind_is_refused(tmp_path):
    with pytest.raises(ModelError, match="does not exist"):
        read_maps(tmp_path / "none.npz")
    with pytest.raises(UsageError, match=r"neither \.npz nor \.json"):
        read_maps(tmp_path / "picture.png")
