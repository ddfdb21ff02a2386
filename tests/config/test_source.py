"""Files, presets, `extends`, `--set`: which value wins, and where relative file names lead."""

from __future__ import annotations

import contextlib
import os
import re
import typing
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unicodedata import normalize

import pytest
from fuzz import as_json, little_memory, spoiled, spoiled_json, tries
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from transformer_cli.config.data import InlinePairs, ParallelFiles
from transformer_cli.config.expectations import Accepted, accepted
from transformer_cli.config.model import Depths
from transformer_cli.config.run import RunConfig, contradictions
from transformer_cli.config.section import PERCENT, as_name, composed, is_name
from transformer_cli.config.source import dump_config, load_config, preset_names
from transformer_cli.config.tokenizer import SideModels
from transformer_cli.errors import ConfigError

PRESETS = Path(__file__).parents[2] / "configs"


@pytest.fixture
def folder(tmp_path):
    """An empty current folder."""
    return tmp_path


def write(path: str, text: str) -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text, encoding="utf-8")
    return path


def message(*arguments) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(*arguments)
    assert caught.value.exit_code == 2
    return f"{caught.value.message}\n{caught.value.hint or ''}".rstrip("\n")


@pytest.mark.parametrize("name", sorted(path.stem for path in PRESETS.glob("*.yaml")))
def test_every_preset_loads_by_name_and_says_something_new(folder, name):
    config = load_config(name)
    assert config == load_config(f"{name}.yaml") == load_config(PRESETS / f"{name}.yaml")
    assert config.name == name
    assert name in preset_names()


def test_a_file_comes_before_the_preset_of_the_same_name(folder):
    write("tiny.yaml", "model: {d_ff: 7}")
    assert load_config("tiny.yaml").model.d_ff == 7
    assert load_config("tiny").model.d_ff != 7


def test_a_file_needs_its_ending_no_more_than_a_preset(folder):
    write("mine.yaml", "seed: 5")
    os.mkdir("mine")
    assert (load_config("mine").seed, load_config("mine").name) == (5, "mine")
    assert message("mine/").endswith("is a directory, not a configuration")
    write("other.yaml", "extends: mine")
    assert load_config("other.yaml").seed == 5


def test_a_file_of_a_presets_name_may_extend_that(folder):
    """It went round in a circle."""
    write("tiny.yaml", "extends: tiny.yaml\nseed: 5")
    found = load_config("tiny.yaml")
    assert (found.seed, found.model) == (5, load_config("tiny").model)
    write("mine.yaml", "extends: tiny.yaml")
    assert load_config("mine.yaml").seed == 5


def test_a_folder_does_not_hide_a_preset(folder):
    os.mkdir("tiny")
    assert load_config("tiny").name == "tiny"


def test_a_mistyped_preset_is_named(folder):
    assert message("tinny.yaml") == (
        "no configuration tinny.yaml: neither a file nor a preset\ndid you mean tiny.yaml?"
    )
    assert message("x/y.yaml").endswith(f"presets: {', '.join(preset_names())}")


@pytest.mark.parametrize(
    ("begun", "meant"),
    [
        ("small", "small-data.yaml"),
        ("wmt14", "wmt14-en-de.yaml"),
        ("transformer", "transformer-base.yaml or transformer-big.yaml"),
    ],
)
def test_a_name_that_a_preset_begins_with_is_completed(folder, begun, meant):
    """`small` was t5-small."""
    assert message(begun).endswith(f"did you mean {meant}?")


@pytest.mark.parametrize("typed", ["mien.yaml", "mien", "mine.yml", "Mine.yaml"])
def test_a_mistyped_file_is_named(folder, typed):
    write("mine.yaml", "seed: 1")
    write("sub/mine.yaml", "seed: 1")
    assert message(typed).endswith("\ndid you mean mine.yaml?")
    assert message(f"sub/{typed}").endswith("\ndid you mean sub/mine.yaml?")


@pytest.mark.parametrize("name", ["../configs/tiny", "", ".", "/etc", "a\0b", "a\0b/c"])
def test_a_preset_is_a_bare_name(folder, name):
    assert "no configuration" in message(name) or "is a directory" in message(name)


