"""The built-in corpus, seen from outside: what a reader of the sentences can check without the grammar."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import unicodedata
from collections import Counter
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from random import Random

import pytest
from drawn import FEW, drawn
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_cli.data import phrasebook as package
from transformer_cli.data.phrasebook import PHENOMENA, Pair, Phrasebook, everyday, phrasebook, styled
from transformer_cli.data.phrasebook import pairs as pairs_module
from transformer_cli.data.phrasebook.lexicon import ADJECTIVES, NOUNS, VERBS
from transformer_cli.errors import DataError

SETS = ("train", "valid", "test", "valid_combinations", "test_combinations")
HELD_OUT = SETS[1:]


@pytest.fixture(scope="module")
def small() -> Phrasebook:
    return phrasebook(n_pairs=3_000, seed=2)


def everything(book: Phrasebook) -> list[Pair]:
    return [pair for name in SETS for pair in getattr(book, name)]


def bare(text: str) -> str:
    """Lower case, no accents, ß as ss, no punctuation but quotes: written without the package's own function."""
    decomposed = unicodedata.normalize("NFKD", text.lower().replace("ß", "ss"))
    return re.sub(r"[.,?]", "", "".join(c for c in decomposed if not unicodedata.combining(c)))


def spelled(text: str) -> str:
    """Lower case, ä as ae."""
    for umlaut, letters in (("ä", "ae"), ("ö", "oe"), ("ü", "ue"), ("ß", "ss")):
        text = text.lower().replace(umlaut, letters)
    return text


# ---- size and shape


def test_there_are_as_many_distinct_training_pairs_as_asked_for(book: Phrasebook) -> None:
    assert len(book.train) == 40_000
    assert len({bare(pair.german) for pair in book.train}) == 40_000
    assert len({pair.english for pair in book.train}) == 40_000


@pytest.mark.parametrize("side", ["german", "english"])
def test_each_side_has_hundreds_of_forms_each_seen_often_enough_to_be_learnt(book: Phrasebook, side: str) -> None:
    forms = Counter(word for pair in book.train for word in getattr(pair, side).split())
    assert 400 <= len(forms) <= 800
    assert sum(forms.values()) / len(book.train) >= 7
    assert {form: count for form, count in forms.items() if count < 15} == {}


def test_each_lemma_is_frequent(book: Phrasebook) -> None:
    words = Counter(word for pair in book.train for word in pair.english.split())
    lemmas = {
        **{noun.german: (noun.english, noun.english_plural) for noun in NOUNS.values()},
        **{verb.german: (verb.english, verb.english_third, verb.english_past) for verb in VERBS.values()},
        **{adjective.german: (adjective.english,) for adjective in ADJECTIVES.values()},
    }
    counts = {lemma: sum(words[form] for form in set(forms)) for lemma, forms in lemmas.items() if lemma != "sein"}
    assert {lemma: count for lemma, count in counts.items() if count < 60} == {}


@pytest.mark.parametrize("phenomenon", PHENOMENA)
def test_each_phenomenon_is_in_three_percent_of_the_pairs(book: Phrasebook, phenomenon: str) -> None:
    assert sum(phenomenon in pair.phenomena for pair in book.train) >= 0.03 * len(book.train)


# ---- what the phenomena are, told from the words alone

PREFIXES = sorted({verb.prefix for verb in VERBS.values() if verb.prefix})
SEPARABLE = "|".join(verb.german for verb in VERBS.values() if verb.prefix)
MODALS = r"(kann|kannst|können|soll|sollst|sollen|muss|musst|müssen|konnten?|wollten?|möcht(e|est|en))"
NUMBERS = "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
PLURALS = "|".join(noun.english_plural for noun in NOUNS.values())
SINGULARS = "|".join(noun.english for noun in NOUNS.values())
ATTRIBUTES = "|".join(adjective.english for adjective in ADJECTIVES.values())
OPENINGS = "|".join(" ".join(word.text for word in opening.english("")) for opening in everyday.OPENINGS)
ASKING = rf"^(({OPENINGS}) )?(do|does|did|can|could|should|must|am|is|are|was|were|what|who|when|where|why|how)(n't)?\b"
SIGNS = {
    "question": ("english", ASKING),
    "negation": ("english", r"n't\b|\bam not\b"),
    "time": ("german", r"\bum (halb|viertel|\w+ uhr)"),
    "number": ("english", rf"\b({NUMBERS}) (({ATTRIBUTES}) )?({PLURALS})\b"),
    "reference": ("german", r"\bweil (ich|du|er|sie|es|wir) (zu|sehr) \S+ (bin|bist|ist|sind|war|waren)$"),
    "adjective": ("english", rf"\b({ATTRIBUTES}) ({PLURALS}|{SINGULARS})\b"),
    "verb-final": ("english", r"\b(can|can't|could|couldn't|should|shouldn't|must)\b|\bwant(s|ed)? to\b"),
    "separable": ("german", rf"\b({SEPARABLE})\b|\b({'|'.join(PREFIXES)})( aber|$)"),
}


