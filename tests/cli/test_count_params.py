"""`tx count-params` from outside."""

from __future__ import annotations

import errno
import html
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_cli.cli import failures
from transformer_cli.cli.app import main
from transformer_cli.cli.subject import find_subject
from transformer_cli.config.source import preset_names

GPT3 = """
accounting: {architecture: decoder-only, vocab: 50257}
model: {n_layers: 96, d_model: 12288, n_heads: 96, d_ff: 49152, positions: learned, max_positions: 2048}
"""
TUTORIAL = "accounting.vocab={source: 5, target: 7}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    return tmp_path


def tx(*arguments: str) -> int:
    return failures.exit_code(lambda: main(["count-params", *arguments]))


def write(name: str, text: str) -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


def result(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert tx(*arguments) == 0
    shown = capfd.readouterr()
    assert shown.err == ""
    return shown.out


def failure(capfd: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    assert tx(*arguments) == code
    shown = capfd.readouterr()
    assert shown.out == ""
    return shown.err


# --- the table ----------------------------------------------------------------------------------------------------


def test_gpt3_is_shown_in_both_conventions_with_the_difference_itemised(capfd):
    lines = [line.split() for line in result(capfd, "gpt3.yaml").split("\n")]
    numbers = [(line[0], word) for line in lines for word in line if re.fullmatch(r"[-+]?[0-9,]{9,}", word)]
    weights_only, exact = numbers.index(("weights", "175,181,291,520")), numbers.index(("exact", "174,604,259,328"))
    values = [int(word.replace(",", "")) for _, word in numbers]
    assert sum(values[:weights_only]) == values[weights_only]
    assert dict(numbers[weights_only + 1 : exact]) == {
        "unembedding": "-617,558,016",
        "positions": "+25,165,824",
        "attention_bias": "+4,718,592",
        "ffn_bias": "+5,898,240",
        "layers": "+4,718,592",
    }
    assert " ".join(lines[6]).startswith("query 128 x 12,288 x 96 heads x 96 layers 14,495,514,624")


@pytest.mark.parametrize("preset", [*preset_names(), "gpt3.yaml"])
def test_a_preset_keeps_to_80_columns_and_is_what_is_built(capfd, preset):
    lines = result(capfd, preset, "--check").split("\n")
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("Checked: ") for line in lines)


@pytest.mark.parametrize(("convention", "total"), [("exact", "174,604,259,328"), ("weights-only", "175,181,291,520")])
def test_one_convention_can_be_chosen(capfd, convention, total):
    shown = result(capfd, write("gpt3.yaml", GPT3), "--convention", convention)
    assert [number for number in ("174,604,259,328", "175,181,291,520") if number in shown] == [total]


@pytest.mark.parametrize("convention", ["exact", "weights-only"])
def test_shares_add_up_to_the_whole_of_their_convention(capfd, convention):
    shares = re.findall(r"([0-9.]+)%  ", result(capfd, "transformer-base", "--convention", convention))
    assert sum(map(float, shares)) == pytest.approx(100, abs=0.05 * len(shares))


def test_the_tutorial_has_tables_that_are_not_trained(capfd):
    fields = json.loads(result(capfd, "tutorial", "--set", TUTORIAL, "--json"))
    assert (fields["parameters"], fields["frozen_parameters"]) == (44_154_368, 6_144)
    assert "6 x 512 x 2 tables, frozen" in result(capfd, "tutorial", "--set", TUTORIAL)


@pytest.mark.parametrize(("preset", "printed"), [("transformer-base", "65M"), ("transformer-big", "213M")])
def test_a_published_figure_that_disagrees_has_a_footnote(capfd, preset, printed):
    assert f"Published: {printed}, " in result(capfd, preset)
    assert "Published" not in result(capfd, preset, "--set", "tokenizer.vocab_size=36000")


@pytest.mark.parametrize(
    ("preset", "change"),
    [
        ("bart-base", "model.positions=sinusoidal"),
        ("bart-base", "model.n_layers={encoder: 6, decoder: 5}"),
        ("transformer-base", "model.tied=none"),
        ("transformer-base", "model.n_kv_heads=1"),
    ],
)
def test_a_published_figure_is_not_held_against_another_model(capfd, preset, change):
    """It used to be, with a reason that did not explain the difference."""
    assert "Published" in result(capfd, preset)
    assert "Published" not in result(capfd, preset, "--set", change)


@pytest.mark.parametrize("preset", ["gpt3", "bart-base", "whisper-base"])
def test_a_family_of_components_is_in_one_place(capfd, preset):
    shown = result(capfd, preset, "--convention", "exact")
    names = [line.split()[0] for line in shown.split("\n") if re.match(r"[a-z]\w*($|  )", line)]
    assert "embedding" in names
    assert len(names) == len(set(names))


def test_a_part_called_like_a_family_is_not_its_heading(capfd):
    """The positions of gpt2 used to stand under an extra called embedding, as if they were in it."""
    extra = ["--set", "accounting.extra=[{name: embedding, shape: [5, 5]}]"]
    shown = result(capfd, "t5-small", *extra, "--compare", "gpt2")
    assert re.search(r"embedding\n  tokens .*\n  positions .*\nembedding +25 ", shown)


def test_one_is_singular_and_one_attention_per_layer_is_counted_by_layers(capfd):
    one = ["--set", "model.n_layers=1", "--set", "model.n_heads=1"]
    shown = " ".join(result(capfd, "gpt2", *one).split())
    assert "decoder-only, 1 layer, d_model 768, 1 head of 768" in shown
    assert "1 + 1 layers" in result(capfd, "tiny", *one)
    assert "4 x 768 x 12 layers" in result(capfd, "gpt2")
    assert "4 x 512 x 18 attentions" in result(capfd, "base")


def test_layers_are_counted_once_and_multiplied(capfd):
    shown = result(capfd, "tutorial", "--by", "layer")
    assert re.search(r"encoder layers +3,152,384 x 6 layers +18,914,304", shown)
    assert re.search(r"decoder layers +4,204,032 x 6 layers +25,224,192", shown)


def test_tensors_alike_outside_of_layers_are_counted_together(capfd):
    """The seven convolutions of wav2vec 2.0 used to make the table 113 columns wide."""
    sizes = [(1, 10), *[(512, 3)] * 4, *[(512, 2)] * 2]
    extras = [f"{{name: features.{i}, shape: [512, {', '.join(map(str, size))}]}}" for i, size in enumerate(sizes)]
    arguments = ["bert-base", "--set", f"accounting.extra=[{', '.join(extras)}]"]
    for by in ("layer", "block"):
        shown = result(capfd, *arguments, "--by", by)
        assert re.search(r"features +5,120 \+ 4 x 786,432 \+ 2 x 524,288 +4,199,424 ", shown)
        assert max(map(len, shown.split("\n"))) <= 80


def test_markdown_is_a_table_that_pastes(capfd):
    lines = result(capfd, "gpt3.yaml", "--markdown").split("\n")
    rows = [line for line in lines if line.startswith("|")]
    assert {row.count("|") for row in rows} == {5}
    assert "| --- | --- | ---: | ---: |" in rows
    assert any("**174,604,259,328**" in row for row in rows)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("tokenizer.vocab_size=500", "500 pieces, a wish (tokenizer.vocab_size)"),
        ("accounting.vocab=500", "500 pieces, as accounting.vocab says"),
        ("accounting.vocab=1", "1 piece, as accounting.vocab says"),
        ("accounting.vocab=0", "0 pieces, as accounting.vocab says. Where there are 0, vectors come from elsewhere."),
    ],
)
def test_it_says_where_the_vocabulary_comes_from(capfd, change, words):
    assert words in " ".join(result(capfd, "tiny", "--set", change).split())


