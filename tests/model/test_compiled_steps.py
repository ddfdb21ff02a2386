"""Steps of a search in C++ against the model itself, and parts of them against PyTorch in fp64."""

from __future__ import annotations

import copy
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from compiling import needs_compiler
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_options import LENGTHS, SOURCE, TARGET, VOCAB, configs, stirred
from torch import Tensor

from transformer_cli.config.model import ModelConfig
from transformer_cli.decoding import candidates
from transformer_cli.decoding.beam import beam_search
from transformer_cli.decoding.hypothesis import Hypothesis, LengthPenalty
from transformer_cli.decoding.options import Symbols
from transformer_cli.model import compiled_steps, forms, products
from transformer_cli.model.build import build_model
from transformer_cli.model.compiled import likeliest, panel_width
from transformer_cli.model.compiled_steps import ANY, CompiledForm, most_rows, suits
from transformer_cli.model.prepared import Prepared
from transformer_cli.model.products import Panels
from transformer_cli.model.steps import Exact
from transformer_cli.model.transformer import Transformer

pytestmark = needs_compiler


@st.composite
def suiting(draw: st.DrawFn) -> ModelConfig:
    """Any model whose steps are compiled, small."""
    shared, sharing = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    norm_position = draw(st.sampled_from(["pre", "post"]))
    return ModelConfig.model_validate(
        {
            "d_model": draw(st.sampled_from([16, 48])),
            "n_heads": shared * sharing,
            "n_kv_heads": shared,
            "d_head": draw(st.sampled_from([16, 32])),
            "d_ff": draw(st.integers(1, 70)),
            "n_layers": {"encoder": draw(st.integers(1, 2)), "decoder": draw(st.integers(1, 3))},
            "norm": draw(st.sampled_from(["layer-norm", "rms-norm"])),
            "norm_position": norm_position,
            "final_norm": draw(st.sampled_from([None, False, True] if norm_position == "pre" else [None, False])),
            "activation": draw(st.sampled_from(["relu", "gelu", "silu", "swiglu", "geglu"])),
            "positions": draw(st.sampled_from(["sinusoidal", "sinusoidal-table", "learned", "none", "rotary"])),
            "first_position": draw(st.sampled_from([0, 2])),
            "max_positions": 42,
            "bias": draw(st.booleans() | st.fixed_dictionaries({"norm": st.booleans(), "attention": st.booleans()})),
            "output_bias": draw(st.booleans()),
            "tied": draw(st.sampled_from(["all", "decoder", "none"])),
            "embedding_scale": draw(st.booleans()),
            "qk_norm": draw(st.booleans()),
        }
    )


def built(config: ModelConfig) -> Transformer:
    """In fp32, with numbers that fp64 has, too."""
    torch.manual_seed(0)
    return stirred(build_model(config, source_vocab=VOCAB, target_vocab=VOCAB)).float()


def compiled(model: Transformer, few: int | None = None) -> Prepared:
    """few: rows up to which a step is one call, whatever is best here."""
    prepared = Prepared(model, compiled=True)
    assert prepared.is_compiled
    if few is not None:
        prepared.few_rows = few
    return prepared