def test_extends_inherits_section_by_section(folder):
    write("a.yaml", "model: {d_model: 64, n_heads: 2, d_ff: 128}\nseed: 5")
    write("sub/b.yaml", "extends: ../a.yaml\nmodel: {d_ff: 256}")
    write("c.yaml", "extends: sub/b.yaml\nmodel: {n_heads: 4}")
    config = load_config("c.yaml")
    assert (config.model.d_model, config.model.n_heads, config.model.d_ff, config.seed) == (64, 4, 256, 5)


def test_extends_looks_beside_the_file_then_among_the_presets(folder):
    write("mine.yaml", "extends: big\n")
    assert load_config("mine.yaml").model.d_model == 1024
    write("big", "model: {d_model: 16}\n")
    assert load_config("mine.yaml").model.d_model == 16


def test_extends_in_a_circle_names_the_chain(folder):
    write("a.yaml", "extends: b.yaml")
    write("b.yaml", "seed: 1\nextends: c.yaml")
    write("c.yaml", "extends: ./a.yaml")
    assert message("a.yaml") == (
        "c.yaml:1:10: `extends` goes round in a circle: a.yaml -> b.yaml -> c.yaml -> a.yaml\n"
        "    1 | extends: ./a.yaml\n"
        "      |          ^^^^^^^^"
    )


def test_extends_of_nothing_names_the_nearest_preset(folder):
    write("a.yaml", "extends: tinny.yaml")
    assert message("a.yaml") == (
        "a.yaml:1:10: `extends: tinny.yaml` names neither a file beside this one nor a preset; "
        "did you mean tiny.yaml?\n"
        "    1 | extends: tinny.yaml\n"
        "      |          ^^^^^^^^^^"
    )
    write("a.yaml", "extends: [tiny.yaml]")
    assert "`extends` names one file or preset" in message("a.yaml")


def test_a_long_chain_ends(folder):
    for index in range(30):
        write(f"{index}.yaml", f"extends: {index + 1}.yaml")
    assert "more than 20 files extend each other" in message("0.yaml")


@pytest.mark.parametrize(
    ("below", "above", "expected"),
    [
        ("corpus/a", "{source: x, target: y}", ParallelFiles),
        ("{source: x, target: y}", "{pairs: [[a, b]]}", InlinePairs),
        ("{pairs: [[a, b]]}", "{source: x, target: y}", ParallelFiles),
        ("{pairs: [[a, b]]}", "corpus/a", str),
    ],
)
def test_a_split_is_replaced_whole(folder, below, above, expected):
    """Merging {source, target} with {pairs} would make a mapping that is neither."""
    write("a.yaml", f"data: {{train: {below}, valid: v, source_eos: false}}")
    write("b.yaml", f"extends: a.yaml\ndata: {{train: {above}}}")
    data = load_config("b.yaml").data
    assert isinstance(data.train, expected)
    assert data.source_eos is False


def test_an_empty_section_says_nothing(folder):
    write("a.yaml", "model: {d_ff: 7}\ntraining:")
    write("b.yaml", "extends: a.yaml\nmodel:\n  # d_ff: 9\ndata:\n  phrasebook:\n")
    assert load_config("b.yaml").model.d_ff == 7


def test_of_what_there_may_be_none_an_empty_section_says_that_there_is(folder):
    """By a file as by --set: there it said nothing, and translations were no minimum Bayes risk."""
    write("a.yaml", "decoding: {mbr: {}}")
    write("b.yaml", "extends: a.yaml\ndecoding: {mbr: {samples: 7}}")
    write("c.yaml", "extends: b.yaml\ndecoding: {mbr: {}}")
    write("d.yaml", "extends: c.yaml\ndecoding:\n  mbr:\n")
    found = [load_config(name).decoding.mbr for name in ("a.yaml", "b.yaml", "c.yaml", "d.yaml")]
    assert [one and one.samples for one in found] == [50, 7, 7, None]
    assert load_config("a.yaml") == load_config("d.yaml", ["decoding.mbr={}"]).model_copy(update={"name": "a"})
    write("e.yaml", "decoding: {rerank: {}}")
    with pytest.raises(ConfigError, match="run"):
        load_config("e.yaml")


