"""fairseq's checkpoints say in tx what they said there, pieces and logits, or are refused."""

from __future__ import annotations

import collections
import itertools
import json
import random
from argparse import Namespace
from pathlib import Path

import as_fairseq
import pytest
import sentencepiece
import torch
from test_importing import opened, sentencepiece_model, text, tx_  # noqa: F401

from transformer_cli.errors import ModelError, UsageError
from transformer_cli.export import from_fairseq
from transformer_cli.export.importing import import_model
from transformer_cli.tokenizer import merges

ARGS = {
    "arch": "transformer_iwslt_de_en",
    "task": "translation",
    "source_lang": "de",
    "target_lang": "en",
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 24,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "max_source_positions": 200,
    "max_target_positions": 200,
}
TASK = {"_name": "translation", "source_lang": "de", "target_lang": "en"}
PRE = {"encoder_normalize_before": True, "decoder_normalize_before": True}
SHAPES = [
    {},
    PRE,
    PRE | {"share_decoder_input_output_embed": True, "activation_fn": "gelu", "no_scale_embedding": True},
    {"share_all_embeddings": True, "encoder_layers": 1, "decoder_layers": 2},
    {"encoder_learned_pos": True, "decoder_learned_pos": True},
    {"decoder_learned_pos": True, "max_target_positions": 90},
    PRE | {"no_token_positional_embeddings": True},
]


def learned(lines: list[str], n: int = 120) -> list[tuple[str, str]]:
    """The merges that subword-nmt learns."""
    counts = collections.Counter(word for line in lines for word in line.split())
    words = {(*word[:-1], word[-1] + "</w>"): n for word, n in counts.items()}
    found = []
    for _ in range(n):
        pairs = collections.Counter()
        for word, count in words.items():
            for pair in itertools.pairwise(word):
                pairs[pair] += count
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        found.append(best)
        words = {merge(word, best): count for word, count in words.items()}
    return found


def merge(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    """All of them, from the left."""
    row = "\0".join(("", *word, ""))
    while (joined := row.replace("\0{}\0{}\0".format(*pair), "\0{}{}\0".format(*pair), 1)) != row:
        row = joined
    return tuple(row[1:-1].split("\0"))


def cut(line: str, rules: list[tuple[str, str]]) -> list[str]:
    """By subword-nmt: each rule in turn, wherever it applies, as it was learned."""
    pieces = []
    for word in line.split():
        symbols = (*word[:-1], word[-1] + "</w>")
        for rule in rules:
            symbols = merge(symbols, rule)
        pieces += [symbol + "@@" for symbol in symbols[:-1]] + [symbols[-1].removesuffix("</w>")]
    return pieces


def rules_of(place: Path) -> list[tuple[str, str]]:
    return [tuple(line.split(" ")) for line in (place / "code").read_text("utf-8").split("\n")[1:-1]]


@pytest.fixture(scope="module")
def codes(text):  # noqa: F811
    """The merges of some lines, and the pieces of each side by them."""
    lines = [[*side[:200]] for side in text]
    rules = learned([*lines[0], *lines[1]])
    return rules, [[piece for line in side for piece in cut(line, rules)] for side in lines]


@pytest.fixture
def checkpoint(tmp_path, text, codes, monkeypatch):  # noqa: F811
    """checkpoint(cut_by, **args): a directory of a model with random weights, and its list for each side."""

    def make(cut_by: str = "codes", *, is_opened: bool = False, **options):
        place = tmp_path / "there"
        place.mkdir()
        args = ARGS | options
        lines = [[*side[:200]] for side in text]
        if cut_by == "codes":
            rules, sides = codes
            place.joinpath("code").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in rules), "utf-8")
        elif cut_by == "sentencepiece":
            model = sentencepiece_model([*lines[0], *lines[1]], model_type="bpe")
            place.joinpath("sentencepiece.bpe.model").write_bytes(model)
            processor = sentencepiece.SentencePieceProcessor(model_proto=model)
            sides = [[piece for line in side for piece in processor.encode(line, out_type=str)] for side in lines]
        else:
            sides = [" ".join(side).split() for side in lines]
        if args.get("share_all_embeddings"):
            sides = [sides[0] + sides[1]] * 2
        lists = []
        for language, pieces in zip(("de", "en"), sides, strict=True):
            counted = collections.Counter(pieces).most_common()
            counted += [(f"madeupword{n:04}", 0) for n in range(3)]
            place.joinpath(f"dict.{language}.txt").write_text("".join(f"{one} {n}\n" for one, n in counted), "utf-8")
            lists.append(["<s>", "<pad>", "</s>", "<unk>", *(one for one, _ in counted)])
        model = as_fairseq.weights(args, *map(len, lists))
        torch.save({"args": Namespace(**args), "model": model}, place / "model.pt")
        if not is_opened:  # by a process of its own, which takes two seconds
            monkeypatch.setattr(from_fairseq, "unpickled", lambda path: ({"args": args}, model))
        return place, args, model, lists

    return make


