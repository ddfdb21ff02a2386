"""The words of the phrasebook: one line per lemma, German and English side by side.

Ambiguity is decided here. One German word has one English word and the other way round (only `du` for "you", only
`möchte` for "want", only `lehrerin` for "teacher"), and of two forms that differ by an umlaut alone only one is here
(`mochte` can only be `möchte`), or the words around them tell (`meine tochter`, `zwei töchter`).
"""

from __future__ import annotations

from dataclasses import dataclass

# gender, singular, plural, English [irregular plural] : what it is. w is a masculine noun of the weak declension
# (der kollege, den kollegen); - says that there is no plural. "kin" may be somebody's, "person" alone may not;
# a "relative" is never just anybody; the "common" are drawn twice as often.
_NOUNS = """
m mann männer man/men : person
m bruder brüder brother : person kin relative
m vater - father : person kin relative
m sohn söhne son : person kin relative
m arzt ärzte doctor : person kin
m freund freunde friend : person kin
w nachbar nachbarn neighbor : person kin
w student studenten student : person
w kollege kollegen colleague : person kin
f frau frauen woman/women : person
f schwester schwestern sister : person kin relative
f mutter - mother : person kin relative
f tochter töchter daughter : person kin relative
f lehrerin lehrerinnen teacher : person kin
n kind kinder child/children : person kin common
n mädchen mädchen girl : person common
n tier tiere animal : animal
n pferd pferde horse : animal washable
n schwein schweine pig : animal washable
m hund hunde dog : animal washable pet
m vogel vögel bird : animal pet
m fuchs füchse fox : animal
f katze katzen cat : animal pet
f maus mäuse mouse/mice : animal pet
f kuh kühe cow : animal washable
f ente enten duck : animal pet
n bier biere beer : drink common
m saft säfte juice : drink
m wein weine wine : drink
m kaffee kaffees coffee : drink
m tee tees tea : drink
f limonade limonaden lemonade : drink
m apfel äpfel apple : food sweet
m kuchen kuchen cake : food sweet
m fisch - fish : food
f birne birnen pear : food sweet
f suppe suppen soup : food
f tomate tomaten tomato/tomatoes : food
n ei eier egg : food common
n brötchen brötchen roll : food
n auto autos car : thing machine washable
n fahrrad fahrräder bicycle : thing machine washable
n bild bilder picture : thing light
n hemd hemden shirt : thing light washable
m stuhl stühle chair : thing machine heavy
m tisch tische table : thing machine heavy
m koffer koffer suitcase : thing light heavy openable
m hut hüte hat : thing light
m schlüssel schlüssel key : thing light
f lampe lampen lamp : thing light machine
f tasche taschen bag : thing light heavy openable
f kiste kisten box : light heavy openable
f jacke jacken jacket : thing light washable
n paket pakete package : light heavy openable
n fenster fenster window : openable machine
f tür türen door : openable machine
n buch bücher book : thing light text common
m brief briefe letter : light text written
f geschichte geschichten story : text written
f zeitung zeitungen newspaper : thing light text
n wort - word : word
m euro euro euro : money
n haus - house : place site common
n zimmer - room : place tidy site common
n hotel - hotel : place goal site
m garten - garden : place tidy site
m park - park : place goal
m wald - forest : place site
m keller - basement : place tidy site
f küche - kitchen : place tidy site
f schule - school : place goal site
f stadt - city : place town
n dorf - village : place town
m bahnhof - station : goal
m markt - market : goal
f straße - street : way wide common
f brücke - bridge : way goal wide
f wiese - meadow : way
m platz - square : way wide
m fluss - river : way goal wide
n feld - field : way common
n glück - happiness : mood own felt
n unglück - unhappiness : mood own
f freundlichkeit - kindness : mood own felt
f unfreundlichkeit - unkindness : mood own felt
f traurigkeit - sadness : mood own felt
f faulheit - laziness : mood own felt
f krankheit - illness : mood own felt
f müdigkeit - tiredness : mood own felt
f dunkelheit - darkness : mood felt
"""