def test_null_replaces_where_null_is_a_value(folder):
    write("a.yaml", "training: {clip_norm: 2.0, patience: 3}")
    write("b.yaml", "extends: a.yaml\ntraining: {clip_norm: null, patience: }")
    training = load_config("b.yaml").training
    assert (training.clip_norm, training.patience) == (None, None)


@pytest.mark.parametrize(
    ("below", "above", "expected"),
    [
        ("training: {budget: {minutes: 3}}", "training: {budget: null, max_steps: 60}", "training.budget=null"),
        ("training: {budget: {minutes: 3}}", "training: {budget: {epochs: 2}}", "training.budget={epochs: 2}"),
        ("training: {budget: {minutes: 3}}", "training: {budget: {epochs: 2}}", "training.budget.epochs=2"),
        ("decoding: {mbr: {metric: bleu}}", "decoding: {mbr: null}", "decoding.mbr=null"),
        ("decoding: {rerank: {run: x}}", "decoding: {rerank: null}", "decoding.rerank=null"),
    ],
)
def test_what_there_may_be_none_of_or_one_of_several_is_replaced_in_a_file_as_by_set(folder, below, above, expected):
    write("below.yaml", below)
    write("above.yaml", f"extends: below.yaml\n{above}")
    written = load_config("above.yaml")
    by_set = load_config("below.yaml", [expected, *(["training.max_steps=60"] if "60" in above else [])])
    assert written.model_copy(update={"name": None}) == by_set.model_copy(update={"name": None})
    assert written != load_config("below.yaml")


def test_set_overrides_files_and_earlier_sets(folder):
    write("a.yaml", "model: {n_layers: {encoder: 2, decoder: 3}}")
    config = load_config(
        "a.yaml",
        [
            "model.d_ff=1",
            "model.d_ff=2",
            "training.learning_rate=1e-4",
            "model={d_model: 8, n_heads: 2}",
            "model.n_layers.decoder=9",
            "training.clip_norm=",
            "evaluation.metrics=[bleu]",
            "name=x-y",
        ],
    )
    assert (config.model.d_ff, config.model.d_model, config.training.learning_rate) == (2, 8, 1e-4)
    assert config.model.n_layers == Depths(encoder=2, decoder=9)
    assert (config.training.clip_norm, config.evaluation.metrics, config.name) == (None, ["bleu"], "x-y")


def test_set_replaces_a_value_whole_and_enters_one_by_its_key(folder):
    write("a.yaml", "data: {train: {source: x, target: y}, valid: v}")
    whole = load_config("a.yaml", ["data.train={pairs: [[a, b]]}"])
    assert whole.data.train == InlinePairs(pairs=[["a", "b"]])
    inside = load_config("a.yaml", ["data.train.target=z"])
    assert inside.data.train == ParallelFiles(source=f"{folder}/x", target=f"{folder}/z")


@pytest.mark.parametrize("name", ["Zürich", normalize("NFD", "Zürich"), "ภาษาไทย", "हिन्दी", "东京-2", "2016"])
def test_set_names_a_test_set_by_letters_of_any_script(folder, name):
    """A file could, `--set` took ASCII alone."""
    assert list(load_config("tiny", [f"data.test.{name}=x"]).data.test) == [normalize("NFC", name)]


def test_set_has_its_own_place_and_caret(folder):
    assert message("tiny", ["model.d_ff=ten", "d_model=3", "seed", "model.d_ff=[1"]) == (
        "2 mistakes in the configuration\n"
        "--set model.d_ff=[1: the text ends too early: a bracket, brace or quote is not closed\n"
        "      | model.d_ff=[1\n"
        "      |              ^\n"
        "--set seed: expected a setting and its value, such as model.d_model=64\n"
        "      | seed\n"
        "      | ^^^^"
    )
    assert message("tiny", ["model.d_ff=ten", "d_model=3"]) == (
        "2 mistakes in the configuration\n"
        "--set d_model=3: unknown setting `d_model`; it belongs to `model`\n"
        "      | d_model=3\n"
        "      | ^^^^^^^\n"
        '--set model.d_ff=ten: `model.d_ff` is the text "ten"; expected a whole number above 0\n'
        "      | model.d_ff=ten\n"
        "      |            ^^^"
    )


