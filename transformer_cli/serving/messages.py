"""What is asked of the service and what it answers, and how a question is read: all of it, or not at all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator
from starlette.requests import ClientDisconnect, Request

from transformer_cli.config.complaints import complaint
from transformer_cli.config.decoding import MAX_BEAM, MAX_PENALTY
from transformer_cli.config.section import PositiveInt, Section
from transformer_cli.config.serving import ServingConfig
from transformer_cli.data.lines import check_line
from transformer_cli.wording import counted

SLOW_S = 10.0
"""In which the head of a request must be there, then its body; and in which a client reads some of the answer."""
BYTES = 12
"""Of a character at most, as JSON may write it: two escapes of six letters."""
ROOM = 1 << 16
"""Bytes for all that is not text."""


class Message(BaseModel):
    """As strict as a section of the configuration."""

    model_config = Section.model_config


class Search(Message):
    """How to search; the service's own configuration where nothing is said."""

    beam_size: Annotated[int, Field(gt=0, le=MAX_BEAM)] | None = None
    """Hypotheses kept per text; 1 is greedy search."""
    length_penalty: Annotated[float, Field(ge=-MAX_PENALTY, le=MAX_PENALTY)] | None = None
    """Exponent of the length that scores are divided by."""
    n_best: PositiveInt = 1
    """Translations of each text, at most as many as the beam is wide."""
    alignments: bool = False
    """Say which word translates which, by attention."""
    to: str | None = None
    """Into which language, of a model of several."""


class Sentence(NamedTuple):
    """A text to translate, and what its translation begins with."""

    text: str
    prefix: str


class TranslationRequest(Search):
    """Texts to translate."""

    texts: list[str] = Field(min_length=1)
    """A line each, as of `tx translate`: without a line break."""
    prefixes: list[str] | None = None
    """What the translation of each text begins with, whole words; "" for anything."""

    @field_validator("prefixes")
    @classmethod
    def _one_for_each(cls, prefixes: list[str] | None, info: ValidationInfo) -> list[str] | None:
        texts = info.data.get("texts")  # None where they are wrong themselves, which is said first
        if prefixes is not None and texts is not None and len(prefixes) != len(texts):
            raise ValueError(f"{len(prefixes):,} of {counted(len(texts), 'texts')} is not one for each")
        return prefixes

    @property
    def search(self) -> Search:
        return Search.model_validate(self.model_dump(include={*Search.model_fields}))

    @property
    def sentences(self) -> list[Sentence]:
        return [Sentence(*both) for both in zip(self.texts, self.prefixes or [""] * len(self.texts), strict=True)]


class AttentionRequest(Message):
    """A translation to look into."""

    text: str
    """A line."""
    target: str | None = None
    """Its translation; the model's when not given."""
    to: str | None = None
    """Into which language, of a model of several."""


class Candidate(Message):
    """One translation of a text."""

    translation: str
    score: float | None
    """The log-probability divided by the length penalty."""
    log_probability: float | None
    tokens: list[str]
    """Its pieces."""
    truncated: bool
    """Whether it did not end by itself."""
    utility: float | None = None
    """Of minimum Bayes risk: the mean score against the other draws."""


class Translated(Candidate):
    """The best translation of a text."""

    source: str
    flags: list[str]
    """Signs that something is wrong: looped, copied, short, broken, split, refused, unseen, unsure."""
    n_best: list[Candidate]
    """As many as were asked for, the best one included."""
    alignment: list[Annotated[list[int], Field(min_length=2, max_length=2)]] | None = None
    """Pairs of a source word and a target word, counted from 0, where asked for."""


class Translations(Message):
    """One for each text, in order."""

    translations: list[Translated]


class Health(Message):
    """That it works, and what it is."""

    status: str
    model: str
    source: str
    """The language that it reads."""
    target: str
    """And the one that it writes; of several, the first of each."""
    targets: list[str]
    """All that it writes."""
    engine: str
    beam_size: int
    n_best: int
    """The most translations of a text, without another `beam_size`."""
    waiting: int
    """Texts, right now."""


class Failure(Message):
    """Why there is no answer."""

    error: str


class Refused(Exception):
    """A request that gets no answer, and why. status: of HTTP; 503 is worth another try."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


Asked = TypeVar("Asked", bound=Message)


async def read(request: Request, kind: type[Asked], limits: ServingConfig) -> Asked:
    """The body of a request. Refused where it is too large, too slow, or anything but this, with the first reason."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "expected a body of type application/json")
    body = await _body(request, BYTES * limits.max_characters + ROOM)
    try:
        asked = kind.model_validate_json(body)
    except ValidationError as failure:
        raise Refused(400, _reason(failure.errors()[0])) from None
    json.loads(body, object_pairs_hook=_once)
    return asked


def check_texts(limits: ServingConfig, **asked: str | Sequence[str]) -> None:
    """Refused for more than a request may have; DataError for what is no line. asked: its text, or list of texts, by
    the name of each."""
    lines: dict[str, str] = {}
    for name, found in asked.items():
        if isinstance(found, str):
            lines[name] = found
        elif len(found) <= limits.max_texts:
            lines |= {f"{name}[{number}]": line for number, line in enumerate(found)}
        else:
            raise Refused(413, f"{len(found):,} {name}; a request has at most {limits.max_texts:,}")
    if (n := sum(map(len, lines.values()))) > limits.max_characters:
        names = " and ".join(name for name, found in asked.items() if any(found))
        raise Refused(413, f"{names} of {n:,} characters; a request has at most {limits.max_characters:,}")
    for place, line in lines.items():
        check_line(line, place=place)


def _once(fields: list[tuple[str, Any]]) -> None:
    """Refused for two of the same name, of which pydantic would drop the first."""
    names = [name for name, _ in fields]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise Refused(400, f"{twice}: it is there twice")


async def _body(request: Request, most: int) -> bytes:
    too_large = Refused(413, f"a body of more than {most:,} bytes")
    if int(request.headers.get("content-length", 0)) > most:  # before it is sent: the server knows that it is a number
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(SLOW_S):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise too_large
                parts.append(part)
    except TimeoutError:
        raise Refused(408, f"the body of the request was not there within {SLOW_S:g} s") from None
    except ClientDisconnect:
        raise Refused(400, "the body of the request ended too early") from None
    return b"".join(parts)


def _reason(entry: Any) -> str:
    """The first thing that is wrong, where it is."""
    if entry["type"] == "json_invalid":
        return f"the body is not JSON in UTF-8: {entry['ctx']['error']}"
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in entry["loc"]).lstrip(".")
    return f"{place or 'the body'}: {complaint(entry)}"