@settings(max_examples=60)
@given(st.data())
def test_beams_that_branch_and_die_see_exactly_their_own_past(data: st.DataObject) -> None:
    """Random parents, widths, ends and departures, of few rows and of many; what was never written to is no number."""
    draw = data.draw
    model = built(draw(suiting()))
    truth = copy.deepcopy(model).double()
    in_bf16 = draw(st.booleans())
    if in_bf16:
        model.compute_in(torch.bfloat16, training=False)
    gains, few = draw(st.booleans()), draw(st.sampled_from([0, 5, ANY]))
    with patch.object(products, "gains_in_fp32", lambda: gains):
        (prepared := compiled(model, few)).lay_out()
    n, length = draw(st.sampled_from([1, 3, 9])), draw(st.integers(1, 40))
    source = torch.randint(4, VOCAB, (n, length), generator=torch.Generator().manual_seed(length))
    real = torch.tensor([length, *(draw(st.integers(1, length)) for _ in range(n - 1))])
    only = draw(st.sampled_from([None, torch.tensor([0, 2, 3, 11, 7])]))
    state, histories = prepared.start(source, real, only), torch.zeros(n, 1, 0, dtype=torch.int64)
    parents = torch.zeros(n, 1, dtype=torch.int64)
    for step in range(draw(st.integers(2, 6))):
        if step:
            width = draw(st.sampled_from([1, 2, 3, 30]))
            living = [(row >= 0).nonzero().flatten().tolist() for row in parents]
            parents = torch.tensor([[draw(st.sampled_from([-1, *there])) for _ in range(width)] for there in living])
            state.reorder(parents)
        tokens = torch.randint(4, VOCAB, parents.shape, generator=torch.Generator().manual_seed(step))
        moved = histories.gather(1, parents.clamp(min=0)[:, :, None].expand(-1, -1, histories.size(2)))
        histories = torch.cat((moved, tokens[:, :, None]), dim=2)
        if not (parents >= 0).any():
            break
        state.past_PLBGNK[..., state.end :, :] = torch.nan
        found = prepared.step(tokens[parents >= 0], state)
        sentences = (parents >= 0).nonzero()[:, 0]
        wanted = truth.project(truth(source[sentences], real[sentences], histories[parents >= 0])[:, -1])
        wanted = wanted if only is None else wanted[:, only]
        if in_bf16:
            assert (found - wanted).abs().mean() < 0.05 * (1 + wanted.std(unbiased=False))
        else:
            torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)
        if len(real) > 1 and draw(st.booleans()):
            stay = torch.tensor(sorted(draw(st.sets(st.integers(0, len(real) - 1), min_size=1))))
            state.keep(stay)
            source, real, histories, parents = source[stay], real[stay], histories[stay], parents[stay]
            if not (parents >= 0).any():
                break


@settings(max_examples=30)
@given(config=suiting(), n=st.integers(2, 14) | st.just(70), in_bf16=st.booleans(), threads=st.integers(1, 3))
def test_no_bit_of_a_row_depends_on_others_or_on_threads(
    config: ModelConfig, n: int, in_bf16: bool, threads: int
) -> None:
    model = built(config)
    if in_bf16:
        model.compute_in(torch.bfloat16, training=False)
    few, before = compiled(model).for_few, torch.get_num_threads()
    numbers = torch.Generator().manual_seed(n)
    source, lengths = torch.randint(4, VOCAB, (n, 21), generator=numbers), torch.randint(1, 22, (n,), generator=numbers)

    def stepped(rows: slice) -> Tensor:
        state = few.start(source[rows, : int(lengths[rows].max())], lengths[rows])
        return torch.stack([few.step(tokens[rows], state) for tokens in (source[:, 0], source[:, 1])], dim=1)

    try:
        torch.set_num_threads(threads)
        together = stepped(slice(None))
        torch.set_num_threads(1)
        alone = torch.cat([stepped(slice(row, row + 1)) for row in range(n)])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(together, alone)


@settings(max_examples=20)
@given(config=suiting(), beam_size=st.integers(1, 4), in_bf16=st.booleans())
def test_no_bit_of_a_score_depends_on_others(config: ModelConfig, beam_size: int, in_bf16: bool) -> None:
    """Also where the others' slots have ended, or are more."""
    model = built(config)
    if in_bf16:
        model.compute_in(torch.bfloat16, training=False)
    prepared = compiled(model, ANY)
    source = torch.randint(4, VOCAB, (6, 9), generator=torch.Generator().manual_seed(beam_size))
    lengths, limits = torch.tensor([9, 3, 1, 7, 5, 2]), [8, 3, 1, 6, 12, 2]

    def found(rows: slice) -> list[list[Hypothesis]]:
        longest = int(lengths[rows].max())
        how = {"symbols": Symbols(bos=1, eos=2, banned=(0, 1)), "beam_size": beam_size, "penalty": LengthPenalty(1.0)}
        return beam_search(prepared, source[rows, :longest], lengths[rows], limits=limits[rows], **how)

    together = found(slice(None))
    assert together == [one for row in range(6) for one in found(slice(row, row + 1))]