@pytest.mark.parametrize("override", ["=1", ".=1", "a..b=1", "", "a b=1", "extends=tiny", "model.d_ff=1\n--- 2"])
def test_a_set_that_is_none_is_refused(folder, override):
    assert "--set" in message("tiny", [override])


def test_a_set_that_is_nested_too_deeply_or_long_is_refused_in_few_words(folder):
    """500 keys were a RecursionError, and 5,000 characters were echoed whole."""
    write("a.yaml", "extends: base.yaml")
    with pytest.raises(ConfigError, match="nested more than 16 levels deep") as deep:
        load_config("a.yaml", ["a." * 500 + "b=1"])
    with pytest.raises(ConfigError, match="expected letters, digits") as long:
        load_config("a.yaml", ["name=" + "x y" * 2000])
    assert len(deep.value.message) < 500 > len(long.value.message)


def test_file_names_are_relative_to_the_file_that_writes_them(folder):
    write(
        "deep/er/a.yaml",
        "data: {train: ../t, valid: {source: v.de, target: /abs/v.en}}\ntokenizer: {model: spm.model}",
    )
    write("b.yaml", "extends: deep/er/a.yaml\ndata: {test: t/x}")
    write("named.yaml", "extends: deep/er/a.yaml\ndata: {test: {2016: t/x, 2017: {source: v.de, target: /abs/v.en}}}")
    config = load_config("b.yaml", ["data.source=xx"])
    here = str(folder)
    assert config.data.train == f"{here}/deep/t"
    assert config.data.valid == ParallelFiles(source=f"{here}/deep/er/v.de", target="/abs/v.en")
    assert config.data.test == f"{here}/t/x"
    assert config.tokenizer.model == f"{here}/deep/er/spm.model"
    named = load_config("named.yaml", ["data.test.2018=mine"]).data.test
    files = ParallelFiles(source=f"{here}/v.de", target="/abs/v.en")
    assert named == {"2016": f"{here}/t/x", "2017": files, "2018": f"{here}/mine"}


def test_a_link_to_a_configuration_that_is_gone_is_told_as_that(folder):
    os.symlink("gone.yaml", "link.yaml")
    with pytest.raises(ConfigError, match=r"^link.yaml is a symbolic link to 'gone.yaml', which does not exist$"):
        load_config("link.yaml")


@pytest.mark.parametrize("setting", ["data.test=%", "data.test={source: a, target: %}", "tokenizer.model=%"])
@pytest.mark.parametrize(
    ("name", "reason"), [("x" * 256, "is too long"), ("/x" * 3000, "is too long"), ("circle/x", "is .*a circle")]
)
def test_a_file_name_that_is_impossible_is_told_in_few_words(folder, setting, name, reason):
    os.symlink("circle", "circle")
    with pytest.raises(ConfigError, match=f"the file's name {reason}") as failure:
        load_config("tiny.yaml", [setting.replace("%", name)])
    assert len(failure.value.message) < 500


def test_a_folder_that_is_not_utf8_is_told(folder, monkeypatch):
    """The configuration keeps whole paths, and could not have been written."""
    os.mkdir("a\udcff")
    monkeypatch.chdir("a\udcff")
    with pytest.raises(ConfigError, match="the file's name has bytes that are not UTF-8"):
        load_config("tiny.yaml", ["data.test=x"])


def test_file_names_in_presets_and_overrides_are_relative_to_the_current_folder(folder):
    config = load_config("multi30k-de-en", ["data.test=mine/test"])
    assert config.data.train == f"{folder}/data/multi30k/train"
    assert config.data.test == f"{folder}/mine/test"


