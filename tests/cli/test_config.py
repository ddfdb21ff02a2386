"""`tx config`: settings looked up, and the documents that are generated from the schema."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from transformer_cli.cli.app import main
from transformer_cli.config.settings import sections, settings
from transformer_cli.config.source import load_config, preset_names
from transformer_cli.errors import UsageError

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def shown(tmp_path, monkeypatch, capsys):
    """What `tx config` with these arguments says on stdout, in a folder with a configuration of one's own."""
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("extends: tiny.yaml\nmodel: {d_model: 64}\ndecoding:\n  beam_size: 3\n", "utf-8")

    def shown(*arguments: str) -> str:
        assert main(["config", *arguments]) == 0
        return capsys.readouterr().out

    return shown


def test_all_settings_are_listed_by_section_with_what_they_do(shown):
    told = shown()
    for setting in settings():
        assert f"\n{setting.name.removeprefix(f'{setting.section}.')}  " in told
    for section, about in sections().items():
        assert f"{section}: {about}"[:60] in told or not section
    assert "beam_size" in told.split("\ndecoding: ")[1].split("\nevaluation: ")[0]


def test_a_setting_says_what_it_does_takes_and_is_by_default(shown):
    assert shown("training.keep_best").startswith(
        "training.keep_best\n"
        "  How many of the best checkpoints are kept.\n\n"
        "  takes      a whole number above 0\n"
        "  default    1\n"
        "  elsewhere  keep_best_ckpts, keep_last_ckpts, keep_best_checkpoints\n"
    )


@pytest.mark.parametrize(
    ("setting", "here", "source"),
    [
        ("model.d_model", "64", "mine.yaml:2:18"),
        ("decoding.beam_size", "3", "mine.yaml:4:14"),
        ("model.n_heads", "8", "--set model.n_heads=8"),
        ("decoding.top_k", "0", "default"),
        ("name", "mine", "the file's name"),
    ],
)
def test_a_value_says_which_line_it_is_from(shown, setting, here, source):
    told = shown(setting, "-c", "mine.yaml", "--set", "model.n_heads=8")
    assert f"\n  here       {here}\n  from       {source}\n" in told


def test_a_value_is_from_the_file_that_is_extended(shown):
    assert "tiny.yaml:" in shown("training.learning_rate", "-c", "mine.yaml").split("from  ")[1]


def test_the_parts_of_a_value_are_left_out_where_it_has_none(shown):
    assert "bias.norm" not in shown("-c", "mine.yaml")
    assert "bias.norm" in shown("-c", "mine.yaml", "--set", "model.bias={norm: false}")


def test_each_setting_is_an_object_in_json(shown):
    found = [json.loads(line) for line in shown("--json", "-c", "mine.yaml").removesuffix("\n").split("\n")]
    assert [one["setting"] for one in found] == [setting.name for setting in settings()]
    width = next(one for one in found if one["setting"] == "model.d_model")
    assert width | {"elsewhere": ["dim"], "from": ""} == {
        "setting": "model.d_model",
        "about": "Width of the residual stream.",
        "takes": "a whole number above 0 and up to 1,000,000",
        "default": 512,
        "elsewhere": ["dim"],
        "value": "64",
        "from": "",
    }


def test_what_is_unknown_is_a_usage_error(shown):
    with pytest.raises(UsageError, match=r"no setting learning_rat; did you mean training\.learning_rate\?"):
        main(["config", "learning_rat"])
    with pytest.raises(UsageError, match="extends is in front of all settings: a file beside this one, or a preset"):
        main(["config", "extends"])
    with pytest.raises(UsageError, match="tx has no such penalty"):
        main(["config", "repetition_penalty"])
    with pytest.raises(UsageError, match="tx reads two files of as many lines"):
        main(["config", "tsv"])
    with pytest.raises(UsageError, match="describe all settings"):
        main(["config", "--schema", "--markdown"])


# --- the documents --------------------------------------------------------------------------------------------------


def test_the_document_is_what_the_schema_says(shown):
    written = (DOCS / "configuration.md").read_text("utf-8")
    assert written == shown("--markdown"), "tx config --markdown > docs/configuration.md"


def test_the_json_schema_is_what_the_schema_says(shown):
    written = (DOCS / "configuration.schema.json").read_text("utf-8")
    assert written == shown("--schema"), "tx config --schema > docs/configuration.schema.json"


def fits(value: object, schema: dict, whole: dict) -> bool:
    """A validator of the few words of JSON Schema that ours is made of, apart from limits."""
    if "$ref" in schema:
        return fits(value, whole["$defs"][schema["$ref"].rpartition("/")[2]], whole)
    if "anyOf" in schema:
        return any(fits(value, one, whole) for one in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return value in schema.get("enum", [schema.get("const")])
    kinds = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None), "array": list}
    if schema["type"] == "object":
        known, others = schema.get("properties", {}), schema["additionalProperties"]
        forms = {key: known.get(key, others) for key in value} if isinstance(value, dict) else {"": False}
        return all(form is not False and fits(value[key], form, whole) for key, form in forms.items())
    if isinstance(value, bool) and schema["type"] != "boolean":
        return False
    if isinstance(value, list) and schema["type"] == "array":
        return all(fits(one, schema["items"], whole) for one in value)
    return isinstance(value, kinds[schema["type"]])


def test_the_json_schema_takes_every_preset_and_no_unknown_key():
    schema = json.loads((DOCS / "configuration.schema.json").read_text("utf-8"))
    for name in preset_names():
        assert fits(load_config(name).model_dump(), schema, schema), name
    assert fits({"extends": "base.yaml", "model": {"n_layers": {"encoder": 1, "decoder": 2}}}, schema, schema)
    assert fits({"data": {"test": {"2016": "a", "2017": {"source": "b", "target": "c"}}}}, schema, schema)
    assert not fits({"data": {"test": {"2016": 1}}}, schema, schema)
    assert not fits({"model": {"lr": 1}}, schema, schema)
    assert not fits({"model": {"d_model": "512"}}, schema, schema)
    assert all(part["description"] for part in schema["$defs"].values())