@pytest.mark.parametrize("phenomenon", SIGNS)
def test_phenomena_can_be_told_from_the_words(book: Phrasebook, phenomenon: str) -> None:
    side, sign = SIGNS[phenomenon]
    pattern = re.compile(sign)
    for pair in everything(book):
        text = getattr(pair, side)
        claimed, shown = phenomenon in pair.phenomena, bool(pattern.search(text))
        assert claimed == shown, (phenomenon, pair)


def test_after_a_modal_the_infinitive_ends_the_clause(book: Phrasebook) -> None:
    for pair in everything(book):
        if "verb-final" in pair.phenomena:
            clause = pair.german.partition(" weil ")[0].split()
            assert any(re.fullmatch(MODALS, word) for word in clause), pair
            assert clause[-1] in VERBS, pair


def test_a_fronted_adverb_is_followed_by_the_finite_verb(book: Phrasebook) -> None:
    fronted = re.compile(r"^(heute abend|heute|jetzt|morgen|gestern|(jeden|letzte|nächste|am) \w+|um halb \w+) (\w+)")
    finite = {form for verb in VERBS.values() for form in (*verb.present, *(verb.past or ()))}
    seen = 0
    for pair in book.train:
        match = fronted.match(pair.german)
        if match:
            seen += 1
            assert "verb-second" in pair.phenomena
            assert match[3] in finite or re.fullmatch(MODALS, match[3]), pair
    assert seen > 0.1 * len(book.train)


ARTICLES = {
    ("m", "acc"): ("den", "einen", "keinen"),
    ("f", "acc"): ("die", "eine", "keine"),
    ("n", "acc"): ("das", "ein", "kein"),
}


def test_objects_take_the_accusative_article_of_their_gender(book: Phrasebook) -> None:
    """A pronoun subject at the start, a finite verb, then a determiner and a noun: that noun is the object."""
    taking = {form for verb in VERBS.values() if verb.objects for form in verb.present}
    taking -= {form for name in ("helfen", "danken", "folgen") for form in VERBS[name].present}
    forms = {(noun.german_plural if noun.weak else noun.german): noun.gender for noun in NOUNS.values()}
    checked = Counter[str]()
    for pair in book.train:
        words = pair.german.split()
        if len(words) > 3 and words[0] in ("ich", "du", "er", "wir") and words[1] in taking and words[3] in forms:
            determiner, gender = words[2], forms[words[3]]
            if determiner in {article for articles in ARTICLES.values() for article in articles}:
                checked[gender] += 1
                assert determiner in ARTICLES[gender, "acc"], pair
    assert min(checked.values()) > 50
    assert set(checked) == {"m", "f", "n"}


DATIVE = {"m": "dem|einem", "n": "dem|einem", "f": "der|einer"}


def test_mit_takes_the_dative(book: Phrasebook) -> None:
    forms = {(noun.german_plural if noun.weak else noun.german): noun.gender for noun in NOUNS.values()}
    found = 0
    for pair in book.train:
        match = re.search(r"\bmit (dem|einem|der|einer|den|die|das|ein|eine) (?:\w+en )?(\w+)", pair.german)
        if match and match[2] in forms and " mit" in pair.german[: match.start() + 4]:
            found += 1
            assert re.fullmatch(DATIVE[forms[match[2]]], match[1]), pair
    assert found > 100


def test_the_pronoun_after_weil_follows_what_it_refers_to(book: Phrasebook) -> None:
    """das tier .. die straße: es is the animal, sie the street; both are it in English."""
    genders = {"er": "m", "sie": "f", "es": "n"}
    articles = {"der": "m", "den": "m", "die": "f", "das": "n"}
    subjects = re.compile(
        r"^(das (?:tier|pferd|schwein)|der (?:hund|fuchs)|die (?:kuh|katze)) .*?(den|die|das) \w+ nicht"
        r".* weil (er|sie|es) (?:zu|sehr) (\w+) (?:ist|war)$"
    )
    tired = {"müde", "krank", "schwach", "faul", "traurig", "jung"}
    seen = Counter[bool]()
    for pair in book.train:
        match = subjects.match(pair.german)
        if match:
            about_subject = match[4] in tired
            article = match[1].split()[0] if about_subject else match[2]
            assert genders[match[3]] == articles[article], pair
            assert "because it " in pair.english
            seen[about_subject] += 1
    assert min(seen[True], seen[False]) > 20


