"""The service answers what the commands answer, whoever else asks at the same time."""

from __future__ import annotations

import io
import json
import random
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import PAIRS, in_bf16
from served import Served

from transformer_cli.attention_maps.capture import attention_maps
from transformer_cli.attention_maps.page import page
from transformer_cli.attention_maps.saved import as_json
from transformer_cli.cli.app import main
from transformer_cli.decoding.invariance import TIE
from transformer_cli.errors import ModelError, UsageError

TEXTS = [
    *(source for source, _ in PAIRS),
    *("", "  ", "ein", "der xyz trinkt", "ich ich ich ich ich ich ich", "<b>&amp;", "Ein\u2028Bier\x00", "🦔 猫"),
    "der hund schläft nicht . " * 12,
]
CLIENTS = 50


def by_the_command(capsys, texts, *options):
    """What `tx translate --json` says of each; `counts` of what was touched left out."""
    capsys.readouterr()
    assert main(["translate", "--json", *options, *texts]) == 0
    found = map(json.loads, capsys.readouterr().out.strip("\n").split("\n"))
    return [one for one in found if "counts" not in one]


def without_scores(found):
    """Apart: scores, of which rounding in a batch of another shape may change the last digits."""
    if isinstance(found, list):
        return [without_scores(one) for one in found]
    return {
        name: without_scores(value) if name == "n_best" else value
        for name, value in found.items()
        if name not in ("score", "log_probability")
    }


def scores(found):
    return [one["score"] for best in found for one in (best, *best["n_best"])]


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        ({}, []),
        ({"beam_size": 1}, ["-b", "1"]),
        ({"beam_size": 3, "n_best": 3, "length_penalty": 0.5}, ["-b", "3", "--n-best", "3", "--length-penalty", "0.5"]),
        ({"alignments": True}, ["--alignments"]),
    ],
)
def test_the_answer_is_what_the_command_says(served, here, capsys, asked, options):
    found, expected = served.translate(*TEXTS, **asked), by_the_command(capsys, TEXTS, *options)
    assert without_scores(found) == without_scores(expected)
    assert scores(found) == pytest.approx(scores(expected), abs=TIE)
    assert {flag for one in found for flag in one["flags"]} >= {"unseen", "unsure"}


def by_lines(monkeypatch, capsys, texts, prefixes, *options):
    """What `tx translate --jsonl` says of each; `counts` of what was touched left out."""
    lines = [
        json.dumps({"source": text, "prefix": prefix}) + "\n" for text, prefix in zip(texts, prefixes, strict=True)
    ]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("".join(lines).encode())))
    capsys.readouterr()
    assert main(["translate", "--jsonl", *options]) == 0
    found = map(json.loads, capsys.readouterr().out.strip("\n").split("\n"))
    return [one for one in found if "counts" not in one]


@pytest.mark.parametrize(
    ("asked", "options"), [({}, []), ({"beam_size": 1}, ["-b", "1"]), ({"n_best": 2}, ["--n-best", "2"])]
)
def test_a_translation_begins_as_is_asked_and_goes_on_as_the_commands(
    served, here, capsys, monkeypatch, asked, options
):
    prefixes = [("", "we want", "  ", "the dog drinks a", "i", "bbb ccc ddd eee")[n % 6] for n in range(len(TEXTS))]
    expected = by_lines(monkeypatch, capsys, TEXTS, prefixes, *options)
    found = served.translate(*TEXTS, prefixes=prefixes, **asked)
    assert without_scores(found) == without_scores(expected)
    assert scores(found) == pytest.approx(scores(expected), abs=TIE)
    assert all(
        one["translation"].startswith(begun) for one, begun in zip(found[:6], prefixes, strict=False) if begun.strip()
    )
    assert served.translate("ein", prefixes=None, **asked) == served.translate("ein", **asked)


