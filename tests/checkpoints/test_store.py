"""A checkpoint is there, whole, or it is not there; what was saved before is never lost."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import shutil

import pytest
import torch
from faults import Killer, Saboteur
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_cli import files
from transformer_cli.checkpoints import store
from transformer_cli.checkpoints.find import find_checkpoint, list_checkpoints
from transformer_cli.checkpoints.tensors import portion
from transformer_cli.config.model import Depths, ModelConfig
from transformer_cli.config.run import RunConfig
from transformer_cli.errors import DivergedError, ModelError, ResourceError
from transformer_cli.sealing import sealed

CONFIG = ModelConfig(d_model=8, n_heads=2, d_ff=16, n_layers=Depths(encoder=1, decoder=2), dropout=0.3)
FILES = ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"]


def tensors_of(step):
    generator = torch.Generator().manual_seed(step)
    return {
        "weight": torch.randn(3, 4, generator=generator),
        "half": torch.randn(5, generator=generator).bfloat16(),
        "scalar": torch.tensor(step),
        "empty": torch.zeros(0, 4),
        "transposed": torch.randn(4, 3, generator=generator).T,
    }


def save(run, step, **changes):
    arguments = {
        "model": tensors_of(step),
        "optimizer": {"moment": torch.full((4,), float(step))},
        "state": {"epoch": 1, "best": None, "loss": step / 3, "text": "ü\u2028"},
        "config": RunConfig(model=CONFIG),
        "tokenizer": "f1ngerprint",
    }
    arguments |= changes
    portions = {name: portion(arguments.pop(name)) for name in ("model", "optimizer")}
    return store.save_checkpoint(run, step=step, **portions, **arguments)


def steps(run):
    return [int(path.name.removeprefix("step-")) for path in list_checkpoints(run)]


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_loads(run, step):
    loaded = store.load_checkpoint(run / "checkpoints" / f"step-{step:08d}", with_optimizer=True)
    torch.testing.assert_close(loaded.model, tensors_of(step), rtol=0, atol=0)
    assert loaded.step == step
    assert loaded.state["loss"] == step / 3


def error_of(action):
    try:
        action()
    except Exception as error:
        return error
    return None


def test_what_is_loaded_is_what_was_saved(tmp_path):
    path = save(tmp_path, 7)
    loaded = store.load_checkpoint(path, with_optimizer=True)
    assert sorted(bytes_of(path)) == sorted(FILES)
    assert_loads(tmp_path, 7)
    assert loaded.optimizer["moment"].tolist() == [7.0] * 4
    assert loaded.state == {"epoch": 1, "best": None, "loss": 7 / 3, "text": "ü\u2028"}
    assert (loaded.config, loaded.tokenizer) == (CONFIG, "f1ngerprint")
    assert store.load_checkpoint(path, with_optimizer=False).optimizer is None


def test_saving_what_was_loaded_gives_the_same_bytes(tmp_path):
    path = save(tmp_path / "a", 7)
    loaded = store.load_checkpoint(path, with_optimizer=True)
    again = save(tmp_path / "b", 7, model=loaded.model, optimizer=loaded.optimizer, state=loaded.state)
    assert bytes_of(again) == bytes_of(path)


def test_the_manifest_is_json_with_the_size_and_hash_of_each_file(tmp_path):
    path = save(tmp_path, 7)
    manifest = json.loads((path / "manifest.json").read_text("utf-8"))
    assert manifest["files"] == {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in bytes_of(path).items()
        if name != "manifest.json"
    }


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_whichever_operation_of_a_save_fails_the_last_checkpoint_still_loads(tmp_path, monkeypatch, number):
    """T08, T09: the loop ends by a success, so every operation has had its turn."""
    original = tmp_path / "original"
    save(original, 1)
    failures = 0
    for nth in range(1, 200):
        run = tmp_path / str(nth)
        shutil.copytree(original, run)
        saboteur = Saboteur(nth, OSError(number, os.strerror(number)))
        monkeypatch.setattr(files, "disk", saboteur)
        error = error_of(lambda run=run: save(run, 2))
        monkeypatch.setattr(files, "disk", files.Disk())
        if error is None:
            assert not saboteur.struck
            break
        failures += 1
        assert isinstance(error, ResourceError)
        assert str(run) in error.message
        assert_loads(run, 1)
        newest = find_checkpoint(str(run))
        assert_loads(run, store.load_checkpoint(newest, with_optimizer=True).step)
        assert steps(run) in ([1], [1, 2])
        save(run, 2)  # once the disk is well again
        assert sorted(os.listdir(run)) == ["checkpoints", "last"]
        assert sorted(os.listdir(run / "checkpoints")) == ["step-00000001", "step-00000002"]
    assert failures >= 15
    assert steps(run) == [1, 2]


def test_killed_at_any_operation_a_save_leaves_the_old_step_or_the_new_one(tmp_path):
    """T01 to T06."""
    original = tmp_path / "original"
    save(original, 1)
    outcomes = []
    for nth in range(1, 200):
        run = tmp_path / str(nth)
        shutil.copytree(original, run)
        died = Killer(nth).run(lambda run=run: save(run, 2))
        path = find_checkpoint(str(run))
        outcomes.append(store.load_checkpoint(path, with_optimizer=True).step)
        for step in steps(run):
            assert_loads(run, step)
        save(run, 3)
        assert not [name for name in os.listdir(run / "checkpoints") if not name.startswith("step-")]
        if not died:
            break
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {1, 2}
    assert len(outcomes) >= 15


def test_a_checkpoint_that_owed_a_validation_is_replaced_and_killed_at_any_operation_one_of_both_is_there(tmp_path):
    original = tmp_path / "original"
    save(original, 1, state={"owes_validation": True})
    owed = bytes_of(original / "checkpoints/step-00000001")
    save(original, 1, state={"owes_validation": True, "other": 1})
    assert bytes_of(original / "checkpoints/step-00000001") == owed
    outcomes = []
    for nth in range(1, 200):
        run = tmp_path / str(nth)
        shutil.copytree(original, run)
        died = Killer(nth).run(lambda run=run: save(run, 1, state={"owes_validation": False}))
        assert len(list_checkpoints(run)) == 1
        assert store.load_checkpoint(find_checkpoint(str(run)), with_optimizer=True).step == 1
        store.put_back(run)  # as the next training does
        state = store.load_checkpoint(find_checkpoint(str(run)), with_optimizer=True).state
        outcomes.append(state["owes_validation"])
        save(run, 2)
        assert sorted(os.listdir(run / "checkpoints")) == ["step-00000001", "step-00000002"]
        if not died:
            break
    assert outcomes == sorted(outcomes, reverse=True)
    assert set(outcomes) == {True, False}
    assert len(outcomes) >= 15


def test_what_others_named_alike_is_left_as_it_is(tmp_path):
    """A copy called `before-...` got another name, or was deleted."""
    save(tmp_path, 1)
    folder = tmp_path / "checkpoints"
    for name in ("good", "before-good", "before-step-1"):
        shutil.copytree(folder / "step-00000001", folder / name)
    (folder / "before-step-00000002").write_text("notes")
    (folder / "before-step-00000003").symlink_to("step-00000001")
    there = {path: bytes_of(path) for path in folder.iterdir() if path.is_dir()}
    store.put_back(tmp_path)
    assert {path: bytes_of(path) for path in folder.iterdir() if path.is_dir()} == there
    assert (folder / "before-step-00000002").read_text() == "notes"


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_whichever_operation_of_that_fails_one_of_both_is_there(tmp_path, monkeypatch, number):
    original = tmp_path / "original"
    save(original, 1, state={"owes_validation": True})
    for nth in range(1, 200):
        run = tmp_path / str(nth)
        shutil.copytree(original, run)
        saboteur = Saboteur(nth, OSError(number, os.strerror(number)))
        monkeypatch.setattr(files, "disk", saboteur)
        error = error_of(lambda run=run: save(run, 1, state={"owes_validation": False}))
        monkeypatch.setattr(files, "disk", files.Disk())
        store.load_checkpoint(run / "checkpoints/step-00000001", with_optimizer=True)
        if error is None:
            break
        assert isinstance(error, ResourceError)
        assert str(run) in error.message
    assert nth >= 15
    assert not saboteur.struck
    assert os.listdir(run / "checkpoints") == ["step-00000001"]


def test_killed_at_any_operation_pruning_lists_nothing_half_deleted(tmp_path):
    """T07."""
    original = tmp_path / "original"
    for step in (1, 2, 3):
        save(original, step)
    for nth in range(1, 200):
        run = tmp_path / str(nth)
        shutil.copytree(original, run)
        died = Killer(nth).run(lambda run=run: store.prune(run, set()))
        assert steps(run)[-1] == 3
        for step in steps(run):
            assert_loads(run, step)
        if not died:
            break
    assert nth >= 12
    assert steps(run) == [3]


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_anywhere_is_named_and_never_loaded(tmp_path, name):
    """T13: the first bytes and a sample of the rest."""
    save(tmp_path, 1)
    path = save(tmp_path, 2)
    data = (path / name).read_bytes()
    bits = range(8 * len(data))
    for place in {*bits[:128], *random.Random(1).choices(bits, k=200)}:
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        (path / name).write_bytes(flipped)
        error = error_of(lambda: store.load_checkpoint(path, with_optimizer=True))
        assert isinstance(error, ModelError), place
        assert error.exit_code == 4
        assert str(path) in error.message
        assert error.hint


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_short_made_longer_or_missing_is_named(tmp_path, name):
    """T14, T15; the way out is another checkpoint of the run."""
    good = save(tmp_path, 1)
    path = save(tmp_path, 2)
    data = (path / name).read_bytes()
    for changed in [b"", data[:1], data[: len(data) // 2], data[:-1], data + b"\n", None]:
        (path / name).unlink()
        if changed is not None:
            (path / name).write_bytes(changed)
        with pytest.raises(ModelError, match=name) as caught:
            store.load_checkpoint(path, with_optimizer=True)
        assert caught.value.hint == f"use another checkpoint of this run, for example -m {good}"
        if changed is None:
            break


def test_a_file_that_is_not_ours_is_ignored_and_kept(tmp_path):
    path = save(tmp_path, 1)
    (path / "notes.txt").write_text("mine")
    assert_loads(tmp_path, 1)
    assert (path / "notes.txt").read_text() == "mine"


def reseal(path, *, contents=None, **changes):
    """What an attacker can do: a manifest that is right in itself."""
    manifest = json.loads((path / "manifest.json").read_bytes())
    del manifest["sha256"]
    for name, data in (contents or {}).items():
        (path / name).write_bytes(data)
        manifest["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest.update(changes)
    (path / "manifest.json").write_bytes(sealed(manifest))


class Canary:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_a_pickle_called_safetensors_is_refused_and_does_not_run(tmp_path):
    """T115."""
    path = save(tmp_path, 1)
    torch.save({"weight": Canary(tmp_path / "canary")}, tmp_path / "model.pt")
    reseal(path, contents={"model.safetensors": (tmp_path / "model.pt").read_bytes()})
    with pytest.raises(ModelError, match=r"model\.safetensors is damaged"):
        store.load_checkpoint(path, with_optimizer=False)
    assert not (tmp_path / "canary").exists()


def safetensors_file(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


POISON = {
    "a header beyond the file": (2**40).to_bytes(8, "little") + b"{}",
    "a negative header": b"\xff" * 8 + b"{}",
    "not JSON": safetensors_file(b"{{{"),
    "deep JSON": safetensors_file(b"[" * 100_000),
    "overlap": safetensors_file({"a": entry([1], 0, 4), "b": entry([1], 2, 6)}, b"\0" * 6),
    "a hole": safetensors_file({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, b"\0" * 12),
    "offsets outside": safetensors_file({"a": entry([1000], 0, 4000)}, b"\0" * 4),
    "negative offsets": safetensors_file({"a": entry([1], -4, 0)}, b"\0" * 4),
    "a shape that overflows": safetensors_file({"a": entry([2**33, 2**33], 0, 0)}),
    "an unknown type": safetensors_file({"a": entry([1], 0, 4, "Q99")}, b"\0" * 4),
    "a doubled name": safetensors_file(
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
        b"\0" * 8,
    ),
    "nothing": b"",
}


@pytest.mark.parametrize("kind", POISON)
def test_a_poisoned_safetensors_file_is_refused(tmp_path, kind):
    """T115."""
    path = save(tmp_path, 1)
    reseal(path, contents={"model.safetensors": POISON[kind]})
    with pytest.raises(ModelError, match=r"model\.safetensors is damaged"):
        store.load_checkpoint(path, with_optimizer=False)


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "other.json", "model.safetensors\0", ""])
def test_a_manifest_cannot_name_a_file_of_its_choice(tmp_path, name):
    """T116."""
    path = save(tmp_path, 1)
    listed = json.loads((path / "manifest.json").read_bytes())["files"]
    reseal(path, files={**listed, name: {"bytes": 0, "sha256": "0" * 64}})
    with pytest.raises(ModelError, match=r"manifest\.json is damaged"):
        store.load_checkpoint(path, with_optimizer=False)


def test_a_pipe_in_the_place_of_a_file_is_refused_without_waiting(tmp_path):
    path = save(tmp_path, 1)
    (path / "state.json").unlink()
    os.mkfifo(path / "state.json")
    with pytest.raises(ModelError, match=r"state\.json is not a file"):
        store.load_checkpoint(path, with_optimizer=False)


def test_a_checkpoint_of_a_newer_tx_says_so(tmp_path):
    """T24."""
    path = save(tmp_path, 1)
    reseal(path, format=4, tx="99.0", files={"weights.new": {}})
    with pytest.raises(ModelError, match=r"written by tx '99\.0' in format 4") as caught:
        store.load_checkpoint(path, with_optimizer=False)
    assert caught.value.hint == "use a newer tx"


def test_a_renamed_checkpoint_is_not_taken_for_another_step(tmp_path):
    path = save(tmp_path, 1)
    with pytest.raises(ModelError, match="holds step 1"):
        store.load_checkpoint(path.rename(path.with_name("step-00000009")), with_optimizer=False)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("part", ["model", "optimizer"])
def test_numbers_that_are_not_finite_are_not_saved_and_cost_no_earlier_checkpoint(tmp_path, part, bad):
    """T27."""
    save(tmp_path, 1)
    tensors = {"fine": torch.ones(3), "layer.weight": torch.tensor([0.0, bad])}
    with pytest.raises(DivergedError, match=r"layer\.weight") as caught:
        save(tmp_path, 2, **{part: tensors})
    assert caught.value.exit_code == 6
    assert steps(tmp_path) == [1]
    assert_loads(tmp_path, 1)


def test_two_names_of_one_tensor_are_refused(tmp_path):
    """T26: a tied tensor is kept once; the model ties it again."""
    shared = torch.ones(3)
    with pytest.raises(ValueError, match="a and b are the same tensor"):
        save(tmp_path, 1, model={"a": shared, "b": shared.view(3, 1)})
    assert not (tmp_path / "checkpoints").exists()


def test_a_complete_checkpoint_is_kept_when_its_step_is_saved_again(tmp_path):
    path = save(tmp_path, 1)
    before = bytes_of(path)
    save(tmp_path, 1, state={"other": True})
    assert bytes_of(path) == before


def test_a_damaged_checkpoint_is_replaced_when_its_step_is_saved_again(tmp_path):
    path = save(tmp_path, 1)
    (path / "model.safetensors").write_bytes(b"")
    save(tmp_path, 1)
    assert_loads(tmp_path, 1)


def test_pruning_goes_by_the_number_and_spares_best_and_last(tmp_path):
    """T20: 9 is older than 10, and the best is the oldest of all."""
    for step in (9, 10, 99, 100):
        save(tmp_path, step)
    store.point(tmp_path, "best", 9)
    assert store.prune(tmp_path, {99}) == [10]
    assert steps(tmp_path) == [9, 99, 100]
    assert store.prune(tmp_path, set()) == [99]
    assert store.prune(tmp_path, set()) == []


def test_pruning_leaves_alone_what_it_does_not_know(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    folder = tmp_path / "checkpoints"
    foreign = ["step-1", "step-00000000001", "step-00000003", "best-model", ".hidden"]  # step 3 has no manifest
    for name in foreign:
        (folder / name).mkdir()
        (folder / name / "mine").write_text("mine")
    outside = tmp_path / "outside"
    shutil.move(folder / "step-00000001", outside)
    (folder / "step-00000001").symlink_to(outside)
    assert store.prune(tmp_path, set()) == []
    assert sorted(os.listdir(folder)) == sorted([*foreign, "step-00000001", "step-00000002"])
    assert (outside / "manifest.json").exists()


def test_pruning_refuses_to_guess_when_a_pointer_is_unreadable(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step)
    (tmp_path / "best").write_text("../../precious")
    with pytest.raises(ModelError, match="should name a checkpoint"):
        store.prune(tmp_path, set())
    assert steps(tmp_path) == [1, 2, 3]


@settings(max_examples=25)
@given(
    saved=st.lists(st.integers(0, 10**10), min_size=1, max_size=6, unique=True),
    keep=st.sets(st.integers(0, 5)),
    best=st.none() | st.integers(0, 5),
)
def test_pruning_keeps_exactly_what_it_must(tmp_path_factory, saved, keep, best):
    run = tmp_path_factory.mktemp("run")
    for step in saved:
        save(run, step, model={"w": torch.ones(1)})
    kept = {saved[i] for i in keep if i < len(saved)} | {saved[-1], max(saved)}
    if best is not None:
        store.point(run, "best", saved[best % len(saved)])
        kept.add(saved[best % len(saved)])
    assert store.prune(run, {saved[i] for i in keep if i < len(saved)}) == sorted(set(saved) - kept)
    assert steps(run) == sorted(kept)
