"""Does a head look at what `it` means? Counted over all heads, on sentences whose grammar knows.

    python scripts/benchmark/reference.py runs/tiny-en-de [--pairs 200]

The run must have been trained on the phrasebook, from English to German. A pair is "the animal didn't cross the street
because it was too tired" (the animal) and "... too narrow" (the street): two sentences that differ in their last word
alone, neither of them in training, and German has another pronoun in each. A head looks at what is meant in so far as
its weight on the noun that is meant is the greater of the two in both sentences; one that does not see the last word
cannot be right in both. Rows: of the encoder that of `it`, else the one that the German pronoun comes out of.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from random import Random

import numpy as np

from transformer_cli.attention_maps.capture import attention_maps
from transformer_cli.attention_maps.maps import AttentionMaps
from transformer_cli.attention_maps.views import view
from transformer_cli.checkpoints.find import find_checkpoint
from transformer_cli.checkpoints.store import open_run
from transformer_cli.data.phrasebook import phrasebook
from transformer_cli.data.phrasebook.clauses import Clause
from transformer_cli.data.phrasebook.compound import _ACTOR, _TABLE, because
from transformer_cli.data.phrasebook.lexicon import NOUNS, VERBS
from transformer_cli.data.phrasebook.pairs import pair_of
from transformer_cli.data.phrasebook.phrases import NounPhrase, Words
from transformer_cli.data.phrasebook.sentences import Sentence
from transformer_cli.loading import translator_of

ROLES = ("subject.noun", "accusative.noun")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--pairs", type=int, default=200)
    arguments = parser.parse_args()
    opened = open_run(find_checkpoint(arguments.run))
    translator = translator_of(opened, opened.config.model_copy(update={"precision": "fp32"}))
    known = {pair.english for pair in phrasebook(**opened.config.data.phrasebook.model_dump()).train}
    looks: dict[tuple[str, int, int], list[tuple[bool, bool]]] = defaultdict(list)
    translated = []
    for sentences in islice(minimal_pairs(known), arguments.pairs):
        right = []
        for meant, sentence in enumerate(sentences):
            pair = pair_of(sentence)
            right.append(looks_at(attention_maps(translator, pair.english, target=pair.german), sentence, meant))
            translated.append(translator.translate([pair.english], beam_size=1)[0] == pair.german)
        for head in right[0]:
            looks[head].append((right[0][head], right[1][head]))
    both_right = [all(pair) for pair in zip(translated[::2], translated[1::2], strict=True)]
    print(
        f"{len(both_right)} pairs; translated as the grammar does: {100 * np.mean(translated):.0f} % of sentences, "
        f"{100 * np.mean(both_right):.0f} % of pairs in both"
    )
    print("looks at what is meant, in per cent   subject  object    both")
    for (kind, layer, head), both in sorted(looks.items(), key=lambda item: -sum(map(all, item[1]))):
        subject, other = 100 * np.mean(both, axis=0)
        print(f"{f'{kind} {layer}.{head}':<36} {subject:8.0f} {other:7.0f} {100 * np.mean([*map(all, both)]):7.0f}")


def minimal_pairs(known: set[str]) -> Iterator[tuple[Sentence, Sentence]]:
    """Sentences of the same clause whose pronoun means its subject, and its object; always the same ones."""
    random = Random(3)
    subjects = [noun for noun in NOUNS.values() if noun.english_pronoun == "it" and noun.kinds & {"animal", "person"}]
    seen: set[tuple[str, str]] = set()
    while True:
        name, things, adjectives = random.choice(_TABLE)
        verb, thing, subject = VERBS[name], NOUNS[random.choice(things)], random.choice(subjects)
        if thing.gender == subject.gender or subject.kinds.isdisjoint(verb.subjects):
            continue
        who, what = NounPhrase(subject, "der"), NounPhrase(thing, "der")
        clause = Clause(who, verb, what, negated=True, past=True)
        pair = (
            because(clause, who, random.choice(_ACTOR), ("zu", "too")),
            because(clause, what, random.choice(adjectives), ("zu", "too")),
        )
        english = (pair_of(pair[0]).english, pair_of(pair[1]).english)
        if known.isdisjoint(english) and english not in seen:
            seen.add(english)
            yield pair


def place_of(words: Words, link: str) -> int:
    return next(place for place, word in enumerate(words) if link in word.links)


def looks_at(maps: AttentionMaps, sentence: Sentence, meant: int) -> dict[tuple[str, int, int], bool]:
    """For each head, whether it looks more at the noun that is meant than at the other."""
    source, target = sentence.english, sentence.german
    pronoun = {"encoder": place_of(source, "second subject"), "target": place_of(target, "second subject")}
    found = {}
    for block in maps.blocks:
        # By words; the source has no mark before its text, and the decoder's row n is the one that word n comes out of.
        weights_HQK = view(maps, block, words=True).weights_HQK
        row = pronoun["encoder" if block.kind == "encoder" else "target"]
        keys = [place_of(target, role) + 1 if block.kind == "decoder" else place_of(source, role) for role in ROLES]
        for head, weights_QK in zip(block.heads, weights_HQK, strict=True):
            found[block.kind, block.layer, head] = bool(weights_QK[row, keys[meant]] > weights_QK[row, keys[1 - meant]])
    return found


if __name__ == "__main__":
    main()