def test_who_asks_for_a_beginning_goes_together_with_who_does_not(serving, here, capsys, monkeypatch):
    """Each gets his own, and a prefix that cannot be written is no matter of the others."""
    service, may_go, together = serving(), threading.Event(), []
    translate, all_at_once = service.translate, service.native.translate_all
    service.translate = lambda *asked: may_go.wait(10) and translate(*asked)
    monkeypatch.setattr(
        type(service.native),
        "translate_all",
        lambda self, texts, **o: together.append(len(texts)) or all_at_once(texts, **o),
    )
    texts = [source for source, _ in PAIRS]
    prefixes = ["we want", "", "", "the cat"] * 3
    with Served(service) as served, ThreadPoolExecutor(14) as pool:
        first = pool.submit(served.translate, "ein bier")
        served.wait_for("tx_batch_texts_count 1.0")
        asked = [
            pool.submit(served.translate, text, **({"prefixes": [prefix]} if prefix else {}))
            for text, prefix in zip(texts, prefixes, strict=True)
        ]
        served.wait_for("tx_waiting_texts 12.0")
        may_go.set()
        found = [one.result()[0] for one in asked]
        assert first.result()
    assert together == [1, 12]
    assert without_scores(found) == without_scores(by_lines(monkeypatch, capsys, texts, prefixes))


def test_fifty_clients_at_once_each_get_their_own_answers(served, here, capsys):
    expected = {one["source"]: one for one in by_the_command(capsys, TEXTS)}

    def client(seed):
        texts = random.Random(seed).choices(TEXTS[:-1], k=1 + seed % 4)
        found = served.translate(*texts)
        assert without_scores(found) == without_scores([expected[text] for text in texts])
        return len(found)

    before = batches(served)
    with ThreadPoolExecutor(CLIENTS) as pool:
        assert sum(pool.map(client, range(CLIENTS))) == sum(1 + seed % 4 for seed in range(CLIENTS))
    assert batches(served) - before < CLIENTS / 2, "hardly any went together"


def batches(served):
    [line] = [one for one in served.get("/metrics").body.decode().split("\n") if one.startswith("tx_batch_texts_count")]
    return float(line.split()[1])


@pytest.mark.parametrize("target", [None, "i drink a beer"])
def test_attention_is_what_the_command_shows_as_json_and_as_page(served, loaded_run, serving, target):
    service = serving()
    maps = attention_maps(service.native, "ich trinke ein bier", model=service.name, target=target)
    asked = {"text": "ich trinke ein bier", "target": target}
    found = served.post("/attention", asked)
    assert (found.headers["content-type"], found.body.decode()) == ("application/json", as_json(maps))
    shown = served.post("/attention", asked, accept="text/html")
    assert (shown.headers["content-type"], shown.body.decode()) == ("text/html; charset=utf-8", page(maps))


def test_samples_are_drawn_by_the_line_of_each_request(serving, here, capsys):
    texts = [source for source, _ in PAIRS[:4]]
    expected = by_the_command(capsys, texts, "--sample", "--set", "decoding.temperature=2")
    with Served(serving(decoding__search="sampling", decoding__temperature=2)) as served:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: served.translate(*texts), range(8)))
        assert all(without_scores(one) == without_scores(expected) for one in found)
        assert served.post("/translate", {"texts": texts, "beam_size": 3}).status == 400


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"decoding__beam_size": 4}, 4),
        ({"decoding__search": "sampling", "decoding__beam_size": 2}, 10),
        ({"decoding__mbr": "{samples: 3}"}, 3),
        ({"decoding__mbr": "{samples: 30}"}, 10),
    ],
)
def test_it_says_how_many_alternatives_there_are_at_most(serving, settings, most):
    with Served(serving(**settings)) as served:
        assert served.get("/health").json["n_best"] == most
        statuses = [served.post("/translate", {"texts": ["ein bier"], "n_best": most + n}).status for n in (0, 1)]
        assert statuses == [200, 400]