@settings(max_examples=60)
@given(
    sizes=st.tuples(st.integers(1, 20), st.integers(1, 70), st.integers(1, 150)),
    rounded=st.booleans(),
    has_bias=st.booleans(),
)
def test_panels_are_a_linear_layer(sizes: tuple[int, int, int], rounded: bool, has_bias: bool) -> None:
    rows, inputs, outputs = sizes
    torch.manual_seed(rows)
    x_RI, weight_OI, bias_O = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
    if rounded:
        x_RI, weight_OI = x_RI.bfloat16().float(), weight_OI.bfloat16().float()
    panels = Panels(weight_OI, bias_O if has_bias else None, rounded=rounded)
    exact = weight_OI.double()
    wanted = x_RI.double() @ exact.t() + (bias_O.double() if has_bias else 0)
    torch.testing.assert_close(panels(x_RI).double(), wanted, rtol=1e-5, atol=1e-4)
    gate = Panels(weight_OI.flip(0), bias_O if has_bias else None, rounded=rounded)
    of_gate = x_RI.double() @ exact.flip(0).t() + (bias_O.double() if has_bias else 0)
    rtol = 2**-8 if rounded else 1e-5  # what another product reads is rounded
    for activation in (F.relu, F.silu, F.gelu):
        found = panels.activated(x_RI, activation), panels.activated(x_RI, activation, gate)
        torch.testing.assert_close(found[0].double(), activation(wanted), rtol=rtol, atol=1e-4)
        torch.testing.assert_close(found[1].double(), activation(of_gate) * wanted, rtol=2 * rtol, atol=1e-3)
    torch.testing.assert_close(panels.onto(torch.ones(rows, outputs), x_RI).double(), 1 + wanted, rtol=1e-5, atol=1e-4)
    assert panels.panels.size(0) == -(-outputs // panel_width())


@pytest.mark.parametrize(
    ("rounds", "found", "most"),
    [
        (True, {"is_soon_in_bf16": True}, ANY),
        (True, {"is_soon_in_bf16": False}, 12),
        (False, {"by_onednn": True, "panel_width": 64}, ANY),
        (False, {"by_onednn": True, "panel_width": 32}, 64),
        (False, {"by_onednn": False, "panel_width": 64}, 64),
    ],
)
def test_all_rows_are_few_where_nothing_else_multiplies_more_of_them_sooner(
    rounds: bool, found: dict[str, int], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, told in found.items():
        monkeypatch.setattr(compiled_steps, name, lambda *_, told=told: told)
    assert most_rows(rounds=rounds) == most


@pytest.mark.parametrize(("few", "forms_laid_out"), [(ANY, {"for_few"}), (64, {"for_few", "for_many"})])
def test_no_form_is_laid_out_that_nothing_steps_by(few: int, forms_laid_out: set[str]) -> None:
    prepared = compiled(built(ModelConfig(d_model=16, n_heads=1, d_ff=8, n_layers=1)), few)
    prepared.lay_out()
    assert vars(prepared).keys() & {"for_few", "for_many"} == forms_laid_out


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "swiglu", "geglu"])
@pytest.mark.parametrize("in_bf16", [False, True])
def test_what_is_no_number_stays_none(activation: Any, in_bf16: bool) -> None:
    model = built(ModelConfig(d_model=16, n_heads=1, d_ff=8, n_layers=1, activation=activation))
    with torch.no_grad():
        model.decoder.layers[0].feed_forward.up.weight[3, 3] = torch.nan
    if in_bf16:
        model.compute_in(torch.bfloat16, training=False)
    for few in (0, ANY):
        prepared = compiled(model, few)
        state = prepared.start(SOURCE[:1], LENGTHS[:1])
        assert prepared.step(TARGET[:1, 0], state).isnan().all()