# [prefix+]infinitive | du, er, past | English: past | who does it | what it is done to. - is what the rules give;
# ! in place of a past: the verb is not used in the past (English "read" would not show it).
_VERBS = """
kaufen      | -                            | buy: bought       | person        | thing food drink
verkaufen   | -                            | sell: sold        | person        | thing animal
suchen      | -                            | look for          | person animal | thing animal person light
finden      | findest findet fand          | find: found       | person animal | thing animal light
brauchen    | -                            | need              | person        | thing light felt
haben       | hast hat hatte               | have: had         | person        | thing animal pet
sehen       | siehst sieht sah             | see: saw          | person animal | thing animal person way
kennen      | kennst kennt kannte          | know: knew        | person        | person town word text wide
besuchen    | -                            | visit             | person        | person town
lieben      | -                            | love              | person        | animal person town felt
lesen       | liest liest !                | read              | person        | text
schreiben   | schreibst schreibt schrieb   | write: wrote      | person        | written word
verstehen   | verstehst versteht verstand  | understand: understood | person   | person text word felt
trinken     | trinkst trinkt trank         | drink: drank      | person        | drink
essen       | isst isst aß                 | eat: ate          | person        | food
tragen      | trägst trägt trug            | carry             | person        | light heavy
waschen     | wäschst wäscht wusch         | wash              | person        | washable
reparieren  | -                            | repair            | person        | machine
malen       | -                            | paint             | person        | animal person place wide
überqueren  | -                            | cross             | person animal | way
betreten    | betrittst betritt betrat     | enter             | person animal | site
an+rufen    | rufst ruft rief              | call              | person        | person
ein+laden   | lädst lädt lud               | invite            | person        | person
ab+holen    | -                            | pick up           | person        | person light
mit+bringen | bringst bringt brachte       | bring: brought    | person        | food drink light
auf+machen  | -                            | open              | person        | openable
zu+machen   | -                            | close             | person        | openable
auf+räumen  | -                            | clean up          | person        | tidy
weg+werfen  | wirfst wirft warf            | throw away: threw | person        | light food
auf+stehen  | stehst steht stand           | get up: got       | person        |
auf+wachen  | -                            | wake up: woke     | person animal |
ein+schlafen | schläfst schläft schlief    | fall asleep: fell | person animal |
an+kommen   | kommst kommt kam             | arrive            | person        |
zurück+kommen | kommst kommt kam           | come back: came   | person animal |
ein+kaufen  | -                            | go shopping: went | person        |
schlafen    | schläfst schläft schlief     | sleep: slept      | person animal |
arbeiten    | -                            | work              | person        |
warten      | -                            | wait              | person animal |
spielen     | -                            | play              | person animal |
gehen       | gehst geht ging              | go: went          | person animal |
fahren      | fährst fährt fuhr            | drive: drove      | person        |
laufen      | läufst läuft lief            | run: ran          | person animal |
helfen      | hilfst hilft half            | help              | person        | person animal
danken      | -                            | thank             | person        | person
folgen      | -                            | follow            | person animal | person animal
geben       | gibst gibt gab               | give: gave        | person        | thing food drink
zeigen      | -                            | show              | person        | thing animal text
schicken    | -                            | send: sent        | person        | light text
lächeln     | -                            | smile             | person        |
antworten   | -                            | answer            | person        |
sprechen    | sprichst spricht sprach      | speak: spoke      | person        |
machen      | -                            | make: made        | mood          | person
möchten     | möchtest möchte !            | want              | person        | drink food thing
kosten      | kostest kostet !             | cost              | thing food drink | money
kommen      | kommst kommt kam             | come: came        | person        |
wohnen      | -                            | live              | person        |
sein        | bist ist war                 | be: was           | person        |
"""

# German | English | the nouns it may stand before. An adjective that loses its e (dunkel, dunkle) gives both stems.
_ADJECTIVES = """
neu           | new       | thing text place
alt           | old       | person animal thing text place
jung          | young     | person animal
klein         | small     | thing drink food place light way
groß          | big       | thing drink food place light way
schön         | beautiful | place thing way
teuer/teur    | expensive | thing drink
billig        | cheap     | thing drink
rot           | red       | thing
blau          | blue      | thing
grün          | green     | thing
weiß          | white     | thing common
schwarz       | black     | thing common
schwer        | heavy     | light heavy
schmutzig     | dirty     | thing place
kalt          | cold      | drink food
warm          | warm      | drink food common
frisch        | fresh     | food common
süß           | sweet     | sweet common
gut           | good      | food drink text
lang          | long      | wide common
breit         | wide      | wide common
eng           | narrow    |
gefährlich    | dangerous | wide common
dunkel/dunkl  | dark      | place
hungrig       | hungry    | person animal
müde/müd      | tired     | person animal
krank         | ill       |
schwach       | weak      | person animal
faul          | lazy      | person animal
traurig       | sad       | person animal
glücklich     | happy     | person
unglücklich   | unhappy   |
freundlich    | kind      | person
unfreundlich  | unkind    | person common
"""


