"""scripts/benchmark/all, with stand-ins for those who are measured."""

from __future__ import annotations

import importlib
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from compiling import needs_compiler
from safetensors.torch import save_file

from transformer_cli.checkpoints.find import find_checkpoint
from transformer_cli.checkpoints.store import open_run
from transformer_cli.config.model import ModelConfig
from transformer_cli.config.source import load_config
from transformer_cli.decoding.engine import EngineTranslator
from transformer_cli.model import blocks, compiled_products, transformer
from transformer_cli.model.build import build_model

BENCHMARK = Path(__file__).parents[1] / "scripts" / "benchmark"
MODULES = (
    "rounds",
    "tables",
    "environments",
    "prepare",
    "turn",
    "weights",
    "by_joeynmt",
    "by_opennmt",
    "by_eole",
    "by_ctranslate2",
    "phases",
)


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Its modules, for one test."""
    monkeypatch.syspath_prepend(BENCHMARK)
    monkeypatch.syspath_prepend(BENCHMARK / "contestants")
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    for name in MODULES:
        sys.modules.pop(name)


def turn(suite: Any, *, wall_s: float = 1.0, foreign: float | None = 0.0, **facts: Any) -> Any:
    return suite.rounds.Turn(facts, wall_s, 1.0, 100, foreign, {"fp32": 200.0, "bf16": 400.0})


def in_turns(suite: Any, foreign: list[float], *, rounds: int) -> Any:
    """Two contestants on a machine where others do that; each turn says which it was."""
    shares = iter(enumerate(foreign))

    def measure(command: list[str]) -> Any:
        number, share = next(shares)
        return turn(suite, foreign=share, number=number, who=command[0])

    return suite.rounds.by_turns(
        {"a": ["a"], "b": ["b"]},
        rounds=rounds,
        most_foreign=0.1,
        measure=measure,
        load=lambda: 0.03,
        tell=lambda line: None,
    )


def test_a_round_counts_only_if_nobody_else_was_there_before_and_after(suite: Any) -> None:
    loads = iter([0.5, 0.02, 0.03, 0.04, 0.6])  # before; before and after; before and after
    results = suite.rounds.by_turns(
        {"a": ["a"]},
        rounds=2,
        most_foreign=0.1,
        measure=lambda command: turn(suite, foreign=0.0),
        load=lambda: next(loads),
        tell=lambda line: None,
    )
    assert results.load == [(0.02, 0.03)]
    assert results.thrown == [
        "others had 50 % of the processors before it",
        "others had 60 % of the processors after it",
    ]


def test_contestants_take_turns(suite: Any) -> None:
    results = in_turns(suite, [0.0] * 6, rounds=3)
    assert [turn.facts["number"] for turn in results.turns["a"]] == [0, 2, 4]
    assert [turn.facts["number"] for turn in results.turns["b"]] == [1, 3, 5]
    assert [turn.facts["who"] for turn in results.turns["b"]] == ["b", "b", "b"]
    assert not results.thrown


def test_a_disturbed_round_counts_for_nobody_and_is_begun_anew(suite: Any) -> None:
    results = in_turns(suite, [0.0, 0.1, 0.05, 0.2, 0.0, 0.0], rounds=2)
    assert [turn.facts["number"] for turn in results.turns["a"]] == [0, 4]
    assert [turn.facts["number"] for turn in results.turns["b"]] == [1, 5]
    assert results.load == [(0.03, 0.03)] * 2
    assert results.thrown == ["others had 20 % of the processors beside b"]
    assert suite.tables.rounds_in_words(results) == (
        "2 rounds; other processes had at most 10 % of the processors during a figure, and 3 % between rounds; "
        "1 round thrown away, where others had 20 % of the processors beside b."
    )


def test_a_machine_that_is_never_quiet_gives_no_figure(suite: Any) -> None:
    results = in_turns(suite, [0.5] * 3, rounds=3)
    assert results.turns == {"a": [], "b": []}
    assert len(results.thrown) == 3
    assert suite.tables.table("train", results, {}) == ["- a: no round without others", "- b: no round without others"]


def test_a_program_says_what_it_found_in_its_last_line(suite: Any) -> None:
    said = "import json; print('much else'); print(json.dumps({'tokens': 10, 'seconds': 2.5})); print()"
    found = suite.rounds.run([sys.executable, "-c", said], {"fp32": 1.0})
    assert found.facts == {"tokens": 10, "seconds": 2.5}
    assert suite.tables.value("train", found) == 4
    assert found.products == {"fp32": 1.0}
    assert found.peak_mib > 1


def test_what_a_program_computes_itself_is_not_foreign(suite: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wait, busy, n = suite.rounds._wait, iter([100.0, 150.0]), os.cpu_count() or 1

    def waited(process: Any) -> Any:
        code, usage, late = wait(process)
        return code, SimpleNamespace(ru_utime=30.0, ru_stime=5.0, ru_maxrss=usage.ru_maxrss), late

    monkeypatch.setattr(suite.rounds, "busy_s", lambda: next(busy))
    monkeypatch.setattr(suite.rounds, "_wait", waited)
    monkeypatch.setattr(suite.rounds, "time", SimpleNamespace(perf_counter=iter([0, 50]).__next__, process_time=float))
    found = suite.rounds.run([sys.executable, "-c", "pass"], {})
    assert found.cpu_s == 35
    assert found.foreign == pytest.approx((50 - 35) / 50 / n, abs=0.001)


@pytest.mark.parametrize(("seconds", "share"), [(-0.02, 0.0), (0.0, 0.0), (1000.0, 1.0)])
def test_a_share_is_one_however_coarse_the_clock(suite: Any, seconds: float, share: float) -> None:
    assert suite.rounds.share(seconds, 0.02) == share


def test_who_fails_is_out_and_named_with_the_reason(suite: Any) -> None:
    programs = {
        "good": 'print(\'{"seconds": 2, "tokens": 6}\')',
        "bad": "raise SystemExit('no such model\\nhint: train one')",
    }
    results = suite.rounds.by_turns(
        {name: [sys.executable, "-c", program] for name, program in programs.items()},
        rounds=2,
        most_foreign=1.0,
        measure=lambda command: suite.rounds.run(command, {"fp32": 200.0, "bf16": 400.0}),
        load=lambda: None,
        tell=lambda line: None,
    )
    assert len(results.turns["good"]) == 2
    assert results.failed == {"bad": "no such model"}
    lines = suite.tables.table("train", results, {"good": {"flops_per_token": 1e9}})
    assert lines[-1] == "- bad: no such model"
    assert lines[2].startswith("| good | 3.00 | 3.00 to 3.00 | 3.00 |")


def test_who_takes_too_long_is_ended_with_all_its_processes(suite: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite.rounds, "LIMIT_S", 0.3)
    with pytest.raises(suite.rounds.FailedError, match="not over after"):
        suite.rounds.run(["sh", "-c", "sleep 60; true"], {})


def test_a_table_gives_medians_and_spreads(suite: Any) -> None:
    seconds = {"tx, fp32": [2.0, 4.0, 1.0], "other, fp32": [8.0, 10.0, 5.0]}
    turns = {name: [turn(suite, lines=1000, seconds=one) for one in all] for name, all in seconds.items()}
    results = suite.rounds.Results(turns=turns, load=[(0.0, 0.0)] * 3)
    extra = {"tx, fp32": {"bleu": 40.874, "same": 1000}, "other, fp32": {"bleu": 40.1, "same": 987}}
    assert suite.tables.table("decode", results, extra) == [
        "|  | sentences/s | least to most | BLEU | texts as tx's in fp32 | peak MiB | products fp32 | bf16 |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| tx, fp32 | 500 | 250 to 1,000 | 40.87 | 1,000 | 100 | 200 | 400 |",
        "| other, fp32 | 125 | 100 to 200 | 40.10 | 987 | 100 | 200 | 400 |",
    ]
    assert suite.tables.table("cold", results, {})[2] == "| tx, fp32 | 1.00 | 1.00 to 1.00 | 100 | 200 | 400 |"


def test_a_table_stands_between_its_marks(suite: Any, tmp_path: Path) -> None:
    document = tmp_path / "performance.md"
    document.write_text(f"before\n{suite.tables.BEGIN}\nold\n{suite.tables.END}\nafter\n", encoding="utf-8")
    for _ in range(2):
        suite.tables.put(document, ["| new \\1 |"])
    assert document.read_text(encoding="utf-8") == (
        f"before\n{suite.tables.BEGIN}\n\n| new \\1 |\n\n{suite.tables.END}\nafter\n"
    )
    document.write_text("no marks\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="needs the lines"):
        suite.tables.put(document, [])


def test_the_document_has_the_marks(suite: Any) -> None:
    text = (BENCHMARK.parents[1] / "docs" / "performance.md").read_text("utf-8")
    assert text.count(f"{suite.tables.BEGIN}\n") == text.count(f"{suite.tables.END}\n") == 1


def test_the_page_says_nothing_that_the_tables_and_the_log_do_not() -> None:
    """After `--write` that is figures to mend. What follows from two others is the last column of the first table."""
    docs = BENCHMARK.parents[1] / "docs"
    page, _, tables = (docs / "performance.md").read_text("utf-8").replace(",", "").partition("## All tables")
    log = (docs / "measurements.md").read_text("utf-8").replace(",", "")
    rows = re.findall(r"\| (\d+) \| \d+ \| (\d+) \| (\d\.\d\d) \|\n", page)
    assert len(rows) == 10
    assert [f"{int(ours) / int(theirs):.2f}" for ours, theirs, _ in rows] == [times for _, _, times in rows]
    found, measured = (set(re.findall(r"\d{2,}(?:\.\d+)?|\d\.\d+", text)) for text in (page, tables + log))
    assert found - {times for _, _, times in rows} <= measured


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--write", "--quick"], "--write is for a measurement of everything"),
        (["--write", "--only", "train"], "--write is for a measurement of everything"),
        (["--write", "--peers", "tx"], "--write is for a measurement of everything"),
        (["--peers", "tx,nobody"], "--peers has no nobody; there are tx,"),
        (["--only", "sleep"], "--only has no sleep; there are train"),
    ],
)
def test_what_cannot_be_is_refused(
    suite: Any,
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["all", "--cache", str(tmp_path / "cache"), *arguments])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(BENCHMARK / "all"))["main"]()
    assert said in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("lacks_bf16", [False, True])
def test_a_measurement_is_planned_measured_and_reported(
    lacks_bf16: bool, suite: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of it, but that those who prepare and the contestants are small programs, and nobody measures products."""
    standing_in = tmp_path / "benchmark" / "contestants"
    standing_in.mkdir(parents=True)
    program = """
import json, sys
asked = json.loads(sys.argv[1])
if asked["precision"] == "bf16":
    raise SystemExit("no bf16 here")
if asked["what"] == "convert":
    raise SystemExit("not the same model")
if asked["what"] == "train":
    print(json.dumps({"tokens": 6000, "seconds": 2.0}))
else:
    texts = (["a dog runs over a meadow .", "two men sit on a bench ."] * 10)[: asked["lines"]]
    print(json.dumps({"lines": len(texts), "translations": texts, "seconds": 2.0}))
"""
    for name in ("by_tx", "by_ctranslate2", "by_eole"):
        (standing_in / f"{name}.py").write_text(program, encoding="utf-8")
    (tmp_path / "benchmark" / "prepare.py").write_text(
        """
import json, pathlib, sys
folder = pathlib.Path(sys.argv[2])
folder.mkdir()
if sys.argv[1] == "text":
    (folder / "shapes.json").write_text(json.dumps({name: {"flops_per_token": 1e6} for name in ("small", "base")}))
    (folder / "test.source").write_text("ein Hund\\nein Mann\\n" * 10)
    (folder / "test.target").write_text("a dog runs over a meadow .\\ntwo men sit on a bench .\\n" * 10)
""",
        encoding="utf-8",
    )
    main = runpy.run_path(str(BENCHMARK / "all"))["main"]
    known = main.__globals__

    def python_of(name: str, cache: Path, tell: Any) -> Path:
        if name == "JoeyNMT":
            raise known["MissingError"]("JoeyNMT cannot be installed: no network")
        return tmp_path / "eole" / "bin" / "python"

    [packages] = Path(sys.prefix).glob("lib/python*/site-packages")
    (tmp_path / "eole" / "bin").mkdir(parents=True)
    (tmp_path / "eole" / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "eole" / packages.relative_to(sys.prefix)).mkdir(parents=True)

    class Products:
        def __enter__(self) -> Any:
            return lambda: {"fp32": 200.0} if lacks_bf16 else {"fp32": 200.0, "bf16": 400.0}

        def __exit__(self, *raised: object) -> None: ...

    monkeypatch.setitem(known, "python_of", python_of)
    monkeypatch.setitem(known, "HERE", tmp_path / "benchmark")
    monkeypatch.setattr(known["rounds"], "gauge", lambda threads: Products())
    monkeypatch.setattr(known["rounds"], "load", lambda: 0.0)
    monkeypatch.setitem(known, "TX", [sys.executable, "-c", "pass"])
    peers = "tx,ctranslate2,ctranslate2 with tx's patience,joeynmt,eole"
    options = ["--peers", peers, "--most-foreign", "1", "--quick", "--run", "run"]
    monkeypatch.setattr(sys, "argv", ["all", "--cache", str(tmp_path / "cache"), *options])
    main()
    said = capsys.readouterr().out
    rates = "200 |  |" if lacks_bf16 else "200 | 400 |"
    assert re.search(rf"\| tx, fp32 \| 3,000 \| 3,000 to 3,000 \| 3.00 \| [\d,]+ \| {re.escape(rates)}", said)
    assert ("- tx, bf16: no bf16 here" in said) != lacks_bf16
    assert "### Translating 20 lines, beam 5, batches of 64" in said
    assert "| CTranslate2, int8 | 10.0 | 10.0 to 10.0 | 100.00 | 20 |" in said
    assert "- JoeyNMT: JoeyNMT cannot be installed: no network" in said
    assert said.count("| CTranslate2 with tx's patience, fp32 |") == 2
    assert said.count("\nCTranslate2 with tx's patience: alone, but asked for what tx by CTranslate2 asks it for") == 2
    assert "| tx translate |" in said
    written = (tmp_path / "cache" / "results.json").read_text("utf-8")
    for path in (sys.executable, str(tmp_path / "cache"), str(tmp_path / "benchmark"), str(Path("run").resolve())):
        assert path not in written
    found = json.loads(written)
    assert len(found["contests"]) == 2 + 4 + 1
    assert "Eole, fp32" not in found["contests"]["Translating 20 lines, greedy, batches of 64"]["commands"]
    with_patience = [title for title, one in found["contests"].items() if "tx's patience" in json.dumps(one)]
    assert [title.split(", ")[1] for title in with_patience] == ["beam 5", "beam 5"]
    assert "translations" not in json.dumps(found["contests"])
    assert found["contests"]["Training, base"]["turns"]["tx, fp32"][0]["facts"]["tokens"] == 6000
    there = ["fp32"] if lacks_bf16 else ["fp32", "bf16"]
    commands = [f"{name}, {precision}" for name in ("tx", "Eole") for precision in there]
    assert list(found["contests"]["Training, base"]["commands"]) == commands
    assert found["versions"]["tx"]["sacrebleu"]
    assert found["versions"]["Eole"] == {}
    assert found["missing"] == {
        "JoeyNMT": "JoeyNMT cannot be installed: no network",
        "Eole, with tx's weights": "not the same model",
    }


