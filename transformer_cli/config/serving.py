"""`serving:` - what a service takes, and how long it lets anybody wait."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from transformer_cli.config.decoding import MAX_BEAM
from transformer_cli.config.section import PositiveFloat, PositiveInt, Section


class ServingConfig(Section):
    """What `tx serve` accepts; how it translates, `decoding:` says."""

    allowed_hosts: list[str] = Field(default=[])
    """Names that it may be asked for besides localhost, such as translate.example.org behind a proxy. With none, a
    service that other machines reach (--host) answers to any name, one of localhost to no other."""
    max_texts: PositiveInt = 100
    """Of a request."""
    max_characters: PositiveInt = 10_000
    """Of a request, all of its texts together."""
    max_beam_size: Annotated[int, Field(gt=0, le=MAX_BEAM)] = 10
    """That a request may ask for; decoding.beam_size is always granted."""
    max_waiting: PositiveInt = 1000
    """Texts that wait at most; who comes then is told to come again (status 503)."""
    deadline_s: PositiveFloat = 30.0
    """Seconds until a request that is not answered is given up (status 503)."""