def test_a_tilde_is_the_home_where_there_is_one(folder, monkeypatch):
    """pathlib's expanduser raises RuntimeError for a user who does not exist."""
    monkeypatch.setenv("HOME", "/home/me")
    write("sub/a.yaml", "data: {train: ~/t, valid: ~nobody-here/v}\ntraining: {init_from: ~/run}")
    config = load_config("sub/a.yaml", ["decoding.rerank.run=~/other"])
    assert (config.data.train, config.data.valid) == ("/home/me/t", f"{folder}/sub/~nobody-here/v")
    assert config.training.init_from == "/home/me/run"
    assert config.decoding.rerank is not None
    assert config.decoding.rerank.run == "/home/me/other"
    assert "no configuration ~nobody-here" in message("~nobody-here")


def test_phrasebook_is_a_word_not_a_file_name(folder):
    write("sub/a.yaml", "data: {train: phrasebook}")
    assert load_config("sub/a.yaml").data.train == "phrasebook"


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("my run", "my-run"),
        *((stem, stem) for stem in ("übung", "日本", "አማርኛ", "हिन्दी", "a.b_c-1")),
        (normalize("NFD", "yorùbá"), normalize("NFC", "yorùbá")),
        ("“日本”、x", "日本-x"),
        ("…", "run"),
        ("a\ufeffb；（c）", "a-b-c"),
        ("x" * 150, "x" * 100),
        ("本" * 80, "本" * 66),  # 200 bytes: a file's name has 255 at most
    ],
)
def test_the_name_defaults_to_the_file(folder, stem, name):
    assert load_config(write(f"{stem}.yaml", "seed: 1")).name == name


def test_a_name_is_not_inherited(folder):
    """Two configurations would share a run directory."""
    write("a.yaml", "name: first")
    write("b.yaml", "extends: a.yaml")
    assert (load_config("a.yaml").name, load_config("b.yaml").name) == ("first", "b")


@pytest.mark.parametrize("text", ["{}", "model:", "model: {}", "model:\ndata: {phrasebook: {}}", "# none\n{}"])
def test_a_file_without_a_setting_is_refused_like_an_empty_one(folder, text):
    """The defaults used to be counted for it, though a file of comments was refused."""
    write("a.yaml", text)
    assert re.match(r"a\.yaml:\d:1: there are no settings in this file", message("a.yaml"))


@pytest.mark.parametrize("name", ["x" * 5000, "x" * 5000 + ".yaml", "y/" * 5000])
def test_a_name_too_long_for_a_file_names_nothing_in_few_words(folder, name):
    """It used to be a failure of the machine."""
    assert message(name).startswith(f"no configuration {name[:10]}")
    assert len(message(name)) < 300 + len(", ".join(preset_names()))
    write("a.yaml", f"extends: {name}")
    assert "names neither a file beside this one nor a preset" in message("a.yaml")


def test_a_pipe_that_nobody_writes_into_is_empty_and_not_waited_for(folder):
    os.mkfifo("a.yaml")
    assert message("a.yaml").startswith("a.yaml:1:1: the file is empty")


def test_a_pipe_is_read_to_its_end(folder):
    """As in `-c <(sed ...)`: its writer is there, but has not written yet."""
    reader, writer = os.pipe()
    with ThreadPoolExecutor() as threads, open(reader, "rb"), open(writer, "wb") as file:
        loaded = threads.submit(load_config, f"/dev/fd/{reader}")
        file.write(b"extends: base.yaml\nseed: 7\n")
        file.close()
        assert loaded.result().seed == 7


def test_what_cannot_be_read_is_said(folder):
    write("a.yaml", "\t")
    os.mkdir("d")
    assert message("a.yaml").startswith("a.yaml:1:1: the file is empty")
    assert message("d") == "d is a directory, not a configuration"
    os.mkdir("run")
    write("run/config.yaml", "seed: 5")
    with pytest.raises(ConfigError) as refused:
        load_config("run")
    assert refused.value.hint == "to go on with that run: -c run/config.yaml --run-dir run"
    write("list.yaml", "- 1")
    assert "list.yaml:1:1: a configuration is made of `key: value` lines" in message("list.yaml")
    Path("big.yaml").touch()
    os.truncate("big.yaml", 100_000_000)
    assert "too large for a configuration" in message("big.yaml")


# --- properties ---------------------------------------------------------------------------------------------------

WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