def test_what_no_number_is_large_enough_for_is_none() -> None:
    """Of weights that have run away nobody is told a translation. PyTorch's norm makes 0 of some widths, too."""
    for norm_position in ("pre", "post"):
        model = built(ModelConfig(d_model=16, n_heads=1, d_ff=8, n_layers=1, norm_position=norm_position))
        with torch.no_grad():
            model.decoder.layers[0].cross_attention.output.bias[3] = 1e30
        for few in (0, ANY):
            prepared = compiled(model, few)
            state = prepared.start(SOURCE[:1], LENGTHS[:1])
            assert prepared.step(TARGET[:1, 0], state).isnan().all()


@settings(max_examples=100)
@given(st.data())
def test_the_likeliest_are_those_of_a_sorted_row(data: st.DataObject) -> None:
    """With ties, which bf16 abounds in, and what is banned, impossible or no number."""
    draw = data.draw
    torch.manual_seed(draw(st.integers(0, 999)))
    rows, width = draw(st.integers(1, 4)), draw(st.integers(1, 300))
    n = draw(st.integers(1, min(64, width)))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16]))
    logits_RV = (draw(st.sampled_from([0.01, 3.0, 90.0])) * torch.randn(rows, width)).to(dtype)
    logits_RV[torch.rand(rows, width) < draw(st.sampled_from([0.0, 0.5]))] = -torch.inf
    logits_RV[:, draw(st.integers(0, width - 1))] = 1.0  # one at least is possible
    banned = torch.tensor(sorted(draw(st.sets(st.integers(0, width - 1), max_size=5))), dtype=torch.int64)
    spoiled = draw(st.sampled_from([None, torch.nan, torch.inf]))
    if spoiled is not None:
        logits_RV[0, draw(st.integers(0, width - 1))] = spoiled

    logp_RN, ids_RN = likeliest(logits_RV, n, banned)
    wanted_RV = logits_RV.double().log_softmax(-1).index_fill(1, banned, -torch.inf)
    wanted_RN, order_RN = wanted_RV.sort(dim=-1, descending=True, stable=True)
    for row in range(rows):
        if row == 0 and spoiled is not None:
            assert logp_RN[0].isnan().all()
            continue
        torch.testing.assert_close(logp_RN[row], wanted_RN[row, :n], rtol=1e-6, atol=1e-6)
        possible = wanted_RN[row, :n] > -torch.inf
        assert torch.equal(ids_RN[row][possible], order_RN[row, :n][possible])