def test_the_picture_in_the_documentation_shows_what_is_printed(capfd):
    """`scripts/picture` draws it anew."""
    picture = (Path(__file__).parents[2] / "docs" / "count-params.svg").read_text("utf-8")
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", picture)
    drawn = html.unescape(" ".join(texts)).split()
    no_words = re.compile("[-─▏▎▍▌▋▊▉█]+|tx").fullmatch
    assert [word for word in drawn if not no_words(word)] == [
        "$",
        "count-params",
        *(word for word in ["gpt3.yaml", *result(capfd, "gpt3.yaml").split()] if not no_words(word)),
    ]


# --- other outputs ------------------------------------------------------------------------------------------------


def test_every_preset_is_listed_with_its_total(capfd):
    listed = result(capfd, "--list")
    as_json = {fields["name"]: fields for fields in map(json.loads, result(capfd, "--list", "--json").splitlines())}
    assert list(as_json) == preset_names()
    for name, fields in as_json.items():
        assert re.search(rf"^{name} .* {fields['parameters']:,}\b", listed, re.MULTILINE)
        assert json.loads(result(capfd, name, "--json"))["parameters"] == fields["parameters"]


@pytest.mark.parametrize("by", ["component", "layer", "block"])
def test_json_has_integers_that_add_up_and_the_whole_configuration(capfd, by):
    fields = json.loads(result(capfd, "whisper-base", "--json", "--by", by))
    for key in ("parameters", "trainable_parameters"):
        assert sum(part[key] for part in fields[f"{by}s"]) == fields[key]
    assert fields["fp32_bytes"] == 2 * fields["bf16_bytes"] == 4 * fields["parameters"]
    weights_only = fields["weights_only_parameters"]
    steps = fields["from_weights_only_to_exact"]
    assert weights_only + sum(step["parameters"] for step in steps) == fields["parameters"]
    assert fields["config"]["model"]["d_model"] == 512
    write("again.yaml", json.dumps({key: fields["config"][key] for key in ("accounting", "model", "tokenizer")}))
    again = json.loads(result(capfd, "again.yaml", "--json", "--by", by))
    assert again | {"name": 0, "config": 0} == fields | {"name": 0, "config": 0}
    assert list(again) == list(fields)


