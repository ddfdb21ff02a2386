"""JSON files that know whether they are what was written."""

from __future__ import annotations

import codecs
import hashlib
import json
from typing import Any

from transformer_cli.files import json_text


def sealed(fields: dict[str, Any]) -> bytes:
    """A JSON file that carries the sha256 of itself, without that last field."""
    digest = hashlib.sha256(json_text(fields).encode("utf-8")).hexdigest()
    return json_text({**fields, "sha256": digest}).encode("utf-8")


def unsealed(data: bytes) -> dict[str, Any] | None:
    """The fields of a file that `sealed` made; None where a bit of it is another, but for a byte order mark."""
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        fields = json.loads(data)
        if isinstance(fields, dict) and "sha256" in fields:
            del fields["sha256"]
            # The digest alone would let through what JSON does not see, such as a changed blank.
            return fields if sealed(fields) == data else None
    except (ValueError, RecursionError):
        pass
    return None
