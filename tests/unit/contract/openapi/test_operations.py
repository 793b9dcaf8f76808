"""Operations as contracts: what is asked of a model, what is sent, and what can't be expressed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal.contract.sources.openapi import contracts_from_openapi
from counterseal.contract.sources.openapi.arguments import secret_name
from counterseal.errors import ContractError
from counterseal.execution.secrets import secret_variable

from .conftest import SERVER, body, document, said, schema_of

TEXT = {"type": "string", "maxLength": 9, "description": "A text."}


def parameter(name, place="query", schema=None, **more):
    made = {"name": name, "in": place, "schema": schema or TEXT, "description": f"The {name}."}
    return {**made, **({"required": True} if place == "path" else {}), **more}


# --- where arguments go ---------------------------------------------------------------------------


def test_parameters_and_body_fields_become_arguments(importing):
    tool = importing(
        "put",
        "/shops/{shopId}/things/{thing-id}.json",
        parameters=[
            parameter("shopId", "path"),
            parameter("thing-id", "path", {"type": "integer"}),
            parameter("filter[tag]", schema={"type": "array", "items": TEXT, "maxItems": 3}),
            parameter("X-Trace", "header", required=True),
        ],
        requestBody=body({"type": "object", "properties": {"name": TEXT}, "required": ["name"]}),
    )
    assert tool.data["http"] == {
        "method": "PUT",
        "url": f"{SERVER}/shops/{{shopId}}/things/{{thing_id}}.json",
        "query": {"filter[tag]": "{filter_tag}"},
        "headers": {"X-Trace": "{X_Trace}"},
        "body": {"name": "{name}"},
    }
    schema = schema_of(tool)
    assert list(schema["properties"]) == ["shopId", "thing_id", "filter_tag", "X_Trace", "name"]
    assert schema["required"] == ["shopId", "thing_id", "X_Trace", "name"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["shopId"]["pattern"] == r"^[^/\\]+$"
    assert schema["properties"]["thing_id"] == {"type": "integer", "description": "The thing-id."}


def test_parameters_of_the_path_hold_unless_the_operation_describes_them_anew(importing):
    made = document(path="/a/{x}", operation={"parameters": [parameter("q", description="Own.")]})
    made["paths"]["/a/{x}"]["parameters"] = [parameter("x", "path"), parameter("q"), parameter("r")]
    (tool,) = contracts_from_openapi(made).tools
    properties = schema_of(tool)["properties"]
    assert list(properties) == ["x", "q", "r"]
    assert properties["q"]["description"] == "Own. A text."


def test_names_that_clash_say_where_they_belong(importing):
    tool = importing(
        "post",
        "/things/{id}",
        parameters=[parameter("id", "path"), parameter("id"), parameter("ID", "header")],
        requestBody=body({"type": "object", "properties": {"id": TEXT, "body_id": TEXT}}),
    )
    assert list(schema_of(tool)["properties"]) == [
        "id",
        "query_id",
        "header_ID",
        "body_id",
        "body_body_id",
    ]
    assert tool.data["http"]["body"] == {"id": "{body_id}", "body_id": "{body_body_id}"}


def test_an_undescribed_path_placeholder_is_an_argument_to_review(importing):
    tool = importing(path="/things/{key}")
    assert schema_of(tool)["required"] == ["key"]
    assert any("does not describe" in text for text in said(tool, ""))


def test_headers_that_the_specification_reserves_are_no_arguments(importing):
    names = ("Accept", "Content-Type", "authorization")
    tool = importing(parameters=[parameter(name, "header") for name in names])
    assert schema_of(tool)["properties"] == {}


@pytest.mark.parametrize(
    ("more", "between"),
    [
        ({"explode": False}, "commas"),
        ({"style": "pipeDelimited"}, "|"),
        ({"style": "spaceDelimited"}, "spaces"),
        ({"in": "header"}, "commas"),
    ],
)
def test_a_list_that_is_written_as_one_text_is_asked_for_as_one(importing, more, between):
    listed = parameter("ids", schema={"type": "array", "items": {"type": "integer"}}, **more)
    argument = schema_of(importing(parameters=[listed]))["properties"]["ids"]
    assert argument["type"] == "string"
    assert argument["description"].endswith(f"separated by {between}.")


def test_a_body_that_is_no_plain_object_is_one_argument(importing):
    for schema in (
        {"type": "array", "items": TEXT},
        {"oneOf": [{"type": "object", "properties": {"a": TEXT}}, {"type": "string"}]},
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"type": "object"},
    ):
        tool = importing("post", requestBody=body(schema))
        assert tool.data["http"]["body"] == "{body}"
        assert schema_of(tool)["required"] == ["body"]


def test_a_form_is_sent_as_a_form(importing):
    kind = "application/x-www-form-urlencoded"
    schema = {"type": "object", "properties": {"To": TEXT, "Body": TEXT}, "required": ["To"]}
    tool = importing("post", requestBody=body(schema, kind))
    assert tool.data["http"]["form"] == {"To": "{To}", "Body": "{Body}"}


def test_another_kind_of_json_keeps_its_name(importing):
    kind = "application/merge-patch+json; charset=utf-8"
    schema = {"type": "object", "properties": {"a": TEXT}}
    tool = importing("patch", requestBody=body(schema, kind))
    assert tool.data["http"]["headers"] == {"Content-Type": "application/merge-patch+json"}


def test_what_only_adds_to_an_operation_is_left_out_with_a_note(importing):
    tool = importing(
        parameters=[
            parameter("session", "cookie"),
            parameter("filter", schema={"type": "object"}, style="deepObject"),
            {"name": "q", "in": "query", "content": {"application/json": {}}},
        ],
        callbacks={"done": {}},
        requestBody=body({"type": "string"}, required=False),
    )
    assert schema_of(tool)["properties"] == {}
    notes = " ".join(said(tool, ""))
    for name in ("session", "filter", "q", "done", "body"):
        assert name in notes


def test_an_idempotency_header_of_the_api_carries_the_key(importing):
    header = parameter("X-Idempotency-Key", "header", required=True)
    tool = importing("post", parameters=[header])
    assert tool.data["idempotency"] == {"key_header": "X-Idempotency-Key"}
    assert schema_of(tool)["properties"] == {}


@pytest.mark.parametrize("path", ["/ask", "/käse/{x} y", "/a:b@c"])
def test_a_path_is_written_as_a_url_takes_it(importing, path):
    tool = importing(path=path)
    assert tool.data["http"]["url"].isascii()
    assert " " not in tool.data["http"]["url"]


# --- credentials ----------------------------------------------------------------------------------

SCHEMES = {
    "key": {"type": "apiKey", "in": "header", "name": "X-Key"},
    "query key": {"type": "apiKey", "in": "query", "name": "key"},
    "HTTPBearer": {"type": "http", "scheme": "Bearer"},
    "basic": {"type": "http", "scheme": "basic"},
    "oauth": {"type": "oauth2", "flows": {}},
    "oidc": {"type": "openIdConnect", "openIdConnectUrl": "https://x"},
    "cookie": {"type": "apiKey", "in": "cookie", "name": "sid"},
    "digest": {"type": "http", "scheme": "digest"},
    "tls": {"type": "mutualTLS"},
}
SECURED = {"components": {"securitySchemes": SCHEMES}}


@pytest.mark.parametrize(
    ("scheme", "place", "value"),
    [
        ("key", "headers", {"X-Key": "{secret:api_example_org_key_839f41f7}"}),
        ("query key", "query", {"key": "{secret:api_example_org_query_key_839f41f7}"}),
        (
            "HTTPBearer",
            "headers",
            {"Authorization": "Bearer {secret:api_example_org_httpbearer_839f41f7}"},
        ),
        ("basic", "headers", {"Authorization": "Basic {secret:api_example_org_basic_839f41f7}"}),
        ("oauth", "headers", {"Authorization": "Bearer {secret:api_example_org_oauth_839f41f7}"}),
        ("oidc", "headers", {"Authorization": "Bearer {secret:api_example_org_oidc_839f41f7}"}),
    ],
)
def test_a_credential_is_a_secret_and_no_argument(importing, scheme, place, value):
    tool = importing(root=SECURED, security=[{scheme: ["things:read"]}])
    assert tool.data["http"][place] == value
    assert tool.data["secrets"] == [next(iter(value.values())).partition(":")[2].rstrip("}")]
    assert schema_of(tool)["properties"] == {}
    (told,) = said(tool, "/secrets")
    assert "things:read" in told or scheme == "basic"


def test_the_first_alternative_that_can_be_expressed_is_taken(importing):
    tool = importing(
        root=SECURED, security=[{"cookie": []}, {"key": [], "oauth": []}, {"basic": []}]
    )
    assert tool.data["secrets"] == [
        "api_example_org_key_839f41f7",
        "api_example_org_oauth_839f41f7",
    ]
    assert said(tool, "/http/headers") == ["one of 3 ways to authenticate"]


def test_a_secret_belongs_to_a_host_whatever_the_document_calls_itself(importing):
    hosts = ("api.example.org", "api-example.org", "api.example.com", "API.example.org")
    names = []
    for host in hosts:
        root = {**SECURED, "servers": [{"url": f"https://{host}"}]}
        names += importing(root=root, security=[{"key": []}]).data["secrets"]
    assert names[0] == names[3] == "api_example_org_key_839f41f7"
    assert len(set(names)) == 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("api.dev", "acme_com_token"), ("api.dev.acme.com", "token")),
        (("a-b", "token"), ("a.dash.b", "token")),
        (("a-b", "token"), ("a_dash_b", "token")),
        (("a" * 200 + ".org", "token"), ("a" * 200 + ".com", "token")),
    ],
)
def test_no_host_can_be_named_so_that_it_gets_the_secret_of_another(one, other):
    assert secret_name(*one) != secret_name(*other)


@given(st.from_regex(r"[A-Za-z0-9._-]{1,90}", fullmatch=True), st.text(max_size=200))
def test_every_secret_of_a_host_has_a_name_that_an_environment_variable_can_hold(host, name):
    assert secret_variable(secret_name(host, name))


def test_an_operation_may_lift_what_the_document_demands(importing):
    root = {**SECURED, "security": [{"key": []}]}
    assert "secrets" in importing(root=root).data
    assert "secrets" not in importing(root=root, security=[]).data


def test_a_parameter_that_sounds_like_a_credential_becomes_a_secret(importing):
    tool = importing(parameters=[parameter("api_key"), parameter("X-Auth-Token", "header")])
    http = tool.data["http"]
    assert http["query"] == {"api_key": "{secret:api_example_org_api_key_839f41f7}"}
    assert http["headers"] == {"X-Auth-Token": "{secret:api_example_org_x_auth_token_839f41f7}"}


def test_a_field_that_sounds_like_a_credential_is_no_argument(importing):
    schema = {
        "type": "object",
        "properties": {"name": TEXT, "password": TEXT, "old_password": TEXT},
        "required": ["name", "password"],
    }
    tool = importing("post", requestBody=body(schema))
    assert list(schema_of(tool)["properties"]) == ["name"]
    assert tool.data["http"]["body"] == {
        "name": "{name}",
        "password": "{secret:api_example_org_password_839f41f7}",
    }
    assert any("old_password" in text for text in said(tool, ""))


# --- where to -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("servers", "url", "egress"),
    [
        ([{"url": "https://a.example.org/"}], "https://a.example.org/things", ["a.example.org"]),
        (
            [{"url": "http://a.example.org"}, {"url": "https://b.example.org:8443/x"}],
            "https://b.example.org:8443/x/things",
            ["b.example.org:8443"],
        ),
        (
            [
                {
                    "url": "https://{r}.example.org/{v}",
                    "variables": {"r": {"default": "eu"}, "v": {"default": "v2"}},
                }
            ],
            "https://eu.example.org/v2/things",
            ["eu.example.org"],
        ),
        ([{"url": "//a.example.org/x"}], "https://a.example.org/x/things", ["a.example.org"]),
    ],
)
def test_the_server_is_the_documents(importing, servers, url, egress):
    tool = importing(root={"servers": servers})
    assert tool.data["http"]["url"] == url
    assert tool.data["egress"] == egress


def test_a_server_of_the_operation_goes_before_the_documents(importing):
    tool = importing(servers=[{"url": "https://own.example.org"}])
    assert tool.data["egress"] == ["own.example.org"]


def test_a_document_that_names_a_private_address_is_to_be_looked_at_twice(importing):
    private = "https://10.0.0.7"
    assert said(importing(root={"servers": [{"url": private}]}), "/egress")
    assert not said(importing(base_url=private), "/egress")


def test_a_given_base_url_goes_before_all(importing):
    tool = importing(base_url="http://localhost:8000/api/")
    assert tool.data["http"]["url"] == "http://localhost:8000/api/things"
    assert tool.data["egress"] == ["localhost:8000", "127.0.0.1:8000", "[::1]:8000"]


@pytest.mark.parametrize("url", ["api.example.org", "ftp://x", "https://{x}/", "https://x/?a=b"])
def test_a_base_url_that_is_none_is_refused(url):
    with pytest.raises(ContractError, match="base URL"):
        contracts_from_openapi(document(), base_url=url)


# --- what is left out -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("why", "method", "path", "operation", "root"),
    [
        (
            "multipart/form-data",
            "post",
            "/a",
            {"requestBody": body(TEXT, "multipart/form-data")},
            {},
        ),
        ("application/xml", "post", "/a", {"requestBody": body(TEXT, "application/xml")}, {}),
        ("a cookie", "get", "/a", {"parameters": [parameter("sid", "cookie", required=True)]}, {}),
        (
            "an object, f,",
            "get",
            "/a",
            {"parameters": [parameter("f", schema={"type": "object"}, required=True)]},
            {},
        ),
        ("matrix", "get", "/a/{x}", {"parameters": [parameter("x", "path", style="matrix")]}, {}),
        ("outside", "get", "/a", {"parameters": [{"$ref": "other.yaml#/x"}]}, {}),
        ("outside", "post", "/a", {"requestBody": body({"$ref": "https://x.org/s.json"})}, {}),
        ("not there", "post", "/a", {"requestBody": body({"$ref": "#/components/schemas/X"})}, {}),
        ("circle", "get", "/a", {"parameters": [{"$ref": "#/paths/~1a/get/parameters/0"}]}, {}),
        ("holds a query", "get", "/a?b=c", {}, {}),
        ("digest", "get", "/a", {"security": [{"digest": []}]}, SECURED),
        ("cookie", "get", "/a", {"security": [{"cookie": []}]}, SECURED),
        ("mutualTLS", "get", "/a", {"security": [{"tls": []}]}, SECURED),
        ("twice", "get", "/a", {"security": [{"basic": [], "oauth": []}]}, SECURED),
        ("--base-url", "get", "/a", {}, {"servers": [{"url": "/v3"}]}),
        ("--base-url", "get", "/a", {}, {"servers": []}),
        (
            "unencrypted",
            "get",
            "/a",
            {"security": [{"key": []}]},
            {**SECURED, "servers": [{"url": "http://api.example.org"}]},
        ),
        (
            "credential",
            "post",
            "/a",
            {
                "requestBody": body(
                    {
                        "type": "object",
                        "properties": {
                            "login": {
                                "type": "object",
                                "properties": {"password": TEXT},
                                "required": ["password"],
                            }
                        },
                    }
                )
            },
            {},
        ),
    ],
)
def test_what_can_not_be_expressed_is_left_out_with_the_reason(
    refusing, why, method, path, operation, root
):
    assert why in refusing(method, path, root=root, **operation)


def test_requests_that_no_tool_makes_are_named():
    made = document(method="options", webhooks={"thingSold": {"post": {}}})
    made["paths"]["/trace"] = {"trace": {}}
    left = {one.what: one.reason for one in contracts_from_openapi(made).left_out}
    assert list(left) == ["OPTIONS /things", "TRACE /trace", "webhook thingSold"]


@pytest.mark.parametrize("data", [{}, {"swagger": "2.0"}, {"openapi": "2.0"}, {"openapi": 3}])
def test_what_is_no_openapi_3_is_refused(data):
    with pytest.raises(ContractError, match=r"Swagger 2|not an OpenAPI 3"):
        contracts_from_openapi(data)


# --- identity and texts ---------------------------------------------------------------------------


def test_names_are_made_to_fit_and_differ_whatever_their_case():
    made = document(operation={"operationId": "things/get All!"})
    for number, name in enumerate(["listThings", "LISTTHINGS", "", None, "..", "x" * 200]):
        made["paths"][f"/n{number}/{{id}}"] = {"get": {"operationId": name, "summary": "List"}}
    names = [tool.name for tool in contracts_from_openapi(made).tools]
    assert names == [
        "things_get_All",
        "listThings",
        "LISTTHINGS_2",
        "get_n_2_id",
        "get_n_3_id",
        "get_n_4_id",
        "x" * 64,
    ]


def test_a_strangers_text_is_cleaned_and_bounded(importing):
    text = (
        "See <b>this</b> [page](https://evil.example)\u202e\u200b\x07 `now`\n\n# Head\n"
        + "x " * 3000
    )
    tool = importing(
        summary="List\nthings", description=text, parameters=[parameter("q", description=text)]
    )
    told = tool.data["affordance"]["model_description"]
    assert told.startswith("List things. See this page now Head x x")
    assert len(told) <= 1001
    described = schema_of(tool)["properties"]["q"]["description"]
    assert len(described) < 320
    for cleaned in (told, described):
        assert "evil" not in cleaned
        assert cleaned.isprintable()


def test_what_the_document_does_not_say_is_said_to_be_missing(importing):
    made = {"name": "q", "in": "query"}
    tool = importing(summary=None, operationId=None, parameters=[made])
    assert tool.data["affordance"]["model_description"] == "GET /things: GET /things of Thing Shop."
    assert "does not describe" in " ".join(said(tool, "/affordance/model_description"))
    assert said(tool, "/affordance/input_schema/properties/q") == [
        "the document does not describe it",
        "the document says no type: plain values are taken",
    ]


def test_a_deprecated_operation_is_a_deprecated_tool(importing):
    assert importing(deprecated=True).data["identity"]["lifecycle"] == {"status": "deprecated"}


def test_approvers_are_told_what_happens(importing):
    tool = importing(
        "post",
        "/orders/{id}/notes",
        summary="Add a {note}",
        parameters=[parameter("id", "path")],
        requestBody=body(
            {
                "type": "object",
                "properties": {"text": TEXT, "to": {"type": "array", "items": TEXT}, "more": TEXT},
                "required": ["text", "to"],
            }
        ),
    )
    assert tool.data["consequence"] == (
        "Add a {{note}}: POST api.example.org/v1/orders/{id}/notes with text {text}."
    )
    assert "consequence" not in importing().data


def test_text_that_looks_like_code_is_carried_but_never_run_here(importing):
    tool = importing("post", requestBody=body({"type": "object", "properties": {"script": TEXT}}))
    assert tool.data["runs_code"] is False
    assert said(tool, "/runs_code")