@pytest.mark.parametrize("options", SHAPES, ids=str)
@torch.inference_mode()
def test_every_shape_gives_the_logits_of_the_original(checkpoint, tmp_path, text, options):  # noqa: F811
    place, args, model, lists = checkpoint(**options)
    import_model(place, tmp_path / "run")
    run = opened(tmp_path / "run")
    target = run.tokenizer.target
    named = {target.piece(id): id for id in range(4, target.size)}
    order = [3] + [named[one.removesuffix("@@") if one.endswith("@@") else one + "▁"] for one in lists[1][4:]]
    for source, wanted in list(zip(*text, strict=True))[:5]:
        [ids], [written] = run.tokenizer.encode_source([source]), run.tokenizer.encode_target([wanted])
        sides = zip(lists, (source, wanted), strict=True)
        numbers = [[side.index(piece) for piece in cut(line, rules_of(place))] for side, line in sides]
        there = as_fairseq.logits(args, model, [*numbers[0], as_fairseq.EOS], [as_fairseq.EOS, *numbers[1]])
        hidden = run.model(torch.tensor([[*ids, 3]]), torch.tensor([len(ids) + 1]), torch.tensor([[2, *written]]))
        here = run.model.project(hidden)[0]
        torch.testing.assert_close(here[:, order], there[:, [2, *range(4, len(lists[1]))]], rtol=0, atol=1e-5)
        assert here[:, 2].max() < -90


@pytest.mark.parametrize("cut_by", ["codes", "sentencepiece", "blanks"])
def test_text_is_cut_as_there_and_joined_again(checkpoint, tmp_path, text, cut_by):  # noqa: F811
    place, *_, lists = checkpoint(cut_by)
    import_model(place, tmp_path / "run")
    run = opened(tmp_path / "run")
    source = run.tokenizer.source
    if cut_by == "codes":
        original = [cut(line, rules_of(place)) for line in text[0]]
        here = [
            [one.removesuffix("▁") if one.endswith("▁") else one + "@@" for one in row]
            for row in source.pieces(text[0])
        ]
    elif cut_by == "sentencepiece":
        processor = sentencepiece.SentencePieceProcessor(model_file=str(place / "sentencepiece.bpe.model"))
        original, here = processor.encode(list(text[0]), out_type=str), source.pieces(text[0])
    else:
        original, here = (
            [line.split() for line in text[0]],
            [[one.strip("▁") for one in row] for row in source.pieces(text[0])],
        )
    if cut_by != "blanks":
        assert here == original
    known = [row for row in range(len(original)) if set(original[row]) <= set(lists[0])]
    assert len(known) > 100
    assert [here[row] for row in known] == [original[row] for row in known]
    lines = [" ".join(text[0][row].split()) for row in known]
    assert source.decode(source.encode(lines)) == lines


def test_random_words_are_cut_by_merges_as_by_their_rules(checkpoint, tmp_path, text):  # noqa: F811
    place, *_ = checkpoint()
    import_model(place, tmp_path / "run")
    source = opened(tmp_path / "run").tokenizer.source
    rules = rules_of(place)
    drawn, letters = random.Random(4), sorted({char for line in text[0][:200] for char in line} - {" "})
    for _ in range(500):
        line = " ".join("".join(drawn.choices(letters, k=drawn.randint(1, 8))) for _ in range(3))
        wanted = [one.removesuffix("@@") if one.endswith("@@") else one + "▁" for one in cut(line, rules)]
        assert source.pieces([line])[0] == wanted