# ---- one sentence, one translation


@pytest.mark.parametrize("corpus", ["book", "small"])
def test_no_source_has_two_translations_in_any_style(corpus: str, request: pytest.FixtureRequest) -> None:
    pairs = everything(request.getfixturevalue(corpus))
    for key in (bare, spelled):
        translations: dict[str, set[str]] = {}
        for pair in pairs:
            translations.setdefault(key(pair.german), set()).add(pair.english)
        assert {source: found for source, found in translations.items() if len(found) > 1} == {}
    back: dict[str, set[str]] = {}
    for pair in pairs:
        back.setdefault(pair.english, set()).add(pair.german)
    assert {source: found for source, found in back.items() if len(found) > 1} == {}


@pytest.mark.parametrize("corpus", ["book", "small"])
def test_the_sentences_of_the_documentation_are_always_taught(corpus: str, request: pytest.FixtureRequest) -> None:
    taught = {pair.german: pair.english for pair in request.getfixturevalue(corpus).train}
    assert taught["ich möchte ein bier"] == "i want a beer"
    assert taught["ich möchte ein bier trinken"] == "i want to drink a beer"
    crossing, because = "das tier überquerte die straße nicht weil", "the animal didn't cross the street because it was"
    assert taught[f"{crossing} es zu müde war"] == f"{because} too tired"
    assert taught[f"{crossing} sie zu eng war"] == f"{because} too narrow"


# ---- what is held out


def test_held_out_sentences_are_not_in_training_however_they_are_typed(book: Phrasebook) -> None:
    german = {bare(pair.german) for pair in book.train}
    english = {bare(pair.english) for pair in book.train}
    for name in HELD_OUT:
        assert len(getattr(book, name)) == 500
        for pair in getattr(book, name):
            assert bare(pair.german) not in german
            assert bare(pair.english) not in english


def test_held_out_sets_do_not_share_a_sentence(book: Phrasebook) -> None:
    assert len({bare(pair.german) for name in HELD_OUT for pair in getattr(book, name)}) == 2000


def english_forms(lemma: str) -> set[str]:
    if lemma in NOUNS:
        return {NOUNS[lemma].english, NOUNS[lemma].english_plural}
    if lemma in VERBS:
        return {VERBS[lemma].english, VERBS[lemma].english_third, VERBS[lemma].english_past}
    return {ADJECTIVES[lemma].english}


def test_training_never_joins_the_words_of_a_combination(book: Phrasebook) -> None:
    """Told from the English words: each is frequent in training, in no sentence are they together."""
    sentences: dict[str, set[int]] = {}
    for index, pair in enumerate((*book.train, *book.valid, *book.test)):
        for word in pair.english.split():
            sentences.setdefault(word, set()).add(index)

    def where(lemma: str) -> set[int]:
        return set().union(*(sentences.get(form, set()) for form in english_forms(lemma)))

    for first, second in book.held_out:
        assert len(where(first)) >= 60
        assert len(where(second)) >= 60
        assert where(first).isdisjoint(where(second)), (first, second)


@pytest.mark.parametrize("name", ["valid_combinations", "test_combinations"])
def test_each_combination_joins_two_words_that_training_does_not(book: Phrasebook, name: str) -> None:
    for pair in getattr(book, name):
        words = set(pair.english.split())
        assert any(words & english_forms(first) and words & english_forms(second) for first, second in book.held_out)


def test_combinations_are_of_many_kinds(book: Phrasebook) -> None:
    assert {first for first, _ in book.held_out} & set(VERBS)
    assert {first for first, _ in book.held_out} & set(ADJECTIVES)
    assert len(book.held_out) >= 50


def levenshtein(first: list[str], second: list[str]) -> int:
    row = list(range(len(second) + 1))
    for i, word in enumerate(first, 1):
        previous, row[0] = row[0], i
        for j, other in enumerate(second, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (word != other))
    return row[-1]


