"""The presets: what each one's model holds, and which of them can be trained."""

from __future__ import annotations

import pytest

from transformer_cli.accounting.parameters import count
from transformer_cli.config.run import vocab_sizes
from transformer_cli.config.source import find_config, load_config, preset_names
from transformer_cli.errors import ConfigError
from transformer_cli.training.reproduction import SUFFIX, read

ONLY_COUNTED = {
    # Published totals, counted from the published weights; GPT-3's is computed, for only 175.0B was published.
    "gpt3": 174_604_259_328,
    "gpt2": 124_439_808,
    "bert-base": 109_482_240,
    "t5-small": 60_506_624,
    "bart-base": 139_420_416,
    "llama-3-8b": 8_030_261_248,
    "whisper-base": 72_593_920,
    "opus-mt": 74_410_496,
    "time-series": 10_540_039,
}
TRAINED = {"base", "big", "multi30k-de-en", "tiny", "transformer-base", "transformer-big", "tutorial"} | {
    "animal",
    "small-data",
    "multi30k-both",
    "multi30k-tok-both",
    "multi30k-tok-en-de",
    "multi30k-de-en-best",
    "multi30k-en-de",
    "iwslt14-de-en",
    "wmt14-en-de",
}


def total(name: str, *overrides: str) -> int:
    config = load_config(name, overrides)
    source, target = vocab_sizes(config)
    return sum(count(config.counted, source_vocab=source, target_vocab=target).by_component().values())


@pytest.mark.parametrize(("name", "parameters"), ONLY_COUNTED.items())
def test_a_preset_to_count_has_its_models_parameters_and_is_not_trained(name: str, parameters: int) -> None:
    assert total(name) == parameters
    with pytest.raises(ConfigError, match=rf"{name}\.yaml:\d+:\d+: "):
        load_config(name, to_train=True)


def test_every_other_preset_can_be_trained() -> None:
    assert {*ONLY_COUNTED, *TRAINED} == set(preset_names())
    for name in TRAINED:
        load_config(name, to_train=True)


@pytest.mark.parametrize(("name", "layers"), [("transformer-base", 44_101_632), ("transformer-big", 176_283_648)])
def test_the_papers_models_have_its_matrices_and_37000_pieces(name: str, layers: int) -> None:
    """Per layer 4 or 8 matrices of attention, two of feed-forward with their biases, two or three norms."""
    width = load_config(name).model.d_model
    encoder = 4 * width**2 + 8 * width**2 + 5 * width + 2 * 2 * width
    decoder = 8 * width**2 + 8 * width**2 + 5 * width + 3 * 2 * width
    assert 6 * (encoder + decoder) == layers
    assert total(name) == layers + 37_000 * width


def test_the_tutorial_with_its_own_vocabularies_counts_as_it_did() -> None:
    assert total("tutorial", "accounting.vocab={source: 5, target: 7}") == 44_154_368


def test_results_beside_a_preset_are_of_the_settings_that_it_has_now() -> None:
    folder = find_config("tiny.yaml").parent
    there = sorted(folder.glob(f"*{SUFFIX}"))
    assert "multi30k-de-en.results.json" in [path.name for path in there]
    for path in there:
        results = read(path)
        assert results.changed(load_config(path.name.removesuffix(SUFFIX))) == []
        assert results.claims()
