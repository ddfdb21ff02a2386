"""A model laid out for translating, against the model itself reading everything at once."""

from __future__ import annotations

import copy
import itertools
import platform
import types
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_options import EXACT, LENGTHS, SOURCE, TARGET, VOCAB, configs, logits, stirred, tiny
from torch import Tensor

from transformer_cli import processor
from transformer_cli.config.model import POSITIONS, ModelConfig
from transformer_cli.model import compiled, compiled_products, matmul, products
from transformer_cli.model.build import build_model
from transformer_cli.model.positions import PositionEncoding
from transformer_cli.model.prepared import Prepared
from transformer_cli.model.products import Packed, Transposed
from transformer_cli.model.transformer import Transformer

OF_MANY = torch.bfloat16 if products.can_pack(torch.ones(2, dtype=torch.bfloat16)) else torch.float32
"""What many rows of a model in bf16 are computed in, by this processor."""


def stepped(model: Transformer) -> Tensor:
    prepared = Prepared(model)
    state = prepared.start(SOURCE, LENGTHS)
    return torch.stack([prepared.step(TARGET[:, t], state) for t in range(TARGET.size(1))], dim=1)


def in_fp32(model: Transformer) -> tuple[Transformer, Tensor, dict[str, float]]:
    """Of a model in fp64: the same in fp32, its exact logits, how close ones in fp32 come to them.

    A head of two numbers, normed, can be all but nothing before it is: then rounding any weight moves the logits
    by more than fp32's last places, and so does the order in which numbers are added up.
    """
    model = copy.deepcopy(model).float()
    exact, moved = logits(copy.deepcopy(model).double()).detach(), 0.0
    for _ in range(2):
        rounded = copy.deepcopy(model).double()
        for parameter in rounded.parameters():
            parameter.data.mul_(1 + 2**-24 * torch.randn_like(parameter))
        moved = max(moved, float((logits(rounded).detach() - exact).abs().max()))
    return model, exact, {"rtol": 1e-5, "atol": max(1e-5, 16 * moved)}


@settings(max_examples=50)
@given(config=configs())
def test_whatever_is_chosen_a_prepared_model_steps_as_the_model_reads(config: ModelConfig) -> None:
    torch.manual_seed(0)
    model = stirred(build_model(config, source_vocab=VOCAB, target_vocab=VOCAB))
    torch.testing.assert_close(stepped(model), logits(model), **EXACT)
    model, exact, close = in_fp32(model)
    for packs in (False, True):
        with patch.object(products, "gains_in_fp32", lambda packs=packs: packs):
            torch.testing.assert_close(stepped(model).double(), exact, **close)


@pytest.mark.parametrize("packs", [False, True])
@settings(max_examples=30)
@given(config=configs(), width=st.integers(1, 12), trimmed=st.booleans())
def test_a_sentence_alone_is_stepped_as_among_others(
    packs: bool, config: ModelConfig, width: int, trimmed: bool
) -> None:
    """By any number of beams, with padding behind its source or without."""
    torch.manual_seed(0)
    model = stirred(build_model(config, source_vocab=VOCAB, target_vocab=VOCAB))
    model, exact, close = in_fp32(model) if packs else (model, logits(model), EXACT)
    with patch.object(products, "gains_in_fp32", lambda: packs):
        prepared = Prepared(model)
        for row, wanted_TV in enumerate(exact):
            one = slice(row, row + 1)
            state = prepared.start(SOURCE[one, : int(LENGTHS[row])] if trimmed else SOURCE[one], LENGTHS[one])
            for t, wanted_V in enumerate(wanted_TV):
                found_WV = prepared.step(TARGET[row, t].repeat(width if t else 1), state)
                torch.testing.assert_close(found_WV.double(), wanted_V.expand_as(found_WV), **close)
                state.reorder(torch.zeros(1, width, dtype=torch.int64))