def test_a_comparison_is_exact_part_by_part(capfd):
    fields = json.loads(result(capfd, "transformer-big", "--compare", "transformer-base", "--json"))
    assert fields["difference_parameters"] == 214_171_648 - 63_045_632
    assert sum(part["difference_parameters"] for part in fields["components"]) == fields["difference_parameters"]
    shown = result(capfd, "transformer-big", "--compare", "transformer-base")
    assert re.search(r"tokens +37,888,000 +18,944,000 +\+18,944,000", shown)
    assert re.search(r"exact +214,171,648 +63,045,632 +\+151,126,016", shown)


@pytest.mark.parametrize("by", ["component", "layer", "block"])
@pytest.mark.parametrize("convention", ["exact", "weights-only"])
def test_a_comparison_adds_up_in_every_convention_and_grouping(capfd, by, convention):
    arguments = ["gpt2", "--compare", "bart-base", "--by", by, "--convention", convention]
    fields = json.loads(result(capfd, *arguments, "--json"))
    assert sum(part["difference_parameters"] for part in fields[f"{by}s"]) == fields["difference_parameters"]
    assert f"{fields['difference_parameters']:+,}" in result(capfd, *arguments)


def test_a_configuration_can_be_named_as_everywhere(capfd):
    assert result(capfd, "-c", "tiny") == result(capfd, "tiny")


def test_a_comparison_calls_an_output_tied_that_is_the_embedding(capfd):
    """It used to say 0, as if GPT-3 had no output."""
    shown = result(capfd, "llama-3-8b", "--compare", "gpt3")
    assert re.search(r"unembedding +525,336,576 +tied +\+525,336,576", shown)
    assert re.search(r"attention_bias +0 ", shown)


def test_a_comparison_says_of_both_models_which_vocabulary_they_have_and_what_agrees(capfd):
    arguments = ["tiny", "--compare", "gpt2", "--check"]
    shown = " ".join(result(capfd, *arguments).split())
    assert "Vocabulary of tiny: 1,000 pieces, a wish" in shown
    assert "Vocabulary of gpt2: 50,257 pieces, as accounting.vocab says" in shown
    notes = json.loads(result(capfd, *arguments, "--json"))["notes"]
    assert [note.partition(" the built")[0] for note in notes] == ["tiny: Checked:", "gpt2: Checked:"]
    assert all(note in shown for note in notes)