@torch.inference_mode()
def test_old_names_and_nested_settings_are_the_same_model(checkpoint, tmp_path, monkeypatch):
    place, args, model, _ = checkpoint(**PRE)
    import_model(place, tmp_path / "new")
    old = {}
    for name, tensor in model.items():
        if ".q_proj." in name:
            parts = [model[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj")]
            old[name.replace(".q_proj.", ".in_proj_")] = torch.cat(parts)
        elif ".k_proj." not in name and ".v_proj." not in name:
            for n, norm in enumerate(("self_attn", "encoder_attn", "final")):
                n = min(n, 1) if "encoder.layers" in name else n
                name = name.replace(f".{norm}_layer_norm.", f".layer_norms.{n}.")
            old[name] = tensor
    old["decoder.embed_out"] = old.pop("decoder.output_projection.weight")
    old["encoder.embed_positions._float_tensor"] = torch.zeros(1)
    nested = {
        side: {name.removeprefix(f"{side}_"): value for name, value in args.items() if name.startswith(f"{side}_")}
        for side in ("encoder", "decoder")
    }
    rest = {name: value for name, value in args.items() if not name.startswith(("encoder_", "decoder_"))}
    cfg = {"model": nested | rest | {"_name": "transformer"}, "task": TASK}
    monkeypatch.setattr(from_fairseq, "unpickled", lambda path: ({"args": None, "cfg": cfg}, old))
    import_model(place, tmp_path / "old")
    first, second = (opened(tmp_path / name) for name in ("new", "old"))
    assert first.config.model == second.config.model
    weights = dict(second.model.named_parameters())
    assert all(torch.equal(one, weights[name]) for name, one in first.model.named_parameters())


@pytest.mark.parametrize(
    ("codes", "words"),
    [
        ("#version: 0.2\na b\nb c\nb c d\n\nx", "line 5: '' is no pair"),
        ("a b 9\nb\n", "line 2: 'b' is no pair"),
        ("a b\n", "have no version"),
        ("#version: 0.2\nb c\na b\nab c\n", "are never one symbol"),
    ],
)
def test_merges_that_sentencepiece_cannot_follow_are_refused(codes, words):
    with pytest.raises(ModelError, match=words):
        merges.merged(codes, ["a"])


def test_a_dictionary_of_another_model_is_refused(checkpoint, tmp_path):
    place, *_ = checkpoint()
    with (place / "dict.de.txt").open("a", encoding="utf-8") as file:
        file.write("more 1\n")
    with pytest.raises(ModelError, match=r"dict.de.txt has .* pieces, the weights"):
        import_model(place, tmp_path / "run")


def test_what_cannot_be_held_is_refused_with_every_reason(checkpoint, tmp_path):
    wild = {"layernorm_embedding": True, "activation_fn": "gelu_accurate", "decoder_attention_heads": 2}
    place, *_ = checkpoint(**wild, task="translation_multi_simple_epoch", arch="bart_large")
    (place / "dict.en.txt").unlink()
    with pytest.raises(UsageError) as caught:
        import_model(place, tmp_path / "run")
    for words in ("layernorm_embedding", "gelu_accurate", "decoder_attention_heads 2", "task:", "arch:", "dict.en.txt"):
        assert words in caught.value.message
    assert not (tmp_path / "run").exists()


def test_every_line_of_a_dictionary_is_a_row_also_that_of_a_piece_that_was_there(checkpoint, tmp_path):
    place, _, model, lists = checkpoint("blanks")
    piece = lists[0][4]
    with (place / "dict.de.txt").open("a", encoding="utf-8") as file:
        file.write(f"{piece} 7 #fairseq:overwrite\n<s> 5 #fairseq:overwrite\n")
    table = model["encoder.embed_tokens.weight"]
    model["encoder.embed_tokens.weight"] = torch.cat((table, torch.randn(2, 16)))
    import_model(place, tmp_path / "run")
    run = opened(tmp_path / "run")
    [[id]] = run.tokenizer.encode_source([piece])
    assert torch.equal(run.model.source_embedding.table.weight[id], model["encoder.embed_tokens.weight"][-2])


def test_a_piece_that_is_there_twice_is_refused(checkpoint, tmp_path):
    place, *_, lists = checkpoint()
    with (place / "dict.de.txt").open("a", encoding="utf-8") as file:
        file.write(f"{lists[0][4]} 1\n")
    with pytest.raises(ModelError, match=rf"dict.de.txt, line {len(lists[0]) - 3}: .* is there already"):
        import_model(place, tmp_path / "run")


def test_only_a_file_of_codes_is_taken_for_one(checkpoint, tmp_path):
    place, *_ = checkpoint("blanks")
    for name in ("decode.sh", "encode.log"):
        place.joinpath(name).write_text("tx translate\n", encoding="utf-8")
    import_model(place, tmp_path / "run")
    assert opened(tmp_path / "run").config.tokenizer.kind == "word"


@pytest.mark.parametrize(
    "said", [{}, {"args": {}}, {"cfg": {}}, {"cfg": {"task": TASK}}, {"cfg": {"task": TASK, "model": None}}], ids=str
)
def test_a_checkpoint_that_does_not_say_its_settings_is_refused(checkpoint, tmp_path, monkeypatch, said):
    place, _, model, _ = checkpoint()
    monkeypatch.setattr(from_fairseq, "unpickled", lambda path: ({"args": None, "cfg": None} | said, model))
    with pytest.raises(ModelError, match="does not say its settings, such as the number of heads"):
        import_model(place, tmp_path / "run", ["data.source=de", "data.target=en"])


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"args": ARGS | {"max_source_positions": "x"}}, "max_source_positions is 'x', which"),
        ({"args": ARGS | {"encoder_attention_heads": True}}, "encoder_attention_heads is True, which"),
        ({"args": ARGS | {"source_lang": 5}}, "source_lang is 5, which"),
        ({"args": "x"}, "args is 'x', which"),
        ({"cfg": ["x"]}, "cfg is ['x'], which"),
        ({"cfg": {"task": "translation", "model": ARGS}}, "task is 'translation', which"),
        ({"cfg": {"task": TASK, "model": 5}}, "model is 5, which"),
    ],
)
def test_damaged_settings_are_refused(checkpoint, tmp_path, monkeypatch, said, words):
    place, _, model, _ = checkpoint()
    monkeypatch.setattr(from_fairseq, "unpickled", lambda path: (said, model))
    with pytest.raises(ModelError) as caught:
        import_model(place, tmp_path / "run")
    assert words in caught.value.message


