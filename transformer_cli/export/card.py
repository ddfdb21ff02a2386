"""The model card of what was exported: what it is, what it learned from, how well it does, how it is used."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from transformer_cli.accounting.parameters import count
from transformer_cli.checkpoints.store import OpenedRun
from transformer_cli.decoding.options import in_words
from transformer_cli.export.comparison import Comparison
from transformer_cli.files import json_line
from transformer_cli.wording import counted

NAMES = {"train": "trained on", "valid": "validated on"}


def card(run: OpenedRun, engine: str, found: Comparison, *, usage: str, tags: Mapping[str, int]) -> str:
    """Markdown, with the front matter that model hubs read. tags: by what a source begins with, the id of each."""
    data, model, tokenizer = run.config.data, run.config.model, run.tokenizer
    total = count(run.config.counted, source_vocab=tokenizer.source_size, target_vocab=tokenizer.target_size).total
    depths, spoken = model.depths, ((one.source, one.target) for one in data.directions)
    facts = [
        f"- an encoder-decoder Transformer of {total:,} parameters: {depths.encoder} + {depths.decoder} layers, "
        f"d_model {model.d_model:,}, d_ff {model.d_ff:,}, {counted(model.n_heads, 'heads')}, "
        f"{model.norm_position}-norm",
        f"- {tokenizer.source_size:,} pieces for both languages (SentencePiece)"
        if tokenizer.joint
        else f"- {tokenizer.source_size:,} source and {tokenizer.target_size:,} target pieces (SentencePiece)",
        *([_tags(tags)] if tags else []),
        *(_text(NAMES[name], text) for name, text in run.record.get("data", {}).items() if name in NAMES),
        *_scores(run.record.get("scores", {}), run.checkpoint_name),
        f"- compared with tx in {engine}: {found.equal_texts:,} of {len(found.lines):,} texts are the same, the same "
        f"piece is preferred at {found.agreeing:.1%} of {found.steps:,} steps, logits differ by at most "
        f"{found.logit_difference:.2g}; comparison.json has the lines",
    ]
    return "\n".join(
        [
            "---",
            f"language: {json_line([*dict.fromkeys(chain.from_iterable(spoken))])}",  # in YAML, too: `no` is false
            "pipeline_tag: translation",
            "---",
            f"# {run.languages}",
            "",
            *facts,
            "",
            "```python",
            usage,
            "```",
            "",
        ]
    )


def _tags(tags: Mapping[str, int]) -> str:
    named = ", ".join(f"{tag} ({id})" for tag, id in tags.items())
    return f"- a source begins with the piece of the language that is wanted: {named}"


def _text(verb: str, text: dict[str, Any]) -> str:
    return f"- {verb} {counted(text.get('pairs', 0), 'pairs')}, sha256 {str(text['sha256'])[:16]}..."


def _scores(kept: dict[str, Any], checkpoint: str) -> list[str]:
    """A line per score of a test, with its search and signature: those of this checkpoint, not of an earlier one."""
    return [
        f"- {score['name']} {score['value']:.1f} on {name} ({search}{score['signature']})"
        for name, result in kept.items()
        if isinstance(result, dict) and result.get("checkpoint") in (None, checkpoint)
        for search in [f"{in_words(result['decoding'])}; " if result.get("decoding") else ""]
        for score in result.get("scores", [])
    ]