def test_a_model_and_what_set_makes_of_it_can_be_told_apart(capfd):
    shown = result(capfd, "gpt2", "--set", "accounting.vocab=50304", "--compare", "gpt2", "--check")
    assert shown.startswith("gpt2, compared with gpt2 (other)\n")
    assert re.search(r"\nComponent +gpt2 +gpt2 \(other\) +Difference\n", shown)
    assert "Vocabulary of gpt2: 50,304" in shown
    assert "Vocabulary of gpt2 (other): 50,257" in shown
    assert "\ngpt2: Checked" in shown
    assert "\ngpt2 (other): Checked" in shown


def test_a_component_of_one_model_only_is_compared_with_nothing(capfd):
    fields = json.loads(result(capfd, "gpt2", "--compare", "bert-base", "--json"))
    by_name = {part["name"]: part for part in fields["components"]}
    assert by_name["decoder_self.query"]["other_parameters"] == 0
    assert by_name["pooler"]["difference_parameters"] == -590_592


# --- runs ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(trained_run: Path, folder: Path) -> Path:
    return Path(shutil.copytree(trained_run, folder / "runs" / "tiny"))


def test_a_run_is_counted_with_its_own_vocabulary_and_its_weights_agree(capfd, run):
    from safetensors.numpy import load_file

    fields = json.loads(result(capfd, "runs/tiny", "--json"))
    [weights] = run.glob("checkpoints/step-*150/model.safetensors")
    assert fields["parameters"] == sum(tensor.size for tensor in load_file(weights).values())
    assert fields["vocabulary"]["from"] == "tokenizer"
    shown = " ".join(result(capfd, "runs/tiny").split())
    assert "pieces, those of the trained tokenizer." in shown
    assert "are those of this configuration." in shown


def test_a_checkpoint_is_counted_like_its_run(capfd, run):
    [last] = run.glob("checkpoints/step-*150")
    assert (
        json.loads(result(capfd, str(last), "--json"))["parameters"]
        == (json.loads(result(capfd, str(run), "--json"))["parameters"])
    )


def test_weights_that_contradict_the_configuration_are_named_five_at_most(capfd, run):
    config = run / "config.yaml"
    config.write_text(config.read_text("utf-8").replace("d_ff: 64", "d_ff: 65"), encoding="utf-8")
    message = failure(capfd, 4, "runs/tiny")
    assert "does not hold the weights of the model that its run's configuration describes" in message
    assert "decoder.layers.0.feed_forward.up.weight is 64 x 32 (F32), the configuration says 65 x 32 (F32)" in message
    config.write_text(config.read_text("utf-8").replace("n_layers: 1", "n_layers: 3"), encoding="utf-8")
    message = failure(capfd, 4, "runs/tiny")
    assert len(re.findall(" is missing| is not part| the configuration says", message)) == 5
    assert re.search(r"\.\.\. and \d+ more", message)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:7],
        lambda data: data[:100],
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: struct.pack("<Q", 2**63) + data[8:],
        lambda data: struct.pack("<Q", 4) + b"null",
        lambda data: struct.pack("<Q", 2) + b"[]",
        lambda data: struct.pack("<Q", 11) + b'{"a": "b" }',
        lambda data: struct.pack("<Q", 11) + b'{"a":{"x":1' + b"}}",
    ],
)
def test_damaged_weights_are_said_to_be_so(capfd, run, damage):
    [weights] = run.glob("checkpoints/step-*150/model.safetensors")
    weights.write_bytes(damage(weights.read_bytes()))
    assert "is damaged" in failure(capfd, 4, str(weights.parent))


def test_weights_that_are_somebody_elses_are_not_said_to_be_missing(capfd, run, monkeypatch):
    """safetensors says of whatever it cannot open that there is no such file."""
    [weights] = run.glob("checkpoints/step-*150/model.safetensors")
    opened = Path.open

    def refused(path, *arguments, **options):
        if path.name == weights.name:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refused)
    said = failure(capfd, 4, str(weights.parent))
    assert "model.safetensors cannot be read: Permission denied\n  hint: you may not read it: ask its owner" in said