def values(wanted: Accepted, *, key: str = "") -> st.SearchStrategy:
    """Whatever a setting accepts, made from its declaration."""
    if wanted.is_union:
        return st.one_of([values(member, key=key) for member in wanted.members])
    if wanted.choices:
        return st.sampled_from(wanted.choices)
    if wanted.section:
        entries = {}
        files = wanted.section in (ParallelFiles, SideModels)
        for name, field in wanted.section.model_fields.items():
            inner = values(wanted.inside(name), key="file" if files or name == "text" else name)
            nullable = type(None) in typing.get_args(field.annotation) and name != "name"
            entries[name] = st.none() | inner if nullable else inner
        required = {name for name, field in wanted.section.model_fields.items() if field.is_required()}
        return st.fixed_dictionaries(
            {name: entries[name] for name in required},
            optional={name: entry for name, entry in entries.items() if name not in required},
        )
    if wanted.is_by_name:
        return st.dictionaries(values(accepted(str), key="name"), values(wanted.inside("")), max_size=2)
    bounds = {limit.__class__.__name__: limit for limit in wanted.limits}
    if typing.get_origin(wanted.annotation) is list:
        inner = values(wanted.inside(0), key="text")
        return st.lists(inner, min_size=bounds["MinLen"].min_length if "MinLen" in bounds else 0, max_size=2)
    if wanted.annotation is bool:
        return st.booleans()
    if wanted.annotation is int:
        lowest = bounds["Gt"].gt + 1 if "Gt" in bounds else bounds["Ge"].ge
        return st.integers(lowest, bounds["Le"].le)
    if wanted.annotation is float:
        limits = {"min_value": -1e300, "max_value": 1e300}
        for limit in wanted.limits:
            for name, keyword in (("gt", "min"), ("ge", "min"), ("lt", "max"), ("le", "max")):
                if hasattr(limit, name):
                    limits[f"{keyword}_value"] = getattr(limit, name)
                    limits[f"exclude_{keyword}"] = name in ("gt", "lt")
        return st.floats(**limits, allow_nan=False, allow_infinity=False)
    if any(getattr(limit, "pattern", None) == PERCENT for limit in wanted.limits):
        return st.sampled_from(["0%", "10%", "99.5%"])
    if key == "name":
        return st.from_regex(r"\A[A-Za-z0-9本á][A-Za-z0-9本á._-]{0,20}\Z")
    if key == "text":
        return WORDS.filter(bool) if "MinLen" in bounds else WORDS
    if key in ("source", "target"):
        return st.sampled_from(["de", "en", "no", "1e4", "null", "13"]) | WORDS
    absolute = WORDS.map(lambda word: os.path.abspath(f"/{word}"))
    return absolute if key in ("file", "model") else absolute | st.just("phrasebook")


def without_contradictions(data: dict) -> RunConfig:
    """The same settings, but for those that do not go together."""
    while True:
        config = RunConfig.model_validate(data)
        conflict = next(contradictions(config), None)
        if conflict is None:
            return config
        for section, *rest in conflict.paths:
            if rest:
                data.get(section, {}).pop(rest[0], None)
            else:
                data.pop(section)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=values(accepted(RunConfig)), path=st.sampled_from(["a.yaml", "sub/b.yaml"]))
def test_a_dumped_configuration_loads_as_the_same(folder, data, path):
    config = without_contradictions(data)
    write(path, dump_config(config))
    loaded = load_config(path)
    assert loaded == (config if config.name else config.model_copy(update={"name": Path(path).stem}))
    assert dump_config(loaded) == Path(path).read_text(encoding="utf-8") or config.name is None


SEEDS = [path.read_bytes() for path in sorted(PRESETS.glob("*.yaml"))]
SNIPPETS = [
    b"\n",
    b": ",
    b"{",
    b"}",
    b"[",
    b"]",
    b"- ",
    b"'",
    b'"',
    b"&a ",
    b"*a",
    b"!!x ",
    b"\t",
    b"  ",
    b"#",
    b"\xff",
]


