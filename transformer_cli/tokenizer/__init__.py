"""Text to piece ids and back: learn a tokenizer, encode, decode, sample, save, load."""

from transformer_cli.tokenizer.extending import cut_before, extended
from transformer_cli.tokenizer.learning import TokenizerReport, measured, train_tokenizer
from transformer_cli.tokenizer.tags import tag_of, wanted
from transformer_cli.tokenizer.tokenizer import Tokenizer, read_tokenizer
from transformer_cli.tokenizer.vocabulary import BOS, EOS, PAD, SPECIALS, UNK, Vocabulary

__all__ = [
    "BOS",
    "EOS",
    "PAD",
    "SPECIALS",
    "UNK",
    "Tokenizer",
    "TokenizerReport",
    "Vocabulary",
    "cut_before",
    "extended",
    "measured",
    "read_tokenizer",
    "tag_of",
    "train_tokenizer",
    "wanted",
]