def test_numbers_of_another_kind_than_tx_saves_are_not_those_of_the_configuration(capfd, run):
    """They used to pass, and bytes were said of fp32."""
    from safetensors.numpy import load_file, save_file

    [weights] = run.glob("checkpoints/step-*150/model.safetensors")
    tensors = load_file(weights)
    save_file(tensors | {"encoder.norm.bias": tensors["encoder.norm.bias"].astype("float16")}, weights)
    message = failure(capfd, 4, str(weights.parent))
    assert "encoder.norm.bias is 32 (F16), the configuration says 32 (F32)" in message


def test_a_trained_model_cannot_be_set_anew(capfd, run):
    assert "runs/tiny/config.yaml" in failure(capfd, 2, "runs/tiny", "--set", "model.d_model=64")


def test_a_run_without_a_tokenizer_or_a_checkpoint_says_what_is_missing(capfd, run):
    shutil.rmtree(run / "tokenizer")
    assert "tokenizer" in failure(capfd, 4, "runs/tiny")
    shutil.rmtree(run / "checkpoints")
    failure(capfd, 4, "runs/tiny")


def test_a_run_whose_tokenizer_alone_is_trained_is_counted_with_it(capfd, run):
    trained = json.loads(result(capfd, "runs/tiny", "--json"))
    shutil.rmtree(run / "checkpoints")
    assert "best" in failure(capfd, 4, "runs/tiny")  # checkpoints are lost
    for pointer in ("best", "last"):
        (run / pointer).unlink()
    fields = json.loads(result(capfd, "runs/tiny", "--json"))
    assert (fields["parameters"], fields["vocabulary"]) == (trained["parameters"], trained["vocabulary"])


def test_a_run_without_its_configuration_is_damaged(capfd, run):
    (run / "config.yaml").unlink()
    assert "runs/tiny/config.yaml does not exist" in failure(capfd, 4, "runs/tiny")


def test_a_checkpoint_away_from_its_run_is_said_to_be_so(capfd, run):
    [last] = run.glob("checkpoints/step-*150")
    alone = shutil.copytree(last, Path("copied") / last.name)
    message = failure(capfd, 4, str(alone))
    assert f"{alone} lies in no run" in message
    assert f"runs/NAME/checkpoints/{last.name}" in message


def test_a_pointer_to_nothing_offers_what_can_be_counted(capfd, run):
    (run / "best").write_text("step-1")
    message = failure(capfd, 4, "runs/tiny")
    assert "name one, for example runs/tiny/checkpoints/step-" in message
    assert "-m" not in message


def test_an_existing_tokenizer_says_how_large_it_is(capfd, run):
    shutil.copy(run / "tokenizer" / "spm.model", "mine.model")
    fields = json.loads(result(capfd, write("mine.yaml", "tokenizer: {model: mine.model}"), "--json"))
    pieces = json.loads((run / "tokenizer" / "tokenizer.json").read_text("utf-8"))["pieces"]
    assert fields["vocabulary"] == {
        "source_pieces": pieces["source"],
        "target_pieces": pieces["target"],
        "from": "tokenizer",
    }


# --- the process --------------------------------------------------------------------------------------------------


def test_the_whole_process_imports_neither_torch_nor_what_draws_tables():
    code = """
        import sys
        from transformer_cli.cli import app
        app.main(["count-params", "gpt3.yaml"])
        print({"torch", "numpy", "rich", "sentencepiece"} & set(sys.modules))
        """
    lines = "\n".join(line.strip() for line in code.split("\n"))
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.endswith("\nset()\n")
    assert "174,604,259,328" in done.stdout


# --- what cannot be counted ---------------------------------------------------------------------------------------


