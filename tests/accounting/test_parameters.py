"""The closed form: known models, what each option is worth, and products that are what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import research
import yaml

from transformer_cli.accounting.parameters import count
from transformer_cli.accounting.remarks import percent, reading
from transformer_cli.config.accounting import AccountingConfig, CountedModel
from transformer_cli.config.model import ModelConfig
from transformer_cli.config.run import RunConfig, contradictions, vocab_sizes

KNOWN = yaml.safe_load((Path(__file__).parent / "known_models.yaml").read_text("utf-8"))
RESEARCH = research.read_records()
here = pytest.mark.skipif(RESEARCH is None, reason="the research is not beside this checkout")
PAPER = {"norm_position": "post", "bias": {"attention": False}, "vocab": 37_000}
"""The paper's base model: 63,045,632."""


def counted(settings):
    """settings: those of `accounting:` and of `model:` together."""
    only_counted = {key: value for key, value in settings.items() if key in AccountingConfig.model_fields}
    model = {key: value for key, value in settings.items() if key not in only_counted}
    config = RunConfig(accounting=AccountingConfig(**only_counted), model=ModelConfig(**model))
    assert list(contradictions(config)) == []
    source, target = vocab_sizes(config)
    return count(config.counted, source_vocab=source, target_vocab=target)


def compare(found, record):
    """Total, trainable and every component; a name stands for all that lies under it."""
    convention = record.get("convention", "exact")
    groups = {group.name: group.parameters for group in found.groups("component", convention)}
    expected = record.get("components") or groups
    folded = dict.fromkeys(expected, 0)
    for name, parameters in groups.items():
        owner = max((known for known in expected if name == known or name.startswith(f"{known}.")), key=len)
        folded[owner] += parameters
    assert folded == expected
    assert sum(groups.values()) == record["total"] == sum(expected.values())
    if convention == "exact":
        assert (found.total, found.frozen) == (record["total"], record.get("frozen", 0))


@pytest.mark.parametrize("record", KNOWN, ids=lambda record: record["name"])
def test_a_known_model_is_counted_to_the_last_digit(record):
    compare(counted(record["model"]), record)


@here
@pytest.mark.parametrize("record", RESEARCH["models"] if RESEARCH else [], ids=lambda record: record["name"])
def test_a_record_of_the_research_is_counted_to_the_last_digit(record):
    found = counted(research.adapted(record["config"]))
    compare(
        found,
        {
            "total": record["total"],
            "frozen": record["stored_non_trainable"],
            "components": research.components(record),
            "convention": record["config"].get("convention", "exact").replace("_", "-"),
        },
    )


@here
def test_the_research_has_no_model_that_is_not_here():
    assert {record["total"] for record in RESEARCH["models"]} <= {record["total"] for record in KNOWN}


@here
@pytest.mark.parametrize(
    "case", RESEARCH["option_deltas"]["cases"] if RESEARCH else [], ids=lambda case: case["change"]
)
def test_an_option_of_the_research_is_worth_what_it_says(case):
    [base] = [record for record in RESEARCH["models"] if record["name"] == RESEARCH["option_deltas"]["base"]]
    found = counted(research.adapted(research.merged(base["config"], case["set"])))
    assert (found.total, found.total - base["total"]) == (case["total"], case["delta"])


@pytest.mark.parametrize(
    ("change", "delta"),
    [
        ({"bias": True}, 36_864),
        ({"bias": {"attention": False, "feed_forward": False}}, -30_720),
        ({"tied": "embeddings"}, 18_944_000),
        ({"tied": "decoder"}, 18_944_000),
        ({"tied": "none"}, 37_888_000),
        ({"output_bias": True}, 37_000),
        ({"extra": [{"name": "unembedding_bias", "shape": [37_000]}]}, 37_000),
        ({"positions": "learned", "max_positions": 512}, 524_288),
        ({"norm_position": "pre"}, 2_048),
        ({"norm": "rms-norm"}, -15_360),
        ({"activation": "swiglu"}, 12_607_488),
        ({"n_kv_heads": 2}, -7_077_888),
        ({"n_kv_heads": 1}, -8_257_536),
        ({"positions": "rotary"}, 0),
        ({"n_heads": 4}, 0),
        ({"vocab": 41_100}, 2_099_200),
    ],
    ids=str,
)
def test_an_option_is_worth_exactly_this_much(change, delta):
    assert counted(PAPER | change).total - counted(PAPER).total == delta