def test_ctranslate2_answers_where_it_says_the_same(serving, here, capsys):
    pytest.importorskip("ctranslate2", reason="the extra `ctranslate2` is not installed")
    service = serving(decoding__beam_size=1)
    used = []
    for name in ("engine", "native"):
        translator = getattr(service, name)
        translator.search = lambda *all, name=name, search=translator.search: used.append(name) or search(*all)
    with Served(service) as served:
        assert served.get("/health").json["engine"].startswith("CTranslate2 ")
        expected = by_the_command(capsys, TEXTS[:8], "-b", "1")
        for options, engine in [
            ({}, "engine"),
            ({"prefixes": ["we want", *[""] * 7]}, "native"),
            ({"prefixes": ["", "  "] * 4}, "engine"),
            ({"alignments": True}, "native"),
            ({"beam_size": 5}, "native"),
        ]:
            used.clear()
            found = served.translate(*TEXTS[:8], **options)
            assert set(used) == {engine}
        assert [one["translation"] for one in found] == [one["translation"] for one in expected]


def test_what_ctranslate2_cannot_do_is_refused_where_it_was_asked_for_by_name(serving):
    pytest.importorskip("ctranslate2", reason="the extra `ctranslate2` is not installed")
    with Served(serving(decoding__engine="ctranslate2")) as served:
        assert served.translate("ich mochte ein bier")[0]["translation"] == "i want a beer"
        assert served.translate("ich mochte ein bier", prefixes=[""])[0]["translation"] == "i want a beer"
        refused = served.post("/translate", {"texts": ["ein bier"], "prefixes": ["we"]})
        assert (refused.status, "CTranslate2 cannot do this: prefixes" in refused.json["error"]) == (400, True)
        refused = served.post("/translate", {"texts": ["ein bier"], "alignments": True})
        assert refused.status == 400
        assert "CTranslate2 cannot do this: alignments" in refused.json["error"]
        assert served.post("/attention", {"text": "ein bier"}).status == 200


def of_two_ways(run, *overrides):
    from transformer_cli.checkpoints.find import find_checkpoint
    from transformer_cli.checkpoints.store import open_run
    from transformer_cli.loading import settings_of
    from transformer_cli.serving.service import Service

    opened = open_run(find_checkpoint(str(run)))
    return Service([opened], settings_of(opened, overrides), mark=lambda _, found: [*found], tell=print)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_ranks_is_opened_before_anybody_asks(two_ways, trained_run, tmp_path, monkeypatch, precision):
    """Training may delete it later, and who asks is not to wait for it."""
    run, ranking = (shutil.copytree(two_ways, tmp_path / name) for name in ("run", "ranking"))
    if precision == "bf16":
        in_bf16(run, monkeypatch)
        in_bf16(ranking, monkeypatch)
    service = of_two_ways(run, f"decoding.rerank.run={ranking}")
    assert (service.native is service.precise) == (precision == "fp32")
    shutil.rmtree(ranking)
    with Served(service) as served:
        for to, line in (("en", PAIRS[3][0]), ("de", PAIRS[3][1])):
            assert served.translate(line, to=to)[0]["translation"]
            assert served.post("/attention", {"text": line, "to": to}).status == 200
        answer = served.post("/translate", {"texts": ["ein bier"], "to": "en", "beam_size": 1})
        assert (answer.status, "a beam of 1 finds only one" in answer.json["error"]) == (400, True)
    with pytest.raises(ModelError, match="does not exist"):
        of_two_ways(two_ways, f"decoding.rerank.run={ranking}")
    with pytest.raises(UsageError, match=r"is to rank translations from de to en .* learned de to en"):
        of_two_ways(two_ways, f"decoding.rerank.run={trained_run}")


def test_the_service_is_told_which_language(two_ways):
    import transformer_cli as tx

    service = of_two_ways(two_ways)
    model = tx.load(two_ways)
    with Served(service) as served:
        assert served.get("/health").json["targets"] == ["de", "en"]
        for to, line in (("en", PAIRS[3][0]), ("de", PAIRS[3][1])):
            answer = served.post("/translate", {"texts": [line], "to": to})
            assert answer.json["translations"][0]["translation"] == model.translate(line, to=to)
            maps = served.post("/attention", {"text": line, "to": to}).json
            assert maps["source"]["pieces"][0] == f"<2{to}>"
        for asked in ({}, {"to": "fr"}):
            for path, body in (("/translate", {"texts": ["ein bier"]}), ("/attention", {"text": "ein bier"})):
                answer = served.post(path, {**body, **asked})
                assert answer.status == 400
                assert "into de or en" in answer.json["error"]