@settings(max_examples=30)
@given(config=configs())
def test_rows_behind_those_of_sentences_change_nothing(config: ModelConfig) -> None:
    torch.manual_seed(0)
    model = stirred(build_model(config, source_vocab=VOCAB, target_vocab=VOCAB))
    with patch.object(Transposed, "rows", staticmethod(Packed.rows)):
        torch.testing.assert_close(stepped(model), logits(model), **EXACT)


@pytest.mark.parametrize(
    ("capability", "capabilities", "gains"),
    [
        ("AVX512", {"cpu_name": "AMD EPYC"}, True),
        ("AVX512", {}, True),
        ("AVX512", {"cpu_name": "Intel Xeon"}, False),
        ("AVX2", {"cpu_name": "AMD EPYC"}, False),
    ],
)
def test_products_in_fp32_leave_mkl_where_it_leaves_half_of_a_processor_out_and_few_rows_are_fewer_there(
    monkeypatch, capability, capabilities, gains
):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.ops, "mkldnn", types.SimpleNamespace(_linear_pointwise=1, _reorder_linear_weight=1))
    for module in (processor, matmul):
        monkeypatch.setattr(module, "capabilities", lambda: capabilities)
    assert matmul.by_onednn.__wrapped__(torch.float32) is (gains and capabilities != {})
    assert (products.can_pack(torch.ones(2, 2)), products.few_rows()) == (gains, 1 if gains else 8)


@pytest.mark.parametrize(
    ("capabilities", "gains"),
    [
        ({}, False),
        ({"avx512_bf16": True}, False),
        ({"avx512_bf16": True, "amx_bf16": True, "cpu_name": "AMD EPYC"}, False),
        ({"avx512_bf16": True, "amx_bf16": False, "cpu_name": "Intel Xeon"}, False),
        ({"avx512_bf16": False, "amx_bf16": False, "cpu_name": "AMD EPYC"}, False),
        ({"avx512_bf16": True, "amx_bf16": False, "cpu_name": "AMD EPYC"}, True),
    ],
)
def test_products_in_bf16_are_ours_by_tiles_and_where_the_processor_has_none(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, object], gains: bool
) -> None:
    monkeypatch.setattr(processor, "capabilities", lambda: capabilities)
    assert processor.gains_without_tiles() is gains
    for pairs, tiles in itertools.product((True, False), repeat=2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiled, "multiplies_pairs", lambda pairs=pairs: pairs)
            code = types.SimpleNamespace(multiplies_tiles=lambda tiles=tiles: tiles)
            patch.setattr(compiled, "loaded", lambda code=code: code)
            is_soon = compiled.is_soon_in_bf16.__wrapped__()
            assert is_soon is (tiles or (gains and pairs))
            patch.setattr(compiled_products, "is_soon_in_bf16", lambda is_soon=is_soon: is_soon)
            assert compiled_products.by_pairs.__wrapped__(torch.bfloat16) is is_soon
            assert not compiled_products.by_pairs.__wrapped__(torch.float32)


def test_older_versions_of_pytorch_do_not_tell_what_a_processor_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"cpu_name": "x"}, raising=False)
    assert processor.capabilities.__wrapped__() == {"cpu_name": "x"}
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    for machine, told in {"x86_64": {"avx512_bf16": False}, "AMD64": {"avx512_bf16": False}, "aarch64": {}}.items():
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        assert processor.capabilities.__wrapped__() == told


@pytest.mark.parametrize(
    ("available", "capabilities", "has"),
    [
        (True, {"avx512_bf16": True}, True),
        (True, {"avx512_bf16": False}, False),
        (True, {}, True),
        (False, {"avx512_bf16": True}, False),
    ],
)
def test_products_of_bf16_are_had_where_nobody_imitates_them(monkeypatch, available, capabilities, has):
    """Where PyTorch has no oneDNN, its operations are not even there to be asked."""
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: available)
    asked = types.SimpleNamespace(**({"_is_mkldnn_bf16_supported": lambda: True} if available else {}))
    monkeypatch.setattr(torch.ops, "mkldnn", asked)
    monkeypatch.setattr(processor, "capabilities", lambda: capabilities)
    assert processor.has_bf16_instructions() is (None if has and not capabilities else has)
    assert products.has_bf16_products(torch.ones(2, dtype=torch.bfloat16)) is has
    assert not products.has_bf16_products(torch.ones(2))


