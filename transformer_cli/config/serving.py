"""`serving:` - what a service takes, and how long it lets anybody wait."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from transformer_cli.config.decoding import MAX_BEAM
from transformer_cli.config.section import PositiveFloat, PositiveInt, Section


class ServingConfig(Section):
    """What `tx serve` accepts; `decoding:` says how it translates."""

    allowed_hosts: list[str] = Field(default=[])
    """Names that the service answers to besides localhost, such as translate.example.org behind a proxy. With none, a
    service that other machines can reach (--host) answers to any name, and one on localhost to no other."""
    max_texts: PositiveInt = 100
    """Most texts of a request."""
    max_characters: PositiveInt = 10_000
    """Most characters of a request, all of its texts and prefixes together."""
    max_beam_size: Annotated[int, Field(gt=0, le=MAX_BEAM)] = 10
    """Largest beam that a request may ask for; decoding.beam_size is always allowed."""
    max_waiting: PositiveInt = 1000
    """Most texts that wait; whoever asks then is told to try again later (status 503)."""
    deadline_s: PositiveFloat = 30.0
    """Seconds after which a request that is not answered is given up (status 503)."""
