"""The service described for programs, as OpenAPI 3.1; what it is asked and answers comes from `messages.py`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from transformer_cli import __version__
from transformer_cli.serving.messages import AttentionRequest, Failure, Health, TranslationRequest, Translations

REFERENCE = "#/components/schemas/{model}"
REFUSALS = {
    400: "Not JSON, or not what was expected.",
    403: "By another name than the service's, or from a page of another.",
    408: "The body took too long.",
    413: "More than a request may have.",
    415: "Not of type application/json.",
    500: "The model computes no finite numbers, or there is a bug.",
    503: "Too many wait, or it took too long: Retry-After says in how many seconds to come again.",
}
"""What may be said to a request with a body."""


def document() -> dict[str, Any]:
    """As /openapi.json has it."""
    models = (TranslationRequest, Translations, AttentionRequest, Health, Failure)
    _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=REFERENCE)
    return {
        "openapi": "3.1.0",
        "info": {"title": "tx serve", "version": __version__},
        "paths": {
            "/translate": {
                "post": _asks(TranslationRequest, "Translate texts.", {"application/json": _schema(Translations)})
            },
            "/attention": {
                "post": _asks(
                    AttentionRequest,
                    "All attention of a translation: as `tx visualize-attention --json`, or its page.",
                    {"application/json": {"schema": {"type": "object"}}, "text/html": {"schema": {"type": "string"}}},
                )
            },
            "/health": {"get": _tells("That it works, and what it is.", "application/json", _schema(Health))},
            "/metrics": {"get": _tells("Counts for Prometheus.", "text/plain", {"schema": {"type": "string"}})},
            "/openapi.json": {
                "get": _tells("This description.", "application/json", {"schema": {"type": "object"}}),
            },
            "/": {"get": _tells("A page to type into.", "text/html", {"schema": {"type": "string"}})},
        },
        "components": {"schemas": schemas["$defs"]},
    }


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return {"schema": {"$ref": REFERENCE.format(model=model.__name__)}}


def _refusals(statuses: list[int]) -> dict[str, Any]:
    content = {"application/json": _schema(Failure)}
    return {str(status): {"description": REFUSALS[status], "content": content} for status in statuses}


def _asks(model: type[BaseModel], summary: str, content: dict[str, Any]) -> dict[str, Any]:
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": _schema(model)}},
        "responses": {"200": {"description": "Done.", "content": content}, **_refusals(list(REFUSALS))},
    }


def _tells(summary: str, media_type: str, content: dict[str, Any]) -> dict[str, Any]:
    return {
        "summary": summary,
        "responses": {"200": {"description": "Done.", "content": {media_type: content}}, **_refusals([403])},
    }