def test_a_command_line_that_makes_no_sense_is_refused(capfd):
    assert "--list" in failure(capfd, 2)
    assert "MODEL: the name is empty" in failure(capfd, 2, "")
    for arguments in (
        ["--list", "tiny"],
        ["--list", "--set", "seed=1"],
        ["--list", "--check"],
        ["--list", "--by", "layer"],
        ["--list", "--convention", "exact"],
        ["tiny", "-c", "base"],
        ["tiny", "--json", "--markdown"],
    ):
        failure(capfd, 2, *arguments)
    for name in ("gpt33.yaml", "gpt3.yml"):
        assert "did you mean gpt3.yaml?" in failure(capfd, 2, name)
    assert "--compare: the name is empty" in failure(capfd, 2, "tiny", "--compare", "")
    assert "'--by': 'head' is not one of" in failure(capfd, 2, "tiny", "--by", "head")
    assert "'--utilisation': 'nan' is not a number up to 1" in failure(
        capfd, 2, "tiny", "--hardware=l40s", "--utilisation=nan"
    )
    assert "no configuration nowhere.yaml" in failure(capfd, 2, "tiny", "--compare", "nowhere.yaml")


def model(text: str) -> str:
    return f"model: {{{text}}}"


def accounting(text: str) -> str:
    return f"accounting: {{{text}}}\n"


MALFORMED = {
    "": "is empty",
    " \n\n": "is empty",
    "# nothing\n": "no settings",
    "\x00": "U+0000",
    "7": "`key: value` lines",
    "- model": "`key: value` lines",
    "model: 7": "model",
    "model: [d_model]": "model",
    "model: {d_model: 64": "not closed",
    "model:\n\td_model: 64": "a tab",
    "model: {}\nmodel: {}": "given twice",
    model("d_model: 64, d_model: 64"): "given twice",
    "model: &a {}": "anchors",
    "model: !!python/object:os.system {}": "tags",
    "modle: {}": "did you mean `model`?",
    model("d_modl: 64"): "did you mean `d_model`?",
    model("heads: 8"): "unknown setting",
    model("d_model: 0"): "above 0",
    model("d_model: -512"): "above 0",
    model("d_model: 512.0"): "write 512",
    model("d_model: 1e5"): "write 100000",
    model("d_model: 512.5"): "a whole number",
    model("d_model: .nan"): "a whole number",
    model("d_model: .inf"): "a whole number",
    model("d_model: true"): "a whole number",
    model("d_model: ~"): "a whole number",
    model("d_model: wide"): "a whole number",
    model('d_model: "512"'): "write 512",
    model("d_model: 12_288"): "write 12288",
    model("d_model: 1000000000000000000000000000000"): "up to",
    model(f"d_model: {'9' * 400}"): "a number of more than",
    model("n_layers: 0"): "above 0",
    model("n_layers: true"): "n_layers",
    model("n_layers: 2.5"): "n_layers",
    model("n_layers: {encoder: 6}"): "decoder",
    model("n_layers: {encoder: 0, decoder: 0}"): "at least one",
    model("n_layers: {encoder: 0, decoder: 6}"): "at least one encoder layer",
    model("n_layers: {encoder: 6, decoder: 6, middle: 1}"): "middle",
    accounting("architecture: decoder-only") + model("n_layers: {encoder: 1, decoder: 1}"): "no encoder layers",
    accounting("architecture: mixture"): "one of encoder-decoder",
    model("n_heads: 7"): "not divisible by 7",
    model("n_heads: 8, n_kv_heads: 3"): "evenly",
    model("n_kv_heads: 16"): "evenly",
    model("d_head: 7, positions: rotary"): "odd",
    model("d_model: 511, n_heads: 7"): "odd",
    model("positions: relative"): "positions",
    model("positions: learned, max_positions: 0"): "max_positions",
    accounting("vocab: {source: 5, target: 7}"): "needs one vocabulary",
    accounting("vocab: {source: 5, target: 7}") + model("tied: embeddings"): "needs one vocabulary",
    accounting("vocab: -1"): "vocab",
    accounting("vocab: 50257.0"): "vocab",
    model("tied: some"): "tied",
    accounting("architecture: decoder-only") + model("tied: decoder"): "tied",
    accounting("attention_biases: [queries]"): "expected one of query, key",
    model("bias: 1"): "bias",
    accounting("extra: {name: pooler}"): "extra",
    accounting("extra: [{name: pooler}]"): "shape",
    accounting("extra: [{name: pooler, shape: []}]"): "shape",
    accounting("extra: [{name: pooler, shape: [0]}]"): "above 0",
    accounting("extra: [{name: pooler, shape: [768, 7.5]}]"): "a whole number",
    accounting("extra: [{name: 'a b', shape: [1]}]"): "name",
    accounting("extra: [{name: a, shape: [1]}, {name: a, shape: [1]}]"): "two extras are called a",
    "extends: nowhere.yaml": "neither a file",
    "tokenizer: {vocab_size: 4}": "above 4",
}


