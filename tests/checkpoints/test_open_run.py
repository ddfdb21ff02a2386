"""A run is opened whole, as it was trained, or refused with the reason."""

from __future__ import annotations

import json
import os
import re
import shutil

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from transformer_cli.checkpoints import store
from transformer_cli.checkpoints.find import find_checkpoint
from transformer_cli.checkpoints.tensors import load_weights, portion, weights
from transformer_cli.config.model import ModelConfig
from transformer_cli.config.run import RunConfig
from transformer_cli.config.source import dump_config
from transformer_cli.config.tokenizer import TokenizerConfig
from transformer_cli.errors import ModelError
from transformer_cli.model.build import build_model
from transformer_cli.sealing import sealed, unsealed
from transformer_cli.tokenizer import train_tokenizer

SOURCE = ["ein kleiner hund", "eine kleine katze", "der hund trinkt"]
TARGET = ["a small dog", "a small cat", "the dog drinks"]
CONFIG = RunConfig(
    name="x",
    model=ModelConfig(d_model=8, n_heads=2, d_ff=16, n_layers=1),
    tokenizer=TokenizerConfig(kind="word", vocab_size=20),
)


def make_run(run_dir, config=CONFIG, *, target=TARGET):
    tokenizer, _ = train_tokenizer(config.tokenizer, SOURCE, target, seed=1)
    tokenizer.save(run_dir / "tokenizer")
    (run_dir / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    torch.manual_seed(1)
    model = build_model(config.model, source_vocab=tokenizer.source_size, target_vocab=tokenizer.target_size)
    path = store.save_checkpoint(
        run_dir,
        step=3,
        model=portion(weights(model)),
        optimizer=portion({}),
        state={},
        config=config,
        tokenizer=tokenizer.fingerprint,
    )
    return path, model


@pytest.fixture
def run(tmp_path):
    run_dir = tmp_path / "runs" / "x"
    make_run(run_dir)
    return run_dir


def test_a_run_can_be_moved_and_opened_elsewhere(run, tmp_path, monkeypatch):
    before = store.open_run(find_checkpoint(str(run)))
    elsewhere = tmp_path / "ganz wo änders"
    shutil.move(run, elsewhere)
    monkeypatch.chdir(elsewhere)
    after = store.open_run(find_checkpoint("."))
    assert after.config == before.config == CONFIG
    assert after.tokenizer.encode_source(SOURCE) == before.tokenizer.encode_source(SOURCE)
    assert not after.model.training
    torch.testing.assert_close(weights(after.model), weights(before.model), rtol=0, atol=0)


@pytest.mark.parametrize("tied", ["all", "decoder", "none"])
@pytest.mark.parametrize("positions", ["sinusoidal", "sinusoidal-table", "learned", "rotary", "none"])
def test_every_tying_comes_back_with_one_stored_copy(tmp_path, tied, positions):
    """T26: what is stored has as many numbers as the model has parameters, and the ties are ties again."""
    config = CONFIG.model_copy(update={"model": CONFIG.model.model_copy(update={"tied": tied, "positions": positions})})
    path, model = make_run(tmp_path / "run", config)
    stored = store.load_checkpoint(path, with_optimizer=False).model
    opened = store.open_run(path).model
    assert sum(tensor.numel() for tensor in stored.values()) == sum(p.numel() for p in model.parameters())
    assert (opened.output.weight is opened.target_embedding.table.weight) == (tied != "none")
    assert (opened.source_embedding.table.weight is opened.target_embedding.table.weight) == (tied == "all")
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(opened.state_dict()[name], tensor, rtol=0, atol=0)
    trained = [{name for name, one in each.named_parameters() if one.requires_grad} for each in (opened, model)]
    assert trained[0] == trained[1]
    ids, lengths = torch.tensor([[4, 5, 6]]), torch.tensor([3])
    assert torch.equal(opened(ids, lengths, ids), model.eval()(ids, lengths, ids))


class Draws(TorchDispatchMode):
    """What is drawn at random, apart from tensors that have no numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags and result.device.type != "meta":
            self.found.append(str(func))
        return result


def test_a_run_is_opened_without_a_draw(run):
    """Random weights used to be made first, from the caller's generator, to be overwritten."""
    before = torch.get_rng_state()
    with Draws() as draws:
        store.open_run(find_checkpoint(str(run)))
    assert draws.found == []
    assert torch.equal(torch.get_rng_state(), before)


def test_the_same_weights_make_the_same_file_whatever_order_they_come_in(run):
    model = store.open_run(find_checkpoint(str(run))).model
    named = weights(model)
    assert file_of(named) == file_of(dict(reversed(named.items())))


def file_of(tensors):
    one = portion(tensors)
    return one.header + b"".join(piece for _, piece in one.pieces())


def message_of(path):
    with pytest.raises(ModelError) as caught:
        store.open_run(find_checkpoint(str(path)))
    assert caught.value.exit_code == 4
    assert caught.value.hint
    return caught.value.message


def test_another_tokenizer_of_the_same_size_is_refused_by_content(run, tmp_path):
    """T105."""
    make_run(tmp_path / "other", target=["a small dog", "a small cat", "the dog thinks"])
    shutil.rmtree(run / "tokenizer")
    shutil.copytree(tmp_path / "other" / "tokenizer", run / "tokenizer")
    assert "is not the tokenizer that" in message_of(run)


@pytest.mark.parametrize("name", ["config.yaml", "tokenizer"])
def test_a_checkpoint_without_its_run_says_what_to_copy(run, name):
    (run / name).rename(run / "gone")
    assert f"{name} does not exist" in message_of(run)


def test_a_run_from_before_counting_had_its_own_section_is_opened(run):
    """What is only counted was part of `model:` then, in config.yaml and in the sealed manifest."""
    counted = {"architecture": "encoder-decoder", "vocab": None, "extra": []}
    text = (run / "config.yaml").read_text(encoding="utf-8")
    assert "accounting" not in text
    older = "model:\n  architecture: encoder-decoder\n  vocab: null\n  extra: []\n"
    (run / "config.yaml").write_text(text.replace("model:\n", older), encoding="utf-8")
    path = find_checkpoint(str(run)) / "manifest.json"
    manifest = json.loads(path.read_bytes())
    del manifest["sha256"]
    assert manifest["model"].keys().isdisjoint(counted)
    path.write_bytes(sealed({**manifest, "model": {**counted, **manifest["model"]}}))
    assert store.open_run(path.parent).config == CONFIG


def cut_anywhere(text):
    return [text[:end] for end in range(0, len(text), 7)]


def test_a_configuration_that_was_cut_anywhere_is_damage_and_no_edit(run):
    """Behind `model:` and `data:`, which the manifest seals, the rest was filled up with defaults."""
    path = run / "config.yaml"
    whole = path.read_text(encoding="utf-8")
    for rest in cut_anywhere(whole.removesuffix("\n")):  # which an editor may take away, without any harm
        path.write_text(rest, encoding="utf-8")
        assert "config.yaml is damaged" in message_of(run)


@pytest.mark.parametrize("name", ["decoding", "evaluation", "training"])
def test_a_configuration_of_before_it_had_an_end_is_cut_where_a_section_is_missing(run, name):
    path = run / "config.yaml"
    text = path.read_text(encoding="utf-8").removeprefix("---\n").removesuffix("...\n")
    path.write_text(text, encoding="utf-8")
    assert store.open_run(find_checkpoint(str(run))).config == CONFIG
    path.write_text(text[: text.index(f"\n{name}:") + 1], encoding="utf-8")
    assert f"it has no {name}" in message_of(run)


@pytest.mark.parametrize("change", [("beam_size: 5", "beam_size: 5x"), ("decoding:", "decodinf:"), ("seed:", "\0eed:")])
def test_a_configuration_that_says_what_none_may_is_damage_with_its_place(run, change):
    """It was a mistake of the command line's, exit code 2."""
    path = run / "config.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace(*change), encoding="utf-8")
    assert re.search(r"config\.yaml is damaged: .*config\.yaml:\d+:\d+: ", message_of(run), re.DOTALL)


@pytest.mark.parametrize(
    "edited",
    [
        lambda text: text.removesuffix("\n"),
        lambda text: f"{text}\n# good\n",
        lambda text: f"# mine\n{text}",
        lambda text: f"\ufeff{text}".replace("\n", "\r\n"),
    ],
    ids=["no end of line", "remark at the end", "remark at the top", "as Windows has it"],
)
def test_what_an_editor_adds_or_takes_away_is_no_damage(run, edited):
    """It was to end before its last line, which it had."""
    path = run / "config.yaml"
    whole = path.read_text(encoding="utf-8")
    path.write_bytes(edited(whole).encode())
    assert store.open_run(find_checkpoint(str(run))).config == CONFIG
    path.write_bytes(edited(whole[: whole.rindex("serving:")]).encode())
    assert "it ends before its last line, ..." in message_of(run)


@pytest.mark.parametrize(
    "name", ["run.json", "tokenizer/tokenizer.json", "checkpoints/step-00000003/manifest.json", "config.yaml", "best"]
)
def test_a_byte_order_mark_that_an_editor_put_first_is_no_damage(run, name):
    """All but config.yaml were damaged, or not JSON, or named no checkpoint."""
    (run / "run.json").write_text('{"seed": 7}', encoding="utf-8")
    (run / "best").write_text("step-00000003\n", encoding="utf-8")
    path = run / name
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    opened = store.open_run(find_checkpoint(str(run)))
    assert (opened.config, opened.record) == (CONFIG, {"seed": 7})


def test_a_setting_that_was_changed_by_hand_is_believed(run):
    path = run / "config.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("beam_size: 5", "beam_size: 7"), encoding="utf-8")
    assert store.open_run(find_checkpoint(str(run))).config.decoding.beam_size == 7


def test_a_model_section_changed_after_training_is_named(run):
    text = (run / "config.yaml").read_text(encoding="utf-8")
    (run / "config.yaml").write_text(text.replace("activation: relu", "activation: gelu"), encoding="utf-8")
    assert "activation: gelu (trained: relu)" in message_of(run)


@pytest.mark.parametrize(
    ("line", "other", "named"),
    [
        ("source_eos: true", "source_eos: false", "data.source_eos: False (trained: True)"),
        ("max_length: 256", "max_length: 9", "data.max_length: 9 (trained: 256)"),
        ("source: de\n  target: en", "source: en\n  target: de", "data.source: en (trained: de)"),
    ],
)
def test_a_setting_that_changes_what_weights_mean_is_sealed_with_them(run, line, other, named):
    """With `source_eos` flipped a run translated differently, and said nothing."""
    text = (run / "config.yaml").read_text(encoding="utf-8")
    assert f"  {line}\n" in text
    (run / "config.yaml").write_text(text.replace(f"  {line}\n", f"  {other}\n"), encoding="utf-8")
    assert named in message_of(run)


def test_a_checkpoint_of_before_these_were_sealed_opens(run):
    path = find_checkpoint(str(run)) / "manifest.json"
    fields = unsealed(path.read_bytes())
    del fields["data"]
    path.write_bytes(sealed(fields | {"format": 1}))
    assert store.open_run(path.parent).config == CONFIG


def forge(run, **model):
    """A run whose configuration and manifest agree with each other, and not with its tensors."""
    path = find_checkpoint(str(run))
    config = CONFIG.model_copy(update={"model": CONFIG.model.model_copy(update=model)})
    loaded = store.load_checkpoint(path, with_optimizer=True)
    shutil.rmtree(path)
    (run / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    store.save_checkpoint(
        run,
        step=3,
        model=portion(loaded.model),
        optimizer=portion({}),
        state={},
        config=config,
        tokenizer=loaded.tokenizer,
    )


@pytest.mark.parametrize("model", [{"d_model": 10**6}, {"d_ff": 10**6}, {"n_layers": 1000}])
def test_a_configuration_of_absurd_size_is_refused_before_memory_is_taken(run, model):
    """T117."""
    forge(run, **model)
    assert "model.safetensors" in message_of(run)


def test_weights_that_do_not_fit_are_named_with_both_shapes(run):
    forge(run, d_ff=24)
    message = message_of(run)
    assert "16 x 8 (float32), the configuration says 24 x 8 (float32)" in message


def test_loading_refuses_missing_and_foreign_names_and_changes_nothing(run):
    model = store.open_run(find_checkpoint(str(run))).model
    before = {name: tensor.clone() for name, tensor in weights(model).items()}
    wrong = {name: tensor + 1 for name, tensor in before.items()}
    del wrong["target_embedding.table.weight"]
    wrong["foreign"] = torch.ones(1)
    with pytest.raises(ModelError, match=r"foreign is not part of the model\n.*target_embedding.*is missing"):
        load_weights(model, wrong, origin="x")
    torch.testing.assert_close(weights(model), before, rtol=0, atol=0)


def test_the_latest_run_is_named_by_its_path_from_the_runs_directory(tmp_path):
    path, _ = make_run(tmp_path / "elsewhere" / "x")
    store.mark_latest("runs/y")
    assert (tmp_path / "runs/latest").read_text() == "y\n"
    store.mark_latest(tmp_path / "elsewhere" / "x")
    assert (tmp_path / "runs/latest").read_text() == os.path.join("..", "elsewhere", "x") + "\n"
    assert find_checkpoint(None).resolve() == path


def test_the_latest_run_is_found_where_the_runs_directory_is_a_link(tmp_path):
    """`..` led out of where the link leads."""
    (tmp_path / "large" / "disk").mkdir(parents=True)
    (tmp_path / "runs").symlink_to("large/disk")
    for run_dir in ("elsewhere/x", "runs/y", "large/disk/z", "runs/../w", "."):
        path, _ = make_run(tmp_path / run_dir)
        store.mark_latest(run_dir)
        assert find_checkpoint(None).resolve() == path.resolve()
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "elsewhere" / "x")
    store.mark_latest("runs/link")
    assert (tmp_path / "runs/latest").read_text() == "link\n"


def test_a_run_is_called_by_its_name_wherever_its_path_begins(run, monkeypatch):
    """In its directory, `tx evaluate -m .` kept the scores of a checkpoint called ``."""
    run_dir = run.rename(run.with_name("caf\udce9"))
    [checkpoint] = store.list_checkpoints(run_dir)
    for folder in (run_dir, checkpoint):
        monkeypatch.chdir(folder)
        opened = store.open_run(find_checkpoint("."))
        assert opened.checkpoint_name == checkpoint.name
        assert opened.title == rf"'caf\udce9', {checkpoint.name}"