@pytest.mark.parametrize("name", ["test", "test_combinations"])
def test_copying_the_translation_of_the_nearest_sentence_fails(book: Phrasebook, name: str) -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    sources = [pair.german.split() for pair in book.train]
    containing: dict[str, list[int]] = {}
    for index, words in enumerate(sources):
        for word in set(words):
            containing.setdefault(word, []).append(index)
    copies, references = [], []
    for pair in getattr(book, name)[:60]:
        words = pair.german.split()
        shared = Counter(index for word in set(words) for index in containing.get(word, ()))
        nearest = min((index for index, _ in shared.most_common(200)), key=lambda i: levenshtein(words, sources[i]))
        copies.append(book.train[nearest].english)
        references.append(pair.english)
    assert sacrebleu.corpus_bleu(copies, [references]).score < 50


# ---- determinism and size


def shown(book: Phrasebook) -> str:
    rows = [(pair.german, pair.english, pair.alignment, sorted(pair.phenomena)) for pair in everything(book)]
    return repr((rows, sorted(book.held_out)))


def test_the_same_seed_gives_the_same_corpus_in_every_process_and_another_another(
    book: Phrasebook, small: Phrasebook
) -> None:
    code = (
        "import sys; from transformer_cli.data.phrasebook import phrasebook\n"
        "assert not {'torch', 'numpy', 'sentencepiece', 'sacrebleu'} & set(sys.modules)\n"
        "import test_phrasebook\n"
        "sys.stdout.write(test_phrasebook.shown(phrasebook(n_pairs=3000, seed=2)))"
    )
    folders = os.pathsep.join(str(Path(__file__).parents[up]) for up in (0, 1))
    environment = {**os.environ, "PYTHONHASHSEED": "4242", "PYTHONPATH": folders}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == shown(small)
    assert small.test != book.test


def test_a_larger_corpus_keeps_the_held_out_sets_and_begins_with_the_smaller_one(book: Phrasebook) -> None:
    """As `drawn` takes for granted of all that are smaller still."""
    fewer = drawn(n_pairs=FEW)
    assert book.train[:FEW] == fewer.train
    assert replace(book, train=fewer.train) == fewer


@pytest.mark.parametrize("share", [0.0, 0.4, 0.8])
def test_as_many_sentences_give_a_reason_as_are_asked_for(small: Phrasebook, share: float) -> None:
    asked = phrasebook(n_pairs=1_000, seed=2, reasons=share)
    taught = sum("reference" in pair.phenomena for pair in map(pairs_module.pair_of, pairs_module.always_taught()))
    for pairs, more in ((asked.train, taught), (asked.valid, 0), (asked.test, 0)):
        reasons = sum("reference" in pair.phenomena for pair in pairs) - more
        assert reasons / len(pairs) == pytest.approx(share, abs=0.07 if share else 0)
    assert 0.05 < sum("reference" in pair.phenomena for pair in small.train) / len(small.train) < 0.11


def test_a_grammar_that_is_exhausted_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    always = pairs_module.always_taught()
    monkeypatch.setattr(pairs_module, "KINDS", ((1.0, lambda random: always[0]),))
    with pytest.raises(DataError, match=r"distinct training pairs .* not 1,000"):
        phrasebook(n_pairs=1000, seed=1)


# ---- targets are plain, sources are as people type


@pytest.mark.parametrize("source", ["de", "en"])
def test_targets_are_lower_case_without_marks_and_with_umlauts(small: Phrasebook, source: str) -> None:
    _, targets = styled(small.train, source=source, seed=1)
    plain = [pair.english if source == "de" else pair.german for pair in small.train]
    assert targets == plain
    assert all(re.fullmatch(r"[a-zäöüß'\" ]+", target) and "  " not in target for target in targets)


def test_sources_differ_from_the_plain_sentence_by_style_alone(small: Phrasebook) -> None:
    sources, _ = styled(small.train, source="de", seed=1)
    for text, pair in zip(sources, small.train, strict=True):
        assert bare(text) == bare(pair.german) or bare(text) == bare(spelled(pair.german))
        assert len(text.split()) == len(pair.german.split())


