"""Hugging Face's Marian class: a plain loop on tx's batches, in fp32 or bf16 autocast, and `generate`, with what
`tx export hugging-face` wrote."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turn import LONGEST, Translate, Turn, Watch, asked, in_batches, translate

if TYPE_CHECKING:
    from transformers import MarianMTModel

    from transformer_cli.data.loader import Batch

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def marian(shape: Any, n_pieces: int) -> MarianMTModel:
    """Marian in the shape of tx's model; its own norm positions, its own sinusoids."""
    import torch
    from transformers import MarianConfig, MarianMTModel

    from transformer_cli.tokenizer import BOS, EOS, PAD

    torch.manual_seed(1)
    settings = MarianConfig(
        vocab_size=n_pieces,
        d_model=shape.d_model,
        encoder_layers=shape.n_layers,
        decoder_layers=shape.n_layers,
        encoder_attention_heads=shape.n_heads,
        decoder_attention_heads=shape.n_heads,
        encoder_ffn_dim=shape.d_ff,
        decoder_ffn_dim=shape.d_ff,
        dropout=shape.dropout,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=BOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
        max_position_embeddings=256,
        attn_implementation="sdpa",
    )
    return MarianMTModel(settings).train()


def marian_step(
    model: MarianMTModel, *, label_smoothing: float, bf16: bool, learning_rate: float = 1e-3, warmup: int = 400
) -> Callable[[Batch], None]:
    """One update of a plain loop: autocast if asked for, fused Adam, torch's own loss."""
    import torch

    from transformer_cli.tokenizer import PAD

    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), eps=1e-9, fused=True)
    loss_of = torch.nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=label_smoothing)
    count = itertools.count(1)

    def step(batch: Batch) -> None:
        model.train()
        number = next(count)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min(number / warmup, (warmup / number) ** 0.5)
        source_BS, target_in_BT, target_out_BT = (
            ids.to(model.device, non_blocking=True)
            for ids in (batch.source_BS, batch.target_in_BT, batch.target_out_BT)
        )
        with torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=bf16):
            logits = model(
                input_ids=source_BS,
                attention_mask=(source_BS != PAD).long(),
                decoder_input_ids=target_in_BT,
                use_cache=False,
            ).logits
            loss = loss_of(logits.flatten(0, 1), target_out_BT.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    return step


def train(turn: Turn) -> None:
    import numpy as np

    from transformer_cli.data import batching, loader
    from transformer_cli.tokenizer import EOS

    watch, ids = Watch(turn), {piece: id for id, piece in enumerate(turn.vocabulary)}
    source, target = ([[ids[piece] for piece in line] for line in side] for side in turn.pieces("train"))
    source = [[*line, EOS] for line in source]
    model = marian(turn.sizes, len(ids))
    step = marian_step(model, label_smoothing=turn.sizes.label_smoothing, bf16=turn.precision == "bf16")
    lengths = np.array([[len(one), len(other) + 1] for one, other in zip(source, target, strict=True)])
    for epoch in itertools.count():
        for rows in batching.plan(lengths, budget=turn.sizes.tokens, seed=1, epoch=epoch):
            batch = loader.collate([np.array(source[i]) for i in rows], [np.array(target[i]) for i in rows])
            watch.update(batch.n_source_tokens + batch.n_target_tokens)
            step(batch)


def translator(turn: Turn) -> Translate:
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    place = Path(turn.model) / "hugging-face"
    tokenizer, model = AutoTokenizer.from_pretrained(place), AutoModelForSeq2SeqLM.from_pretrained(place)
    if turn.precision == "bf16":
        model = model.bfloat16()

    @torch.inference_mode()
    def by(lines: list[str]) -> list[str]:
        batch = tokenizer(lines, return_tensors="pt", padding=True)
        made = model.generate(**batch, num_beams=turn.beam, do_sample=False, max_length=LONGEST + 1)
        return list(tokenizer.batch_decode(made, skip_special_tokens=True))

    return by


if __name__ == "__main__":
    turn = asked()
    train(turn) if turn.what == "train" else translate(turn, in_batches(turn, translator(turn)))