def test_a_task_is_known_by_its_own_name_not_the_models(checkpoint, tmp_path, monkeypatch):
    place, args, model, _ = checkpoint()
    args = {name: value for name, value in args.items() if name != "task"} | {"_name": "transformer"}
    cfg = {"task": TASK | {"_name": "multilingual_translation"}, "model": args}
    monkeypatch.setattr(from_fairseq, "unpickled", lambda path: ({"cfg": cfg}, model))
    with pytest.raises(UsageError, match="task: multilingual_translation"):
        import_model(place, tmp_path / "run")


def test_a_fairseq_run_is_a_run_like_any_other(checkpoint, tmp_path, text, capfd):  # noqa: F811
    place, *_ = checkpoint(is_opened=True, share_all_embeddings=True, **PRE)
    assert tx_("import", str(place / "model.pt"), "--run-dir", "runs/fair", "--json") == 0
    said = json.loads(capfd.readouterr().out)
    assert (said["kind"], said["source"], said["target"]) == ("fairseq", "de", "en")
    for name, lines in zip(("text.de", "text.en"), text, strict=True):
        Path(name).write_text("\n".join(lines[:40]) + "\n", encoding="utf-8")
    assert tx_("translate", "-m", "runs/fair", "ein hund", "--set", "decoding.max_length=6") == 0
    assert tx_("score", "-m", "runs/fair", "--source", "text.de", "--target", "text.en") == 0
    assert tx_("visualize-attention", "-m", "runs/fair", "ein hund schläft", "-o", "maps.json", "--words") == 0
    source = json.loads(Path("maps.json").read_text(encoding="utf-8"))["source"]
    assert max(source["words"]) == 3  # three words and the end mark
    assert tx_("count-params", "runs/fair", "--check") == 0
    learning = ["--set", "training.max_steps=2", "--set", "data.train=text", "--set", "data.valid=text"]
    assert tx_("train", "-c", "runs/fair/config.yaml", "--run-dir", "runs/fair", *learning) == 0
    Path("lines").write_text("ja\nein hund\n", encoding="utf-8")
    for format in ("ctranslate2", "onnx", "hugging-face"):
        assert tx_("export", format, "-m", "runs/fair", "-o", format, "-i", "lines") == 0
