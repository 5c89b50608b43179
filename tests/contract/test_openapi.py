"""The OpenAPI document, written by hand, against what is served: its routes, and the answers to made-up requests."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

import server
from server.errors import internal
from tests.application import Application, both_modes, events_of, function_call, message, reasoning, reply
from tests.e2e import processes
from tests.test_compatibility import served_routes

DOCUMENT = json.loads(Path(server.__file__).parent.joinpath("api", "openapi.json").read_text())
METHODS = ("get", "post", "put", "patch", "delete")

EXAMPLES_MAX = 15
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]

SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS = {found.ok().label: found.ok() for found in SCHEMA.get_all_operations()}
# Where nothing is asked for, nothing can be asked for wrongly.
ASKED = [
    (label, mode)
    for label, operation in OPERATIONS.items()
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    if mode is GenerationMode.POSITIVE or operation.body or list(operation.iter_parameters())
]


async def test_the_document_is_served(application: Application) -> None:
    answer = await application.http.get("/openapi.json")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == DOCUMENT
    assert DOCUMENT["openapi"].startswith("3.1.")


def test_the_document_describes_the_routes_that_are_served() -> None:
    told = {
        f"{method.upper()} {path}" for path, entry in DOCUMENT["paths"].items() for method in METHODS if method in entry
    }
    assert told == served_routes()
    assert len(OPERATIONS) == len(told)


def test_its_version_is_the_packages() -> None:
    project = Path(server.__file__).parent.parent / "pyproject.toml"
    assert f'version = "{DOCUMENT["info"]["version"]}"' in project.read_text()


def test_every_error_has_the_one_form() -> None:
    for response in DOCUMENT["components"]["responses"].values():
        assert response["content"] == {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    error = DOCUMENT["components"]["schemas"]["Error"]["properties"]["error"]
    assert set(error["required"]) == {"message", "type", "param", "code"}
    assert internal().type in error["properties"]["type"]["enum"]


@both_modes
async def test_a_whole_response_is_what_the_document_says(application: Application, stream: bool) -> None:
    usage = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
    output = [reasoning("Hm."), message("Yes."), function_call("f")]
    application.mock.replies = [reply(*output, stream=stream, usage=usage)]
    answer = await application.post({"model": "m", "input": "q", "stream": stream})
    response = events_of(answer.content)[-1]["response"] if stream else answer.json()
    assert {"id", "output", "usage"} <= set(response)
    schema = SCHEMA["/v1/responses/{response_id}"]["GET"]
    kept = await application.http.get(f"/v1/responses/{response['id']}")
    assert kept.json() == response
    schema.validate_response(kept)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server as a process of its own, before a mock that answers whatever it is asked."""
    with contextlib.ExitStack() as opened:
        folder = opened.enter_context(processes.data_folder())
        upstream = opened.enter_context(processes.mock(folder))
        yield opened.enter_context(processes.server(folder, upstream))


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as opened:
        opened.trust_env = False
        yield opened


@pytest.mark.parametrize(("label", "mode"), ASKED, ids=[f"{label} {mode.value}" for label, mode in ASKED])
def test_made_up_requests_are_answered_as_the_document_says(
    url: str, session: requests.Session, label: str, mode: GenerationMode
) -> None:
    operation = OPERATIONS[label]
    asked = 0

    @settings(
        max_examples=EXAMPLES_MAX,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        nonlocal asked
        asked += 1
        answer = case.call(base_url=url, session=session, timeout=20)
        case.validate_response(answer, checks=CHECKS)

    ask()
    assert asked > 0