@settings(max_examples=60)
@given(st.data())
def test_rounded_logits_that_decide_are_looked_at_again(data: st.DataObject) -> None:
    """As PyTorch's operations do it, of all pieces or of a shortlist, some of which may not be written."""
    draw = data.draw
    torch.manual_seed(draw(st.integers(0, 999)))
    rows, vocab, width, n = draw(st.integers(1, 4)), draw(st.integers(20, 300)), 32, draw(st.integers(1, 9))
    x_RD, table_VD = torch.randn(rows, width), torch.randn(vocab, width)
    bias_V = torch.randn(vocab) if draw(st.booleans()) else None
    only_U = torch.randperm(vocab)[: vocab // 2] if draw(st.booleans()) else None
    exact = Exact(x_RD, table_VD, bias_V, only_U)
    n_ids = vocab if only_U is None else len(only_U)
    logits_RU = exact(torch.arange(n_ids).expand(rows, -1)).to(draw(st.sampled_from([torch.bfloat16, torch.float32])))
    logits_RU += 0.01 * torch.randn(rows, n_ids)
    impossible_RU = torch.rand(rows, n_ids) < draw(st.sampled_from([0.0, 0.9]))
    impossible_RU[:, 0] = False  # one at least is possible
    logits_RU[impossible_RU] = -torch.inf
    symbols = Symbols(bos=1, eos=2, banned=tuple(sorted(draw(st.sets(st.integers(1, 9), max_size=3)))))
    # Of equals either may be the last that is looked at.
    banned = torch.tensor(symbols.banned, dtype=torch.int64)
    best_RU = logits_RU.index_fill(1, banned, -torch.inf).sort(descending=True).values[:, n + candidates.SPARE - 1 :]
    assume(best_RU.size(1) < 2 or ((best_RU[:, 0] > best_RU[:, 1]) | (best_RU[:, 0] == -torch.inf)).all())
    if draw(st.booleans()):
        table_VD[only_U[0] if only_U is not None else 0, 0] = torch.nan  # of what is found for sure
    (wanted, places), (found, ids) = (
        candidates.likeliest(logits_RU.clone(), symbols, n, made=candidates.Made(exact, by_code)) for by_code in (0, 1)
    )
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
    possible = wanted > -torch.inf
    assert torch.equal(ids[possible], places[possible])


@settings(max_examples=60)
@given(config=configs())
def test_whatever_is_chosen_it_is_stepped_in_one_way_or_the_other(config: ModelConfig) -> None:
    model = built(config)
    prepared = Prepared(model, compiled=True)
    assert prepared.is_compiled is isinstance(prepared.for_many, CompiledForm) is suits(model)
    wanted = model.project(model(SOURCE, LENGTHS, TARGET))
    state = prepared.start(SOURCE, LENGTHS)
    found = torch.stack([prepared.step(tokens, state) for tokens in TARGET.T], dim=1)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
    assert state.compiled is prepared.is_compiled


@pytest.mark.parametrize("options", [{"positions": "rotary"}, {"qk_norm": True}, {"activation": "swiglu"}])
@pytest.mark.parametrize("few", [0, ANY])
def test_heads_and_gates_are_as_the_model_has_them(options: dict[str, Any], few: int) -> None:
    model = built(ModelConfig.model_validate({"d_model": 32, "n_heads": 2, "d_ff": 24, "n_layers": 2, **options}))
    prepared = compiled(model, few)
    state = prepared.start(SOURCE, LENGTHS)
    found = torch.stack([prepared.step(tokens, state) for tokens in TARGET.T], dim=1)
    torch.testing.assert_close(found, model.project(model(SOURCE, LENGTHS, TARGET)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"n_heads": 4},
        {"norm_position": "post", "final_norm": True},
    ],
)
def test_what_it_has_no_code_for_is_stepped_as_without(options: dict[str, Any]) -> None:
    shape = {"d_model": 32, "n_heads": 2, "d_ff": 24, "n_layers": 1}
    assert suits(built(ModelConfig.model_validate(shape)))
    assert not suits(built(ModelConfig.model_validate({**shape, **options})))


def test_in_fp64_it_is_stepped_as_without() -> None:
    model = built(ModelConfig(d_model=16, n_heads=1, d_ff=8, n_layers=1))
    assert not suits(copy.deepcopy(model).double())
    assert not suits(model.compute_in(torch.float64, training=False))


def test_whoever_wants_no_compiled_code_gets_none() -> None:
    prepared = Prepared(built(ModelConfig(d_model=16, n_heads=1, d_ff=8, n_layers=1)))
    assert type(prepared.for_many) is type(prepared.for_few) is forms.Form
    assert not prepared.start(SOURCE, LENGTHS).compiled


def test_of_a_model_that_is_another_one_now_it_is_decided_anew() -> None:
    """Whoever has it in Python may cast it between two translations."""
    model = built(ModelConfig(d_model=16, n_heads=1, d_ff=8, n_layers=1))
    prepared = compiled(model)
    for is_compiled, cast in ((True, model.float), (False, model.double), (True, model.float)):
        cast()
        found = prepared.for_now().step(TARGET[:, 0], prepared.start(SOURCE, LENGTHS))
        assert prepared.is_compiled is is_compiled
        wanted = model.project(model(SOURCE, LENGTHS, TARGET[:, :1]))[:, 0]
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
