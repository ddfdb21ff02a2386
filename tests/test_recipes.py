"""A recipe of each kind from outside of the package: one class or function, one line, and its name in the YAML."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from conftest import PAIRS

from transformer_cli.checkpoints.store import load_checkpoint
from transformer_cli.cli import failures
from transformer_cli.cli.app import main
from transformer_cli.config.evaluation import EvaluationConfig
from transformer_cli.config.model import POSITIONS, ModelConfig
from transformer_cli.config.run import RunConfig
from transformer_cli.errors import ResourceError
from transformer_cli.evaluation import report
from transformer_cli.model.build import build_model
from transformer_cli.model.prepared import Prepared

OUTSIDE = Path(__file__).parent / "outside"
ENTRY_POINTS = """
[transformer_cli.positions]
relative = recipes:Relative

[transformer_cli.searches]
shortest = recipes:shortest

[transformer_cli.metrics]
exact = recipes:Exact

[transformer_cli.optimizers]
momentum = recipes:momentum

[transformer_cli.schedules]
halving = recipes:halving

[transformer_cli.exports]
mirror = recipes:Mirror
"""
CONFIG = """
data: {{train: {{pairs: {pairs}}}, valid: {{pairs: {pairs}}}, test: {{pairs: {pairs}}}}}
tokenizer: {{vocab_size: 100}}
model: {{d_model: 16, n_heads: 2, d_ff: 16, n_layers: 1, positions: relative}}
training: {{max_steps: 2, optimizer: momentum, schedule: halving, warmup_steps: 1, log_every: 1}}
evaluation: {{metrics: [exact, bleu]}}
decoding: {{search: shortest, beam_size: 3}}
"""


def install(folder: Path, lines: str) -> None:
    """What pip would leave of a package that has these entry points."""
    info = folder / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(lines, encoding="utf-8")


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """The package in tests/outside, installed."""
    site = tmp_path / "site-packages"
    site.mkdir()
    install(site, ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(OUTSIDE))
    monkeypatch.syspath_prepend(str(site))


def tx(*arguments):
    return failures.exit_code(lambda: main(list(arguments)))


def test_what_another_package_adds_is_trained_and_used_by_its_name(outside, capfd):
    Path("mine.yaml").write_text(CONFIG.format(pairs=json.dumps(PAIRS)), encoding="utf-8")
    assert tx("train", "-c", "mine.yaml") == 0
    assert tx("train", "-c", "mine.yaml", "--set", "training.max_steps=3") == 0
    log = Path("runs/mine/metrics.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    rates = [event["learning_rate"] for event in map(json.loads, log) if "learning_rate" in event]
    assert rates == [0.001, 0.0005, 0.00025]
    saved = load_checkpoint("runs/mine/checkpoints/step-00000003", with_optimizer=True)
    assert {name.rpartition(".")[2] for name in saved.optimizer} == {"momentum_buffer"}
    capfd.readouterr()
    lengths = {}
    for search in ("shortest", "beam"):
        again = ["--json", "--n-best", "3", "--set", f"decoding.search={search}", PAIRS[0][0]]
        assert tx("translate", "-m", "runs/mine", *again) == 0
        lengths[search] = [len(one["tokens"]) for one in json.loads(capfd.readouterr().out)["n_best"]]
    assert lengths["shortest"] == sorted(lengths["beam"])
    assert tx("evaluate", "-m", "runs/mine", "--json") == 0
    exact, bleu = json.loads(capfd.readouterr().out.split("\n")[0])["scores"]
    assert (exact["name"], bleu["name"]) == ("exact", "BLEU")
    assert exact["signature"] == "lowercase:False|bs:1000|seed:12345"


def test_a_format_from_outside_is_written_and_compared_by_its_name(outside, trained_run, capfd):
    assert tx("export", "mirror", "-m", str(trained_run), "-o", "there", "--json") == 0
    said = json.loads(capfd.readouterr().out)
    assert (said["engine"], said["exact"]["logit_difference"] < 1e-5) == ("a mirror", True)
    assert said["exact"]["equal_texts"] == 12
    assert Path("there/run").is_file()


def test_a_metric_from_outside_is_resampled_and_compared(outside):
    references = [target for _, target in PAIRS]
    wrong = [*references[:9], "x", "y", "z"]
    systems = [report.System("a", references), report.System("b", wrong)]
    options = EvaluationConfig(metrics=["exact"])
    right, other = report.reports(systems, report.Text([references]), options, n_worst=0)
    assert (right.scores[0].value, other.scores[0].value, other.differences[0].value) == (100, 75, -25)
    assert 0 < other.scores[0].margin < 50
    assert other.differences[0].p_randomization < 1


def test_a_name_that_is_nobodys_is_told_with_all_that_there_are(outside, capfd):
    Path("x.yaml").write_text("model: {positions: relativ}", encoding="utf-8")
    assert tx("count-params", "x.yaml") == 2
    told = capfd.readouterr().err
    assert "expected one of sinusoidal, sinusoidal-halves, sinusoidal-table, learned, rotary, none, relative" in told
    assert "did you mean relative?" in told


def test_without_the_package_its_names_are_unknown():
    with pytest.raises(ValueError, match="no such recipe"):
        RunConfig.model_validate({"model": {"positions": "relative"}})


def test_a_promise_that_cannot_be_imported_is_told(tmp_path, monkeypatch):
    install(tmp_path, "[transformer_cli.positions]\nempty = nowhere_at_all:X\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ResourceError, match=r"positions: empty should be nowhere_at_all:X, which cannot be imported"):
        POSITIONS.load("empty")


@pytest.mark.parametrize("fused", [False, True])
def test_relative_positions_step_by_step_are_those_at_once(outside, fused):
    torch.manual_seed(1)
    config = ModelConfig(d_model=16, n_heads=4, n_kv_heads=2, d_ff=16, n_layers=2, positions="relative")
    model = build_model(config, source_vocab=20, target_vocab=20).double().eval()
    model.use_attention(fused=fused)
    source, lengths = torch.randint(4, 20, (2, 6)), torch.tensor([6, 3])
    target = torch.randint(4, 20, (2, 8))
    at_once = model.project(model(source, lengths, target))
    prepared = Prepared(model)
    state = prepared.start(source, lengths)
    stepped = [prepared.step(target[:, 0], state)]
    state.reorder(torch.zeros(2, 3, dtype=torch.int64))  # from here on three beams, all alike
    stepped += [prepared.step(target[:, t].repeat_interleave(3), state)[2::3] for t in range(1, 8)]
    torch.testing.assert_close(torch.stack(stepped, dim=1), at_once, rtol=0, atol=1e-10)
    model.decoder.positions.table.weight.data.zero_()
    assert not torch.allclose(model.project(model(source, lengths, target)), at_once)


def test_the_position_encoding_of_the_documentation_is_one(tmp_path, monkeypatch):
    page = (Path(__file__).parents[1] / "docs" / "how-do-i.md").read_text(encoding="utf-8")
    [code] = (part for block in page.split("```python\n")[1:] if "class Relative" in (part := block.split("```")[0]))
    (tmp_path / "recipe_of_the_page.py").write_text(code, encoding="utf-8")
    install(tmp_path, "[transformer_cli.positions]\nof-the-page = recipe_of_the_page:Relative\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    torch.manual_seed(1)
    config = ModelConfig(d_model=16, n_heads=4, d_ff=16, n_layers=1, positions="of-the-page")
    model = build_model(config, source_vocab=20, target_vocab=20).eval()
    source, lengths, target = torch.randint(4, 20, (1, 6)), torch.tensor([6]), torch.randint(4, 20, (1, 5))
    here = model(source, lengths, target)
    turned = model(source.flip(1), lengths, target)
    assert not torch.allclose(here, turned)
    for stack in (model.encoder, model.decoder):
        stack.positions.table.weight.data.zero_()
    torch.testing.assert_close(model(source, lengths, target), model(source.flip(1), lengths, target))