@dataclass(frozen=True, eq=False)
class Noun:
    """A noun of both languages; gender is m, f or n, and `weak` the declension of `der kollege, den kollegen`."""

    german: str
    german_plural: str | None
    gender: str
    weak: bool
    english: str
    english_plural: str
    kinds: frozenset[str]

    @property
    def english_pronoun(self) -> str:
        """he or she for a person of known sex, it for all else."""
        if "person" not in self.kinds or self.german == "kind":
            return "it"
        return "he" if self.gender == "m" else "she"


@dataclass(frozen=True, eq=False)
class Verb:
    """A verb of both languages; German present in the order of `PERSONS`, German past without `du`."""

    german: str
    prefix: str
    present: tuple[str, ...]
    past: tuple[str, str] | None
    english: str
    english_third: str
    english_past: str
    particle: tuple[str, ...]
    subjects: tuple[str, ...]
    objects: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Adjective:
    """An adjective of both languages; `stem` carries the German endings."""

    german: str
    stem: str
    english: str
    kinds: frozenset[str]


def _english_plural(noun: str) -> str:
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


def _third_person(verb: str) -> str:
    if verb == "have":
        return "has"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ies"
    return verb + ("es" if verb.endswith(("s", "x", "o", "ch", "sh")) else "s")


def _regular_past(verb: str) -> str:
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ied"
    return verb + ("d" if verb.endswith("e") else "ed")


def _nouns() -> dict[str, Noun]:
    nouns = {}
    for line in _NOUNS.strip().split("\n"):
        form, kinds = line.split(" : ")
        gender, german, plural, english = form.split()
        singular, _, irregular = english.partition("/")
        nouns[german] = Noun(
            german=german,
            german_plural=None if plural == "-" else plural,
            gender="m" if gender == "w" else gender,
            weak=gender == "w",
            english=singular,
            english_plural=irregular or _english_plural(singular),
            kinds=frozenset(kinds.split()),
        )
    return nouns


def _verbs() -> dict[str, Verb]:
    verbs = {}
    for line in _VERBS.strip().split("\n"):
        german, forms, english, subjects, objects = (column.strip() for column in line.split("|"))
        prefix, plus, infinitive = german.rpartition("+")
        words, _, irregular = english.partition(": ")
        head, *particle = words.split()
        present, past = _conjugate(infinitive, forms)
        verbs[prefix + infinitive] = Verb(
            german=prefix + infinitive,
            prefix=prefix if plus else "",
            present=present,
            past=past,
            english=head,
            english_third=_third_person(head),
            english_past=irregular or _regular_past(head),
            particle=tuple(particle),
            subjects=tuple(subjects.split()),
            objects=tuple(objects.split()),
        )
    return verbs


def _conjugate(infinitive: str, forms: str) -> tuple[tuple[str, ...], tuple[str, str] | None]:
    """Present (ich, du, er, wir, sie) and past (singular, plural) of a German verb without its prefix."""
    stem = infinitive.removesuffix("n").removesuffix("e")
    first = stem[:-2] + "le" if infinitive.endswith("eln") else stem + "e"
    link = "e" if stem.endswith(("t", "d")) else ""
    second, third, past = (stem + link + "st", stem + link + "t", stem + link + "te")
    if forms != "-":
        second, third, past = forms.split()
    plural = past + ("n" if past.endswith("e") else "en")
    if infinitive == "sein":
        return ("bin", second, third, "sind", "sind"), (past, plural)
    return (first, second, third, infinitive, infinitive), None if past == "!" else (past, plural)


def _adjectives() -> dict[str, Adjective]:
    adjectives = {}
    for line in _ADJECTIVES.strip().split("\n"):
        german, english, kinds = (column.strip() for column in line.split("|"))
        base, _, stem = german.partition("/")
        adjectives[base] = Adjective(base, stem or base, english, frozenset(kinds.split()))
    return adjectives


NOUNS = _nouns()
VERBS = _verbs()
ADJECTIVES = _adjectives()


def verbs(names: str) -> tuple[Verb, ...]:
    """The verbs of these infinitives, separated by blanks."""
    return tuple(VERBS[name] for name in names.split())