@pytest.mark.parametrize(
    ("claimed", "model", "right"),
    [
        (
            60_511_616,  # keras-team/keras-hub@71453d08, t5_1.1_small
            {
                "n_layers": 8,
                "n_heads": 6,
                "d_head": 64,
                "d_ff": 1024,
                "vocab": 32_128,
                "tied": "embeddings",
                "activation": "geglu",
                "positions": "none",
                "norm": "rms-norm",
                "bias": False,
                "extra": [{"name": "relative_bias", "shape": [2, 32, 6]}],
            },
            76_961_152,
        ),
        (
            1_498_482_688,  # the same, llama3.2_1b: the tied output twice
            {
                "architecture": "decoder-only",
                "n_layers": 16,
                "d_model": 2048,
                "n_heads": 32,
                "n_kv_heads": 8,
                "d_ff": 8192,
                "vocab": 128_256,
                "activation": "swiglu",
                "positions": "rotary",
                "norm": "rms-norm",
                "bias": False,
            },
            1_235_814_400,
        ),
    ],
)
def test_a_published_figure_that_the_architecture_contradicts_stays_rejected(claimed, model, right):
    assert counted(model).total == right != claimed


VARIED = [record for record in KNOWN if record.get("convention") is None]


@pytest.mark.parametrize("record", VARIED, ids=lambda record: record["name"])
@pytest.mark.parametrize("by", ["component", "layer", "block"])
def test_groups_add_up_and_their_products_are_their_numbers(record, by):
    found = counted(record["model"])
    assert sum(group.parameters for group in found.groups(by)) == found.total
    assert sum(group.trainable for group in found.groups(by)) == found.trainable
    for convention in ("exact", "weights-only"):
        for group in found.groups(by, convention):
            assert worth(group.product) == group.parameters, group


@pytest.mark.parametrize("record", VARIED, ids=lambda record: record["name"])
def test_corrections_lead_from_one_convention_to_the_other(record):
    found = counted(record["model"])
    assert found.weights_only + sum(group.parameters for group in found.corrections()) == found.total


def worth(product):
    """What `128 x 12,288 x 96 heads + (3 + 4) x 2 layers` comes to."""
    text = re.sub(r"[a-wyz][a-z ]*", "", product.replace(",", "").replace(" x ", " * "))
    assert re.fullmatch(r"[0-9+*() ]+", text), product
    total = 0
    for term in re.split(r" \+ (?![^(]*\))", text):
        value = 1
        for factor in term.split("*"):
            value *= sum(int(number) for number in factor.strip(" ()").split("+"))
        total += value
    return total


def test_the_lectures_table_is_read_as_they_show_it():
    [lectures] = [record for record in KNOWN if record["name"] == "gpt3-175b-3b1b"]
    products = {group.name: group.product for group in counted(lectures["model"]).groups()}
    assert products["decoder_self.key"] == "128 x 12,288 x 96 heads x 96 layers"
    assert products["decoder_ffn.up"] == "49,152 x 12,288 x 96 layers"
    assert products["embedding.tokens"] == "12,288 x 50,257"


def test_both_conventions_count_gpt3_tied_or_not():
    [tied, untied] = [
        counted(record["model"]) for record in KNOWN if record["name"] in ("gpt3-175b", "gpt3-175b-untied")
    ]
    assert tied.weights_only == untied.weights_only == 175_181_291_520
    assert (tied.total, untied.total) == (174_604_259_328, 175_221_817_344)
    corrections = {group.name: group.parameters for group in tied.corrections()}
    assert corrections == {
        "unembedding": -617_558_016,
        "embedding.positions": 25_165_824,
        "attention_bias": 4_718_592,
        "ffn_bias": 5_898_240,
        "norm.layers": 4_718_592,
        "norm.final": 24_576,
    }


@pytest.mark.parametrize("record", VARIED, ids=lambda record: record["name"])
def test_twice_the_layers_have_twice_the_parameters_and_nothing_else_changes(record):
    model = CountedModel.model_validate(record["model"])
    doubled = record["model"] | {"n_layers": {side: 2 * n for side, n in model.depths.model_dump().items()}}
    once, twice = ({g.name: g.parameters for g in counted(m).groups("layer")} for m in (record["model"], doubled))
    assert twice == {name: n * (2 if name.endswith(" layers") else 1) for name, n in once.items()}


@pytest.mark.parametrize("n_heads", [1, 2, 4, 16, 512])
def test_the_number_of_heads_alone_changes_nothing(n_heads):
    assert counted(PAPER | {"n_heads": n_heads}).by_component() == counted(PAPER).by_component()


def test_percentages_are_exact_however_large_the_numbers():
    assert percent(10**30, 3 * 10**30) == "33.3%"
    assert [percent(n, 2000) for n in (0, 1, 2000)] == ["0.0%", "0.1%", "100.0%"]


def test_what_lies_in_a_thousand_small_places_is_still_read():
    """It used to end in an IndexError: no place had a thousandth."""
    extras = [{"name": f"part{index}", "shape": [1000]} for index in range(1500)]
    small = {"d_model": 2, "n_heads": 1, "d_ff": 1, "n_layers": 1, "extra": extras}
    found = count(CountedModel(**small), source_vocab=1, target_vocab=1)
    assert reading(found).startswith("0.1% of the parameters are in part0, ")
