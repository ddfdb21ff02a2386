"""For a Python that has unbabel-comet: a checkpoint of its classes, tiny and untrained, in the folder that is named."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import yaml
from comet.models import RegressionMetric
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import XLMRobertaConfig, XLMRobertaTokenizerFast

folder = Path(sys.argv[1])
encoder = folder / "encoder"
letters = [*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,!?äöüß"]
vocabulary = ["<s>", "<pad>", "</s>", "<unk>", "▁", *letters, "<mask>"]
marks = {f"{name}_token": mark for name, mark in {"bos": "<s>", "eos": "</s>", "pad": "<pad>", "unk": "<unk>"}.items()}
tokenizer = Tokenizer(models.Unigram([(piece, -float(n)) for n, piece in enumerate(vocabulary)], unk_id=3))
tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
tokenizer.post_processor = processors.TemplateProcessing(
    single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
)
XLMRobertaTokenizerFast(
    tokenizer_object=tokenizer, cls_token="<s>", sep_token="</s>", mask_token="<mask>", **marks
).save_pretrained(encoder)
XLMRobertaConfig(
    vocab_size=len(vocabulary),
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=514,
    type_vocab_size=1,
    pad_token_id=1,
    bos_token_id=0,
    eos_token_id=2,
).save_pretrained(encoder)
torch.manual_seed(1)
model = RegressionMetric(
    encoder_model="XLM-RoBERTa",
    pretrained_model=str(encoder),
    load_pretrained_weights=False,
    local_files_only=True,
    hidden_sizes=[16],
    dropout=0.0,
    layer_transformation="softmax",
)
settings = {**model.hparams}
(folder / "hparams.yaml").write_text(yaml.safe_dump({**settings, "class_identifier": "regression_metric"}))
(folder / "checkpoints").mkdir()
kept = {"state_dict": model.state_dict(), "hyper_parameters": settings, "pytorch-lightning_version": "2.0.0"}
torch.save(kept, folder / "checkpoints" / "model.ckpt")
