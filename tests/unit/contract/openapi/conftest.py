"""Small documents around one operation, and what becomes of it."""

import pytest

from counterseal.contract.lint import examine
from counterseal.contract.sources.openapi import contracts_from_openapi
from counterseal.errors import Severity

SERVER = "https://api.example.org/v1"


def document(*, method="get", path="/things", openapi="3.0.3", operation=None, **root):
    made = {"summary": "List things", "operationId": "listThings", **(operation or {})}
    return {
        "openapi": openapi,
        "info": {"title": "Thing Shop", "version": "1"},
        "servers": [{"url": SERVER}],
        "paths": {path: {method: made}},
        **root,
    }


@pytest.fixture
def importing():
    """Import a document around one operation; the tool that it gives passes lint."""

    def importing(method="get", path="/things", *, base_url=None, root=None, **operation):
        made = document(method=method, path=path, operation=operation, **(root or {}))
        imported = contracts_from_openapi(made, base_url=base_url)
        assert imported.left_out == ()
        (tool,) = imported.tools
        contract, problems = examine(tool.data)
        assert [p for p in problems if p.severity is Severity.ERROR] == []
        tool_data = tool.data
        assert contract.http.url == tool_data["http"]["url"]
        return tool

    return importing


@pytest.fixture
def refusing():
    """Why a document's only operation is left out."""

    def refusing(method="get", path="/things", *, base_url=None, root=None, **operation):
        made = document(method=method, path=path, operation=operation, **(root or {}))
        imported = contracts_from_openapi(made, base_url=base_url)
        assert imported.tools == ()
        (left,) = imported.left_out
        return left.reason

    return refusing


@pytest.fixture
def taking(importing):
    """The input schema of an operation that takes this as its JSON body."""

    def taking(schema, *, openapi="3.0.3", required=True, **schemas):
        root = {"openapi": openapi, "components": {"schemas": schemas}}
        body = {"required": required, "content": {"application/json": {"schema": schema}}}
        return importing("post", root=root, requestBody=body)

    return taking


def body(schema, kind="application/json", *, required=True):
    return {"required": required, "content": {kind: {"schema": schema}}}


def schema_of(tool):
    return tool.data["affordance"]["input_schema"]


def said(tool, pointer=None):
    return [one.text for one in tool.reviews if pointer in (None, one.pointer)]