@given(data=spoiled(SEEDS, SNIPPETS) | st.binary(max_size=60))
@tries(250)
def test_any_bytes_load_or_are_a_configuration_error(folder, data):
    Path("fuzz.yaml").write_bytes(data)
    with contextlib.suppress(ConfigError):
        load_config("fuzz.yaml")


@pytest.fixture
def _little_memory():
    with little_memory():
        yield


@given(data=spoiled_json(load_config("tiny").model_dump(mode="json")).map(as_json))
@tries(100)
@pytest.mark.usefixtures("_little_memory")
def test_any_values_load_or_are_a_configuration_error(folder, data):
    Path("fuzz.yaml").write_bytes(data)
    with contextlib.suppress(ConfigError):
        load_config("fuzz.yaml")


@tries(100)
@given(st.text(max_size=30) | st.tuples(st.sampled_from(["data.train", "model", "seed", "x"]), st.text()).map("=".join))
def test_any_override_loads_or_is_a_configuration_error(override):
    with contextlib.suppress(ConfigError):
        load_config("tiny", [override])


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=3))
def test_a_name_is_the_same_set_for_a_run_and_a_test_set(name):
    """A run's is checked by pydantic's expression, too; a file's name always comes to one."""
    is_pydantics = contextlib.nullcontext() if is_name(composed(name)) else pytest.raises(ValidationError)
    with is_pydantics:
        assert RunConfig(name=name).name == composed(name)
    assert is_name(as_name(f"{name}\udcff"))


@pytest.mark.parametrize("letters", ["\u0308", "\u0308a", "\u093e\u0915", "\u20ddx"])
def test_no_name_begins_with_a_mark_that_is_written_on_a_letter(folder, letters):
    Path("x.yaml").write_text(f"extends: tiny.yaml\nname: '{letters}'\ndata: {{test: {{'{letters}': a}}}}\n")
    with pytest.raises(ConfigError) as caught:
        load_config("x.yaml")
    assert str(caught.value).count("a letter or digit first") == 2
    assert is_name(as_name(letters))


@pytest.mark.parametrize("stem", ["latest", "Latest", "_LATEST-"])
def test_a_run_that_is_named_after_its_file_never_takes_the_place_of_the_last_one(folder, stem):
    """It was trained, and taken for damaged from then on: no run can be named so."""
    Path(f"{stem}.yaml").write_text("extends: tiny.yaml\n")
    config = load_config(f"{stem}.yaml")
    assert config.name == f"{stem.strip('_-')}-run"
    Path("config.yaml").write_text(dump_config(config))
    assert load_config("config.yaml") == config


def test_a_name_is_the_same_however_its_letters_were_typed(folder):
    """It was another directory, and another test set."""
    text = "extends: tiny.yaml\nname: {}\ndata: {{test: {{{}: a}}}}\n"
    both = []
    for form in ("NFC", "NFD"):
        name = normalize(form, "Z\u00fcrich")
        Path("x.yaml").write_text(text.format(name, name))
        config = load_config("x.yaml")
        both.append((config.name, list(config.data.test)))
    assert both[0] == both[1] == ("Z\u00fcrich", ["Z\u00fcrich"])
    Path("x.yaml").write_text("extends: tiny.yaml\ndata: {test: {Z\u00fcrich: a, Zu\u0308rich: a}}\n")
    with pytest.raises(ConfigError, match="is given twice"):
        load_config("x.yaml")


@pytest.mark.parametrize(
    ("written", "override", "expected"),
    [
        ("false", "norm=false", {"attention": False, "feed_forward": False, "norm": False}),
        ("false", "attention=true", {"attention": True, "feed_forward": False, "norm": True}),
        ("true", "attention=false", {"attention": False, "feed_forward": True, "norm": True}),
        ("{attention: false}", "norm=false", {"attention": False, "feed_forward": True, "norm": False}),
    ],
)
def test_one_bias_is_changed_and_the_others_are_left_as_they_were(tmp_path, written, override, expected):
    """`bias: false` and an override of the norms' made the others true, a million parameters of them."""
    path = tmp_path / "x.yaml"
    path.write_text(f"model: {{bias: {written}}}\n", encoding="utf-8")
    assert load_config(path, [f"model.bias.{override}"]).model.biases.model_dump() == expected
