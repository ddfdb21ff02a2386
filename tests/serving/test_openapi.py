"""What /openapi.json says is what is served: every address, every field, every refusal."""

from __future__ import annotations

import pytest
import served as _served  # noqa: F401  (skips where the extra is not installed)

jsonschema = pytest.importorskip("jsonschema")


@pytest.fixture(scope="module")
def document(served):
    return served.get("/openapi.json").json


def check(document, path, method, answer, media_type="application/json"):
    """The answer is one that the document has, and nothing else."""
    said = document["paths"][path][method]["responses"][str(answer.status)]["content"]
    assert answer.headers["content-type"].startswith(media_type)
    if media_type == "application/json":
        schema = said[media_type]["schema"] | {"components": document["components"]}
        jsonschema.Draft202012Validator(schema).validate(answer.json)


@pytest.mark.parametrize(
    "body",
    [
        {"texts": ["ich mochte ein bier", ""]},
        {"texts": ["der xyz trinkt"], "beam_size": 3, "n_best": 3, "length_penalty": 0, "alignments": True},
        {"texts": ["ich mochte ein bier", "a"], "prefixes": ["we want", ""]},
        {"texts": ["a"], "prefixes": "we want"},
        {"texts": []},
        {"texts": ["a"] * 101},
        {"beam_size": 5},
    ],
)
def test_translations_and_refusals_are_as_described(served, document, body):
    asked = document["paths"]["/translate"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    validator = jsonschema.Draft202012Validator(asked | {"components": document["components"]})
    answer = served.post("/translate", body)
    assert validator.is_valid(body) == (answer.status in (200, 413))  # how large it may be, the service decides
    check(document, "/translate", "post", answer)


def test_a_field_that_is_not_described_would_be_found(served, document):
    answer = served.post("/translate", {"texts": ["ein bier"]})
    answer.body = answer.body.replace(b'"flags"', b'"marks"')
    with pytest.raises(jsonschema.ValidationError):
        check(document, "/translate", "post", answer)


def test_the_other_addresses_are_as_described(served, document):
    check(document, "/attention", "post", served.post("/attention", {"text": "ein bier"}))
    check(document, "/attention", "post", served.post("/attention", {"text": "a"}, accept="text/html"), "text/html")
    check(document, "/attention", "post", served.post("/attention", {"text": ""}))
    check(document, "/attention", "post", served.send("POST", "/attention", b"{}", {}))
    check(document, "/health", "get", served.get("/health"))
    check(document, "/health", "get", served.get("/health", host="evil.example"))
    check(document, "/metrics", "get", served.get("/metrics"), "text/plain")
    check(document, "/openapi.json", "get", served.get("/openapi.json"))
    check(document, "/", "get", served.get("/"), "text/html")


def test_all_that_is_there_is_described_and_the_other_way_round(serving, document):
    from transformer_cli.serving.app import make_app

    app = make_app(serving(), hosts=None, tell=print)
    served = {(route.path, method.lower()) for route in app.app.routes for method in route.methods - {"HEAD"}}
    parts = {("/page.js", "get"), ("/page.css", "get")}
    assert served - parts == {(path, method) for path, said in document["paths"].items() for method in said}


def test_the_document_is_openapi_whose_references_all_lead_somewhere(document):
    assert document["openapi"].startswith("3.1")
    references = []

    def walk(value):
        if isinstance(value, dict):
            references.extend([value["$ref"]] if "$ref" in value else [])
            value = list(value.values())
        for one in value if isinstance(value, list) else []:
            walk(one)

    walk(document)
    names = {reference.removeprefix("#/components/schemas/") for reference in references}
    assert names == set(document["components"]["schemas"])
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["description"]