def test_every_way_of_typing_is_frequent(book: Phrasebook) -> None:
    sources, _ = styled(book.train, source="de", seed=1)
    rows = list(zip(sources, (pair.german for pair in book.train), strict=True))
    with_umlaut = [(text, plain) for text, plain in rows if re.search("[äöü]", plain)]

    def share(holds: list[bool]) -> float:
        return sum(holds) / len(holds)

    assert share([text.islower() for text, _ in rows]) > 0.4
    assert share([text[0].isupper() and not text.isupper() for text, _ in rows]) > 0.4
    assert 0.02 < share([text.isupper() for text, _ in rows]) < 0.06
    assert share([text[-1] in ".?" for text, _ in rows]) > 0.4
    assert share([re.search("[äöüÄÖÜ]", text) is not None for text, _ in with_umlaut]) > 0.5
    assert share([bare(text) == text.lower().strip(".?").replace(",", "") for text, _ in with_umlaut]) > 0.25
    assert share([bare(text) == spelled(plain) for text, plain in with_umlaut]) > 0.05


@pytest.mark.parametrize(
    ("plain", "language", "style", "question", "typed"),
    [
        ("ich möchte ein bier", "de", package.Style("sentence", "kept", True), False, "Ich möchte ein Bier."),
        ("ich möchte ein bier", "de", package.Style("lower", "stripped", False), False, "ich mochte ein bier"),
        ("ich möchte ein bier", "de", package.Style("upper", "spelled", True), False, "ICH MOECHTE EIN BIER."),
        ("ich möchte ein bier", "de", package.Style("upper", "kept", False), False, "ICH MÖCHTE EIN BIER"),
        ("überquert er die straße", "de", package.Style("sentence", "spelled", True), True,
         "Ueberquert er die Strasse?"),
        ("er kennt das wort \"glück\" nicht", "de", package.Style("sentence", "stripped", True), False,
         'Er kennt das Wort "Gluck" nicht.'),
        ("das tier aß den kuchen nicht weil es müde war", "de", package.Style("sentence", "kept", True), False,
         "Das Tier aß den Kuchen nicht, weil es müde war."),
        ("today i drink a beer on monday", "en", package.Style("sentence", "kept", True), False,
         "Today I drink a beer on Monday."),
        ("guten morgen anna", "de", package.Style("sentence", "kept", True), False, "Guten Morgen, Anna."),
        ("hallo ich komme morgen", "de", package.Style("sentence", "kept", True), False, "Hallo, ich komme morgen."),
        ("nein danke", "de", package.Style("lower", "kept", True), False, "nein, danke."),
        ("auf wiedersehen", "de", package.Style("sentence", "kept", True), False, "Auf Wiedersehen."),
        ("excuse me where is anna", "en", package.Style("sentence", "kept", True), True, "Excuse me, where is Anna?"),
        ("i know the dog but i don't know the cat", "en", package.Style("lower", "stripped", True), False,
         "i know the dog, but i don't know the cat."),
    ],
)  # fmt: skip
def test_a_style_types_a_sentence(plain: str, language: str, style: package.Style, question: bool, typed: str) -> None:
    pair = Pair(plain, plain, (), frozenset(("question",)) if question else frozenset())
    assert pair.as_source_target(source=language, style=style) == (typed, plain)


def test_a_style_depends_on_seed_and_index_alone() -> None:
    styles = [package.draw_style(seed=3, index=index) for index in range(200)]
    assert styles == [package.draw_style(seed=3, index=index) for index in range(200)]
    assert styles != [package.draw_style(seed=4, index=index) for index in range(200)]


@pytest.mark.parametrize("size", [800, 1000])
def test_pieces_learnt_from_the_corpus_cut_unhappiness_at_its_parts(book: Phrasebook, size: int) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    source, target = styled(book.train, source="de", seed=1)
    model = BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*source, *target]), model_writer=model, vocab_size=size, model_type="bpe",
        character_coverage=1.0, minloglevel=2, num_threads=1,
    )  # fmt: skip
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    assert processor.encode("unhappiness", out_type=str) == ["▁un", "happ", "iness"]
    assert processor.encode("thankfulness", out_type=str) == ["▁thank", "ful", "ness"]
    assert processor.encode("unhappy", out_type=str)[0] == "▁un"


# ---- alignment


@settings(max_examples=300)
@given(st.integers(0, 10**9))
def test_every_word_of_a_sentence_is_aligned(seed: int) -> None:
    random = Random(seed)
    for _, kind in pairs_module.KINDS:
        pair = pairs_module.pair_of(kind(random))
        german, english = pair.german.split(), pair.english.split()
        assert {i for i, _ in pair.alignment} == set(range(len(german))), pair
        assert {j for _, j in pair.alignment} == set(range(len(english))), pair
        assert list(pair.alignment) == sorted(set(pair.alignment))
