"""The OpenAPI document against the application: generated requests meet no 5xx and no answer outside of its schemas."""

from collections import Counter

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from stub_app import MODEL, StubApp, run
from stub_engine import StubEngine

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def document() -> schemathesis.BaseSchema:
    """The document as the application serves it."""
    return schemathesis.openapi.from_asgi("/openapi.json", StubApp(StubEngine(context=64)).app)


DOCUMENT = document()
OPERATIONS = [
    (path, method, mode)
    for path, operations in DOCUMENT.raw_schema["paths"].items()
    for method, operation in operations.items()
    # Only a body can be wrong in more ways than one: path parameters are any text.
    for mode in (GenerationMode if "requestBody" in operation else [GenerationMode.POSITIVE])
]


NEEDED = {
    "model", "messages", "prompt", "input", "max_tokens", "tokens", "text_1", "text_2", "query", "documents"
}  # fmt: skip


def reach_further(case: Case) -> None:
    """Past the checks that almost no random body passes: names of models, roles, and fields that fit together."""
    if not isinstance(case.body, dict):
        return
    optional = sorted(set(case.body) - NEEDED)
    start = len(repr(case.body))
    kept = {optional[(start + step) % len(optional)] for step in range(start % 3)} if optional else set()
    for name in set(optional) - kept:
        del case.body[name]
    if "model" in case.body:
        case.body["model"] = MODEL
    if isinstance(case.body.get("messages"), list) and start % 4:
        case.body["messages"] = [{"role": "user", "content": "hi"}]


@pytest.mark.slow
@pytest.mark.parametrize(("path", "method", "mode"), OPERATIONS, ids=lambda part: str(getattr(part, "value", part)))
def test_every_answer_is_one_that_the_document_promises(path: str, method: str, mode: GenerationMode) -> None:
    operation = DOCUMENT[path][method]
    statuses: Counter[int] = Counter()

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    def check(case: Case) -> None:
        if mode is GenerationMode.POSITIVE:
            reach_further(case)
        statuses[case.call_and_validate(checks=CHECKS).status_code] += 1

    check()
    if mode is GenerationMode.POSITIVE and "{" not in path:
        assert statuses[200], "no request was served, so nothing was shown"


def test_with_keys_the_document_says_which_routes_need_one() -> None:
    key = "key-of-the-server"

    async def fetch() -> dict:
        async with StubApp(api_key=[key]).client() as client:
            return (await client.get("/openapi.json", headers={"x-api-key": key})).json()

    told = run(fetch())
    assert set(told["components"]["securitySchemes"]) == {"bearer", "header"}
    for path, operations in told["paths"].items():
        for operation in operations.values():
            assert ("401" in operation["responses"]) == (path not in ("/health", "/live", "/ready"))
    plain = run(StubApp().get("/openapi.json")).json()
    assert "securitySchemes" not in plain["components"]
