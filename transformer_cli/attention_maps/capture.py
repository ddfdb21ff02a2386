"""From a translator and a sentence to attention maps: one forced pass in fp32, weights taken before dropout.

B batch of one, H heads, Q queries, K keys, S source length, T target positions, D d_model, V target vocabulary
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from transformer_cli.attention_maps.maps import AttentionMaps, Block, Kind, Side, Step, words_of
from transformer_cli.decoding.translation import Translation
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import DataError, DivergedError, UsageError
from transformer_cli.model.attention import ScaledDotProductAttention
from transformer_cli.model.transformer import Transformer
from transformer_cli.tokenizer import BOS, EOS, PAD, Vocabulary
from transformer_cli.wording import counted

N_BEST = 5
"""Next pieces kept per target position."""
MAX_WEIGHTS = 100_000_000
"""Of one sentence: 400 MB, or 6 + 6 layers of 8 heads for 830 + 830 pieces."""


@contextmanager
def capture(model: Transformer, *, only: str | None = None) -> Iterator[dict[str, Tensor]]:
    """Gives what fills, in each pass within, with the weights (B, H, Q, K) of every attention by its module's name.

    only: the name of the one to keep; the others are not held.
    Within, the model is in evaluation mode and attention is written out; after, everything is as it was.
    """
    found: dict[str, Tensor] = {}
    attentions = {name: m for name, m in model.named_modules() if isinstance(m, ScaledDotProductAttention)}
    was_fused = {attention: attention.fused for attention in attentions.values()}
    was_training = model.training

    def keep(name: str, module: nn.Module, inputs: tuple[Tensor, ...], weights_BHQK: Tensor) -> None:
        found[name] = weights_BHQK.detach()

    hooks = [
        attention.softmax.register_forward_hook(partial(keep, name))
        for name, attention in attentions.items()
        if only in (None, name)
    ]
    model.eval().use_attention(fused=False)
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
        for attention, fused in was_fused.items():
            attention.fused = fused
        model.train(was_training)


def attention_maps(
    translator: Translator,
    line: str,
    *,
    model: str = "model",
    target: str | None = None,
    pad_to: int | None = None,
    max_weights: int = MAX_WEIGHTS,
) -> AttentionMaps:
    """The maps of a line and its best translation, or of a line and the given target.

    translator: in fp32. model: what to call it. pad_to: source positions, padding included.
    Raises UsageError for a line without text, for more pieces than pad_to or more weights than max_weights; DataError
    for more pieces than the model has positions; ModelError where it computes no finite numbers.
    """
    if translator.model.dtype not in (None, torch.float32):
        raise UsageError(
            f"attention is taken in fp32, but this model computes in {translator.model.dtype}",
            hint="--set precision=fp32",
        )
    source = source_side(translator, line, pad_to=pad_to)
    if target is None:
        n_pieces, limit = len(source.pieces) - source.n_padding, translator.max_source_length
        if limit is not None and n_pieces > limit:
            raise DataError(
                f"the sentence has {n_pieces:,} pieces, too many to be translated at once",
                hint="show a part of it, or raise decoding.max_source_length",
            )
        try:
            [best] = translator.translate_all([line], by_sentences=False)
        except DivergedError as failure:
            raise _not_finite() from failure
        text, ids, origin, score = best.text, best.ids, _search_name(translator, best), best.score
    else:
        [ids] = map(tuple, translator.tokenizer.encode_target([target]))
        text, origin, score = target, "forced", None
    right = target_side(translator, text, ids, given=target is not None)
    _check_room(translator.model, source, right, max_weights)
    weights, probabilities_TV = _forced_pass(translator, source, right)
    return AttentionMaps(
        model=model,
        source=source,
        target=right,
        blocks=_blocks(weights),
        steps=_steps(probabilities_TV, right.ids[1:], translator.tokenizer.target),
        origin=origin,
        score=score,
    )


@torch.inference_mode()
def _forced_pass(translator: Translator, source: Side, target: Side) -> tuple[dict[str, Tensor], Tensor]:
    """The weights by module, and the probabilities (T, V) of what comes next."""
    model, device = translator.model, translator.device
    n_source = len(source.ids) - source.n_padding
    with capture(model) as weights:
        hidden_BTD = model(
            torch.tensor([source.ids], device=device),
            torch.tensor([n_source]),
            torch.tensor([target.ids[:-1]], device=device),
        )
        logits_TV = model.project(hidden_BTD)[0].cpu().double()
    if not logits_TV.isfinite().all():
        raise _not_finite()
    return weights, logits_TV.softmax(-1)


def _not_finite() -> DivergedError:
    return DivergedError("the model's scores are not finite numbers", hint="it has diverged: try another checkpoint")


def _blocks(weights: dict[str, Tensor]) -> tuple[Block, ...]:
    """encoder.layers.0.self_attention.attend becomes encoder 1."""
    blocks: list[Block] = []
    kinds: dict[Kind, tuple[str, str]] = {
        "encoder": ("encoder", "self_attention"),
        "decoder": ("decoder", "self_attention"),
        "cross": ("decoder", "cross_attention"),
    }
    for kind, (stack, attention) in kinds.items():
        for name, weights_BHQK in weights.items():
            parts = name.split(".")
            if parts[0] == stack and attention in parts:
                weights_HQK = weights_BHQK[0].float().cpu().numpy()
                heads = tuple(range(1, len(weights_HQK) + 1))
                blocks.append(Block(kind, int(parts[2]) + 1, heads, np.ascontiguousarray(weights_HQK), name))
    assert len(blocks) == len(weights)
    return tuple(blocks)


def _steps(probabilities_TV: Tensor, outputs: tuple[int, ...], vocabulary: Vocabulary) -> tuple[Step, ...]:
    chances, ids = probabilities_TV.topk(min(N_BEST, probabilities_TV.size(1)))
    return tuple(
        Step(
            best=tuple((vocabulary.piece(id), round(chance, 6)) for id, chance in zip(row_ids, row, strict=True)),
            probability=round(float(probabilities_TV[t, outputs[t]]), 6),
        )
        for t, (row, row_ids) in enumerate(zip(chances.tolist(), ids.tolist(), strict=True))
    )


def source_side(translator: Translator, line: str, *, pad_to: int | None = None) -> Side:
    """What the encoder reads of a line; UsageError for a line without text, or with more pieces than pad_to."""
    vocabulary = translator.tokenizer.source
    [ids], [pieces] = vocabulary.encode([line]), vocabulary.pieces([line])
    if not ids or not line.strip():
        raise UsageError("the source is empty", hint='give a sentence: tx visualize-attention "ich mochte ein bier"')
    if translator.source_eos:
        ids, pieces = [*ids, EOS], [*pieces, vocabulary.piece(EOS)]
    if pad_to is not None and type(pad_to) is not int:
        raise UsageError(f"pad_to is {pad_to!r:.60}; expected a whole number")
    n_padding = 0 if pad_to is None else pad_to - len(ids)
    if n_padding < 0:
        raise UsageError(f"the source has {counted(len(ids), 'pieces')}, more than --pad-to {pad_to}")
    ids, pieces = ids + [PAD] * n_padding, pieces + [vocabulary.piece(PAD)] * n_padding
    words = words_of(tuple(pieces), tuple(ids), vocabulary.mark_id)
    return Side(line, tuple(pieces), tuple(ids), words, n_padding, vocabulary.mark_id)


def target_side(translator: Translator, text: str, ids: tuple[int, ...], *, given: bool = False) -> Side:
    """What the decoder reads and writes; given: the ids are of this very text, not the other way round."""
    vocabulary = translator.tokenizer.target
    # A given text may have characters without a piece: shown as they were typed.
    inner = vocabulary.pieces([text])[0] if given else [vocabulary.piece(id) for id in ids]
    pieces = (vocabulary.piece(BOS), *inner, vocabulary.piece(EOS))
    all_ids = (BOS, *ids, EOS)
    words = words_of(pieces, all_ids, vocabulary.mark_id)
    return Side(text, pieces, all_ids, words, language=vocabulary.mark_id)


def _check_room(model: Transformer, source: Side, target: Side, max_weights: int) -> None:
    S, T, depths = len(source.pieces), len(target.pieces) - 1, model.config.depths
    n_weights = model.config.n_heads * (depths.encoder * S * S + depths.decoder * (T * T + T * S))
    if n_weights > max_weights:
        raise UsageError(
            f"the attention of {S:,} + {T:,} pieces has {n_weights:,} weights; at most {max_weights:,} are possible",
            hint="show a part of the sentence" + (", or pad it less" if source.n_padding else ""),
        )
    needs = (("source", S), ("target", T))
    rooms = (model.config.room("encoder"), model.config.room("decoder"))
    for (name, n_positions), room in zip(needs, rooms, strict=True):
        if room is not None and n_positions > room:
            raise DataError(f"the {name} takes {counted(n_positions, 'positions')}, but the model has learned {room:,}")


def _search_name(translator: Translator, found: Translation) -> str:
    config = translator.config
    beam = "greedy" if config.beam_size == 1 else f"beam {config.beam_size}"
    name = {"beam": beam, "sampling": "sampled"}.get(config.search, config.search)
    name = name if config.rerank is None else f"{name}, ranked by {config.rerank.run}"
    name = name if config.mbr is None else f"minimum Bayes risk of {config.mbr.samples:,} draws"
    return f"{name}, cut at the longest length" if found.truncated else name