@given(n=st.integers(1, 20_000))
def test_products_that_compile_get_few_numbers_of_rows_and_little_in_vain(n: int) -> None:
    assert n <= Packed.rows(n) < n + max(8, n / 8)
    power = 1 << n.bit_length()
    assert len({Packed.rows(rows) for rows in range(power // 2 + 1, power + 1)}) <= 8


@pytest.mark.parametrize(("width", "few"), [(1, 14), (5, 26)])
def test_batches_of_any_size_use_few_shapes_of_products(width: int, few: int) -> None:
    prepared = Prepared(tiny().float().compute_in(torch.bfloat16, training=False))
    form, prepared.few_rows = prepared.for_many, 1
    shapes = set()
    for n in range(prepared.few_rows + 1, 65):
        state = prepared.start(SOURCE[:1].repeat(n, 1), LENGTHS[:1].repeat(n))
        state.reorder(torch.zeros(n, width, dtype=torch.int64))
        with patch.object(form, "project", wraps=form.project) as project:
            project.rows = Packed.rows
            assert prepared.step(torch.full((n * width,), 5), state).shape == (n * width, VOCAB)
        shapes |= {call.args[0].size(0) for call in project.call_args_list}
    assert len(shapes) <= few


@settings(max_examples=40)
@given(st.data())
def test_beams_that_branch_and_die_see_exactly_their_own_past(data: st.DataObject) -> None:
    """Random parents, widths, ends and departures; a beam's logits are those of its history from scratch."""
    model = tiny(n_kv_heads=2, positions=data.draw(st.sampled_from(sorted(POSITIONS.own))))
    exact = EXACT
    if single := data.draw(st.booleans()):  # by oneDNN, with rows of padding, wherever that is faster
        model, exact = model.float(), {"rtol": 1e-4, "atol": 1e-4}
    with patch.object(products, "gains_in_fp32", lambda: single):
        (prepared := Prepared(model)).lay_out()
    source, real = SOURCE, LENGTHS
    state, histories = prepared.start(source, real), torch.zeros(3, 1, 0, dtype=torch.int64)
    parents = torch.zeros(3, 1, dtype=torch.int64)
    for step in range(data.draw(st.integers(2, 6))):
        if step:
            width = data.draw(st.sampled_from([1, 2, 3, 4, 40]))
            living = [(row >= 0).nonzero().flatten().tolist() for row in parents]
            parents = torch.tensor(
                [[data.draw(st.sampled_from([-1, *places])) for _ in range(width)] for places in living]
            )
            state.reorder(parents)
        tokens = torch.randint(4, VOCAB, parents.shape, generator=torch.Generator().manual_seed(step))
        moved = histories.gather(1, parents.clamp(min=0)[:, :, None].expand(-1, -1, histories.size(2)))
        histories = torch.cat((moved, tokens[:, :, None]), dim=2)
        if not (parents >= 0).any():
            break
        found = prepared.step(tokens[parents >= 0], state)
        assert len(found) == (parents >= 0).sum()
        sentences = (parents >= 0).nonzero()[:, 0]
        expected = model.project(model(source[sentences], real[sentences], histories[parents >= 0])[:, -1])
        torch.testing.assert_close(found, expected, **exact)
        if histories.size(0) > 1 and data.draw(st.booleans()):
            stay = torch.tensor(sorted(data.draw(st.sets(st.integers(0, histories.size(0) - 1), min_size=1))))
            state.keep(stay)
            source, real, histories, parents = source[stay], real[stay], histories[stay], parents[stay]
            if not (parents >= 0).any():
                break


class OfKeys(PositionEncoding):
    """As a recipe may have it: the same for all queries."""

    def relate(self, queries_T: Tensor, keys_S: Tensor) -> Tensor:
        return torch.sin(torch.arange(4.0)[:, None, None] + keys_S)


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_what_a_recipe_adds_to_scores_need_not_know_of_queries(n_kv_heads: int) -> None:
    model = tiny(n_heads=4, n_kv_heads=n_kv_heads, positions="none")
    before = logits(model)
    for stack in (model.encoder, model.decoder):
        stack.positions.__class__ = OfKeys
    assert not torch.allclose(logits(model), before)
    torch.testing.assert_close(stepped(model), logits(model), **EXACT)


def test_keys_that_heads_share_are_kept_once() -> None:
    prepared = Prepared(tiny(n_heads=8, n_kv_heads=2, n_layers=1))
    state = prepared.start(SOURCE, LENGTHS)
    prepared.step(TARGET[:, 0], state)
    kept = (*state.past_PLBGNK, state.memory_keys_LBGKS, state.memory_values_LBGSK)
    assert {table.size(2) for table in kept} == {2}


@pytest.mark.parametrize("gains", [False, True])
@pytest.mark.parametrize("n_sentences", [1, 9])
def test_in_bf16_a_prepared_model_stays_close(n_sentences: int, gains: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever few rows are by: a source of eight pieces is few of them for one, and many for the other."""
    monkeypatch.setattr(products, "gains_in_fp32", lambda: gains)
    model = tiny(d_model=32).float()
    source, lengths, target = (x.repeat(3, *[1] * (x.dim() - 1))[:n_sentences] for x in (SOURCE, LENGTHS, TARGET))
    wanted = model.project(model(source, lengths, target))
    prepared = Prepared(model.compute_in(torch.bfloat16, training=False))
    state = prepared.start(source, lengths)
    found = torch.stack([prepared.step(target[:, t], state) for t in range(target.size(1))], dim=1)
    assert found.dtype == (torch.float32 if n_sentences == 1 else OF_MANY)
    assert (found - wanted).abs().mean() / wanted.std() < 0.02


@pytest.mark.skipif(not products.has_bf16_products(torch.ones(2, dtype=torch.bfloat16)), reason="none in bf16")
@pytest.mark.parametrize("options", [{"tied": "all"}, {"tied": "none", "output_bias": True}])
@pytest.mark.parametrize("only", [None, [0, 2, 3, 11, 7]])
def test_in_bf16_logits_are_had_as_they_were_before_they_were_rounded(options: dict, only: list[int] | None) -> None:
    """By what the output reads, which lost less on the way; also of a shortlist, in its order."""
    config = ModelConfig(d_model=64, n_heads=4, d_ff=128, n_layers=2, **options)
    model = stirred(build_model(config, source_vocab=VOCAB, target_vocab=VOCAB)).float()
    source, lengths, target = (x.repeat(3, *[1] * (x.dim() - 1)) for x in (SOURCE, LENGTHS, TARGET))
    wanted_BTV = model.project(model(source, lengths, target))
    prepared = Prepared(model.compute_in(torch.bfloat16, training=False))
    only_U = torch.arange(VOCAB) if only is None else torch.tensor(only)
    state = prepared.start(source, lengths, None if only is None else only_U)
    errors = []
    for t, tokens_B in enumerate(target.T):
        rounded_RU = prepared.step(tokens_B, state)
        exact_RU = state.exact(torch.arange(len(only_U)).expand(len(tokens_B), -1))
        assert (rounded_RU.dtype, exact_RU.dtype) == (torch.bfloat16, torch.float32)
        wanted_RU = wanted_BTV[:, t, only_U]
        errors.append([(found - wanted_RU).abs().mean().item() for found in (rounded_RU, exact_RU)])
    rounded, exact = np.mean(errors, axis=0)
    assert 0 < exact < 0.95 * rounded < 0.02


@settings(max_examples=40)
@given(
    config=configs(),
    gains=st.booleans(),
    dtype=st.sampled_from([torch.bfloat16, torch.float32]),
    n_sentences=st.sampled_from([1, 2, 9]),
    n_pieces=st.integers(1, 7),
    width=st.integers(1, 3),
)
def test_whatever_is_chosen_and_few_in_either_precision_and_by_any_processor_stay_close(
    config: ModelConfig, gains: bool, dtype: torch.dtype, n_sentences: int, n_pieces: int, width: int
) -> None:
    """Which rows are few, and what they are computed in, is decided by the processor: in CI there is but one."""
    model = stirred(build_model(config, source_vocab=VOCAB, target_vocab=VOCAB)).float()
    source, lengths, target = (x.repeat(3, *[1] * (x.dim() - 1))[:n_sentences] for x in (SOURCE, LENGTHS, TARGET))
    source, lengths = source[:, :n_pieces], lengths.clamp(max=n_pieces)
    wanted_BTV = model.project(model(source, lengths, target))
    with patch.object(products, "gains_in_fp32", lambda: gains):
        prepared = Prepared(model.compute_in(dtype, training=False))
        state = prepared.start(source, lengths)
        for t, tokens_B in enumerate(target.T):
            found_RV = prepared.step(tokens_B.repeat_interleave(width if t else 1), state)
            found_BWV = found_RV.view(n_sentences, -1, VOCAB)
            error = (found_BWV - wanted_BTV[:, None, t]).abs().mean() / wanted_BTV.std()
            assert error < (0.1 if dtype == torch.bfloat16 else 1e-4)
            state.reorder(torch.zeros(n_sentences, width, dtype=torch.int64))


@pytest.mark.parametrize("gains", [True, False])
@pytest.mark.parametrize("width", [1, 2, 5, 8, 9, 16])
def test_in_bf16_a_sentence_alone_is_stepped_by_any_number_of_beams(
    width: int, gains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few rows or many, and as many as products want or more."""
    monkeypatch.setattr(products, "gains_in_fp32", lambda: gains)
    model = tiny(d_model=32, positions="sinusoidal").float()
    source = torch.randint(4, VOCAB, (1, 12), generator=torch.Generator().manual_seed(3))
    target, lengths = TARGET[:1], torch.tensor([12])
    [wanted_TV] = model.project(model(source, lengths, target))
    prepared = Prepared(model.compute_in(torch.bfloat16, training=False))
    state = prepared.start(source, lengths)
    assert state.folded
    for t, wanted_V in enumerate(wanted_TV):
        found_WV = prepared.step(target[0, t].repeat(width if t else 1), state)
        assert (found_WV - wanted_V).abs().mean() / wanted_TV.std() < 0.02
        state.reorder(torch.zeros(1, width, dtype=torch.int64))


@pytest.mark.parametrize(("gains", "few"), [(True, 1), (False, 8)])
def test_in_bf16_few_sentences_that_are_left_go_on_in_fp32(
    gains: bool, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "gains_in_fp32", lambda: gains)
    model = tiny(d_model=32).float()
    prepared = Prepared(copy.deepcopy(model).compute_in(torch.bfloat16, training=False))
    state = prepared.start(SOURCE.repeat(5, 1), LENGTHS.repeat(5))
    begun = prepared.step(TARGET[:, 0].repeat(5), state)
    state.keep(torch.arange(few))
    found = prepared.step(TARGET[:, 1].repeat(5)[:few], state)
    assert (begun.dtype, found.dtype) == (OF_MANY, torch.float32)
    wanted = logits(model)[:, 1].repeat(5, 1)[:few]
    assert (found - wanted).abs().mean() / wanted.std() < 0.02


def test_a_weight_that_changes_is_seen_and_one_that_does_not_is_laid_out_once() -> None:
    model = tiny()
    prepared = Prepared(model)
    form = prepared.for_now().for_many
    assert prepared.for_now().for_many is form
    with torch.no_grad():
        model.decoder.layers[0].feed_forward.down.weight.mul_(2)
    state = prepared.for_now().start(SOURCE, LENGTHS)
    torch.testing.assert_close(prepared.step(TARGET[:, 0], state), logits(model)[:, 0], **EXACT)