def test_who_starts_them_is_small() -> None:
    """The most memory that a process had counts from when it was still its parent's."""
    program = "import runpy, sys; runpy.run_path(sys.argv[1]); sys.exit('torch' in sys.modules)"
    command = [sys.executable, "-c", program, BENCHMARK / "all"]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": str(BENCHMARK)}, check=True)


def test_ctranslate2_alone_is_asked_as_tx_asks_it(
    suite: Any, trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Engine:
        compute_type = "float32"

        def __init__(self, *place: str, **options: Any) -> None: ...

        def translate_batch(self, sources: list[list[str]], *, max_batch_size: int = 0, **options: Any) -> list[Any]:
            asked.append((sources, {name: value for name, value in options.items() if value is not None}))
            return [SimpleNamespace(hypotheses=[["</s>"]], scores=[-1.0]) for _ in sources]

    monkeypatch.setitem(sys.modules, "ctranslate2", SimpleNamespace(Translator=Engine))
    monkeypatch.setenv("CT2_USE_MKL", "0")  # which it would set for all tests
    folder = tmp_path / "model"
    folder.mkdir()
    suite.prepare.model(folder, str(trained_run))
    run = open_run(find_checkpoint(str(trained_run)))
    rooms, lines = {"encoder": None, "decoder": None}, ["zwei", "ich mochte ein bier und zwei kaffee"]
    by_tx = EngineTranslator(Engine(), "it", run.tokenizer, run.config.decoding, rooms=rooms, source_eos=True)
    by_tx.translate(lines, beam_size=5)
    asks = {"precision": "fp32", "threads": 1, "batch": 64, "beam": 5, "as_tx": True}
    turn = suite.turn.Turn(what="translate", model=str(folder), **asks)
    assert suite.by_ctranslate2.translator(turn)(lines) == ["", ""]
    assert [sorted(sources) for sources, _ in asked] == [sorted(asked[0][0])] * 2
    assert asked[0][1] == asked[1][1]


def other_toolkits(model: Any, names: dict[str, dict[str, str]]) -> Any:
    """A model whose modules are called as theirs, with weights of its own, and a bias of the output."""
    tensors, found = dict(model.named_parameters()), {}
    for side, layer in names.items():
        modules = {
            f"{side}.layers.0.{here}": [f"{side}.there.0.{name}" for name in there.split()]
            for here, there in layer.items()
        }
        modules[f"{side}.norm"] = [f"{side}.layer_norm"]
        for here, there in modules.items():
            for kind in ("weight", "bias"):
                parts = tensors[f"{here}.{kind}"].detach().chunk(len(there))
                for name, part in zip(there, parts, strict=True):
                    found[f"{name}.{kind}"] = torch.full_like(part, 7.0)
    found["table"] = torch.full_like(model.target_embedding.table.weight.detach(), 7.0)
    found["generator.bias"] = torch.full((9,), 7.0)
    return SimpleNamespace(named_parameters=found.items, found=found)


@pytest.mark.parametrize("peer", ["by_joeynmt", "by_opennmt", "by_eole"])
def test_every_weight_finds_its_place_in_another_toolkits_model(suite: Any, peer: str, tmp_path: Path) -> None:
    names = getattr(suite, peer).NAMES
    shape = ModelConfig(d_model=4, n_heads=2, d_ff=6, n_layers=1)
    model = build_model(shape, source_vocab=9, target_vocab=9)
    for one in model.parameters():
        torch.nn.init.normal_(one)
    save_file({name: one.detach() for name, one in model.named_parameters()}, tmp_path / "weights")
    (tmp_path / "vocabulary").write_text("<pad>\n<unk>\n<s>\n</s>\na\nb\nc\nd\ne\n", encoding="utf-8")
    (tmp_path / "shapes.json").write_text('{"run": {"n_layers": 1}}', encoding="utf-8")
    turn = suite.turn.Turn(what="convert", model=str(tmp_path))
    layers = {side: f"{side}.there" for side in names}
    theirs = other_toolkits(model, names)
    suite.weights.fill(turn, theirs, layers, names, table=theirs.found["table"])
    table = model.target_embedding.table.weight
    assert torch.equal(theirs.found["table"], table[[1, 0, 2, 3, 4, 5, 6, 7, 8]])
    assert not theirs.found["generator.bias"].any()
    assert not any((one == 7.0).any() for one in theirs.found.values())
    attention = model.decoder.layers[0].cross_attention
    keys, values = names["decoder"]["cross_attention.key_value"].split()
    together = torch.cat([theirs.found[f"decoder.there.0.{name}.weight"] for name in (keys, values)])
    assert torch.equal(together, attention.key_value.weight)
    unfinished = other_toolkits(model, names)
    unfinished.found["adapter.weight"] = torch.ones(2, 2)
    with pytest.raises(SystemExit, match=r"not the same model: .*adapter.weight"):
        suite.weights.fill(turn, unfinished, layers, names, table=unfinished.found["table"])


def test_the_time_of_an_update_is_that_of_its_parts_there_and_back(suite: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            nonlocal now
            now += 2
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            nonlocal now
            now += 3
            return grads[0]

    def forward(self: blocks.LayerNorm, x: torch.Tensor) -> torch.Tensor:
        return Norm.apply(x)

    def gelu(x: torch.Tensor) -> torch.Tensor:
        return Norm.apply(x)

    def draw(self: blocks.Dropout, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        nonlocal now
        now += 0.5
        return residual + x

    monkeypatch.setattr(blocks.LayerNorm, "forward", forward)
    monkeypatch.setattr(blocks.Dropout, "add", draw)
    monkeypatch.setitem(blocks.ACTIVATIONS, "gelu", gelu)  # which dropout of 0 hands on as it is
    monkeypatch.setattr(suite.phases, "time", SimpleNamespace(perf_counter=lambda: now))
    sets = ["model.d_model=8", "model.d_ff=8", "model.n_layers=1", "model.activation=gelu"]
    config = load_config("tutorial.yaml", sets, to_train=True)
    seconds = suite.phases.measured(config, warm=2, updates=3)
    assert {part: spent for part, spent in seconds.items() if spent} == {
        "norms": 3 * 5 * (2 + 3),
        "activations": 3 * 2 * (2 + 3),
        "dropout and residuals": 3 * 5 * 0.5,
    }
    assert blocks.LayerNorm.forward is forward
    assert blocks.Dropout.add is draw
    assert suite.phases.table(seconds, 3).splitlines()[2:] == [
        "| norms | 25000.0 | 67 % |",
        "| activations | 10000.0 | 27 % |",
        "| dropout and residuals | 2500.0 | 7 % |",
        "| an update | 37500.0 | 100 % |",
    ]


@needs_compiler
def test_sublayers_are_a_part_or_taken_apart(suite: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (compiled_products, transformer):
        monkeypatch.setattr(module, "by_pairs", lambda dtype: dtype == torch.bfloat16)
    sets = ["model.d_model=16", "model.n_heads=1", "model.d_ff=16", "model.n_layers=1", "precision=bf16"]
    config = load_config("tutorial.yaml", [*sets, "model.norm_position=pre"], to_train=True)
    for apart in (False, True):
        found = {part for part, spent in suite.phases.measured(config, warm=1, updates=1, apart=apart).items() if spent}
        assert ("layers" in found) == (not apart)
        assert ("norms" in found) == apart
        assert "embeddings" in found