@pytest.mark.parametrize("text", MALFORMED, ids=lambda text: text[:40])
def test_malformed_input_is_one_clear_error_with_its_place(capfd, text):
    message = failure(capfd, 2, write("bad.yaml", text))
    assert MALFORMED[text] in message
    assert re.search(r"bad\.yaml:\d+:\d+: |bad\.yaml is empty", message)
    assert "bug" not in message


@pytest.mark.parametrize("change", ["model.d_model=0", "model.n_heads=7", "model.d_modle=8", "model", "=1"])
def test_a_malformed_override_is_an_error_too(capfd, change):
    assert "--set" in failure(capfd, 2, "gpt3.yaml", "--set", change)


def test_an_extra_with_the_name_of_a_built_part_is_refused(capfd):
    extra = "accounting.extra=[{name: pooler, shape: [2]}, {name: attention_bias, shape: [2]}]"
    message = failure(capfd, 2, "gpt2.yaml", "--set", extra)
    assert "attention_bias" in message
    assert "pooler" not in message


def test_bytes_that_are_no_text_have_a_line(capfd):
    Path("bad.yaml").write_bytes(b"model:\n  d_model: \xff")
    assert "bad.yaml:2" in failure(capfd, 2, "bad.yaml")


def test_a_trained_model_s_configuration_is_named_where_it_is(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """That of a checkpoint is its run's, not a file inside it."""
    moved = run.rename(run.with_name("my run"))
    for place in (moved, *(moved / "checkpoints").iterdir()):
        said = failure(capfd, 2, str(place), "--set", "model.d_model=32")
        assert f"count its configuration: '{moved / 'config.yaml'}'\n" in said


def test_new_pieces_are_counted_on_top_of_those_of_a_tokenizer_that_is_given(trained_run: Path) -> None:
    given = f"tokenizer.model={trained_run / 'tokenizer' / 'spm.model'}"
    begun = [given, "training.init_from=runs/x", "tokenizer.extend=5"]
    none, five = (find_subject("tiny.yaml", overrides) for overrides in ([given], begun))
    assert five.vocabulary == "tokenizer"
    assert (five.source_vocab, five.target_vocab) == (none.source_vocab + 5, none.target_vocab + 5)


def test_what_begins_with_a_run_has_that_ones_pieces(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """8,000 were a wish until a tokenizer is trained, and none would be."""
    its = json.loads(result(capfd, str(run), "--json"))["vocabulary"]
    [checkpoint, *_] = (run / "checkpoints").iterdir()
    of = lambda *changes: ["tiny", *(f"--set={change}" for change in ("tokenizer.vocab_size=800", *changes))]  # noqa: E731
    for parent in (run, checkpoint):
        begun = json.loads(result(capfd, *of(f"training.init_from={parent}"), "--json"))["vocabulary"]
        assert begun == its | {"from": "training.init_from"}
    more = " ".join(result(capfd, *of(f"training.init_from={run}", "tokenizer.extend=5")).split())
    assert f"those of {run} (training.init_from) and up to 5 new ones (tokenizer.extend)." in more
    assert f" {its['source_pieces'] + 5:,} pieces" in more
    absent = " ".join(result(capfd, *of("training.init_from=runs/nope")).split())
    assert "800 pieces, a wish (tokenizer.vocab_size) until runs/nope is there, whose tokenizer training is " in absent
    counted = find_subject("tiny", [f"training.init_from={run}", "accounting.vocab=700"])
    assert (counted.source_vocab, counted.vocabulary) == (700, "accounting.vocab")
    shutil.rmtree(run / "tokenizer")
    assert "tokenizer" in failure(capfd, 4, *of(f"training.init_from={run}"))
