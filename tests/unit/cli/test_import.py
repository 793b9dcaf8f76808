"""`counterseal import openapi`: files that pass lint, all or none, and nothing overwritten."""

import json
from pathlib import Path

import pytest

DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "Thing Shop", "version": "1"},
    "servers": [{"url": "https://api.example.org"}],
    "paths": {
        "/things": {
            "get": {"operationId": "listThings", "summary": "List things"},
            "post": {
                "operationId": "sendThing",
                "summary": "Send a thing",
                "requestBody": {
                    "content": {
                        "application/json": {
                            "schema": {"type": "object", "properties": {"to": {"type": "string"}}}
                        }
                    }
                },
            },
        },
        "/orders/{id}": {"delete": {"operationId": "deleteOrder"}},
        "/files": {
            "post": {"requestBody": {"required": True, "content": {"multipart/form-data": {}}}}
        },
    },
}
NAMES = ["deleteOrder.yaml", "listThings.yaml", "sendThing.yaml"]


@pytest.fixture
def shop(write):
    return write("shop.json", json.dumps(DOCUMENT))


def files(folder, name="tools"):
    return sorted(path.name for path in Path(folder, name).iterdir())


def test_a_file_is_written_for_each_operation_and_passes_lint(run, shop, folder):
    result = run("import", "openapi", "shop.json")
    assert result.exit_code == 0
    assert files(folder) == NAMES
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["Tool", "Effect", "Request", "To", "review"]
    assert lines[1].split()[:4] == ["listThings", "retrieve", "GET", "/things"]
    assert lines[2].split()[:4] == ["sendThing", "external_notification", "POST", "/things"]
    assert lines[3].split()[:4] == ["deleteOrder", "irreversible", "DELETE", "/orders/{id}"]
    assert "Thing Shop: 3 contracts written to tools/, one file each." in result.stdout
    assert result.stdout.endswith("Next: counterseal lint tools\n")
    linted = run("lint", "tools")
    assert linted.exit_code == 0
    assert "3 contracts" in linted.stdout


def test_a_long_import_says_how_far_it_is_beside_its_json(run, shop, slowly):
    result = run("import", "openapi", "shop.json", "--json")
    assert json.loads(result.stdout)["written"] is True
    assert "of 4 operations" in result.stderr
    assert "of 3 contracts" in result.stderr


def test_what_is_left_out_is_named_with_its_reason(run, shop):
    result = run("import", "openapi", "shop.json")
    assert "Left out\n" in result.stdout
    assert "POST /files" in result.stdout
    assert "multipart/form-data" in result.stdout


def test_yaml_is_read_too(run, write, folder):
    write("shop.yaml", json.dumps(DOCUMENT, indent=1))
    assert run("import", "openapi", "shop.yaml", "--out", "a/b").exit_code == 0
    assert files(folder, "a/b") == NAMES


def test_an_existing_file_is_kept_and_nothing_is_written_beside_it(run, shop, write, folder):
    write("tools/sendThing.yaml", "mine")
    result = run("import", "openapi", "shop.json")
    assert result.exit_code == 2
    assert "tools/sendThing.yaml already exists" in result.stderr
    assert "--force" in result.stderr
    assert files(folder) == ["sendThing.yaml"]
    forced = run("import", "openapi", "shop.json", "--force")
    assert forced.exit_code == 0
    assert files(folder) == NAMES
    assert "effect: external_notification" in (folder / "tools/sendThing.yaml").read_text()


def test_a_dry_run_writes_nothing(run, shop, folder):
    result = run("import", "openapi", "shop.json", "--dry-run")
    assert result.exit_code == 0
    assert "3 contracts would be written" in result.stdout
    assert "Next:" not in result.stdout
    assert not (folder / "tools").exists()


@pytest.mark.parametrize(
    ("globs", "names"),
    [
        (["list*"], ["listThings.yaml"]),
        (["/orders/*"], ["deleteOrder.yaml"]),
        (["sendThing", "/orders/{id}"], ["deleteOrder.yaml", "sendThing.yaml"]),
    ],
)
def test_only_what_matches_is_imported(run, shop, folder, globs, names):
    options = [part for glob in globs for part in ("--only", glob)]
    result = run("import", "openapi", "shop.json", *options)
    assert result.exit_code == 0
    assert files(folder) == names
    assert "Left out" not in result.stdout


def test_nothing_that_matches_is_wrong_use(run, shop):
    result = run("import", "openapi", "shop.json", "--only", "nothing*")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Nothing matches nothing*." in result.stderr


def test_all_of_it_can_be_had_as_json(run, shop):
    result = json.loads(run("import", "openapi", "shop.json", "--json").stdout)
    assert result["title"] == "Thing Shop"
    assert result["written"] is True
    assert [tool["file"] for tool in result["tools"]] == [
        "tools/listThings.yaml",
        "tools/sendThing.yaml",
        "tools/deleteOrder.yaml",
    ]
    assert result["tools"][0].items() >= {"effect": "retrieve", "path": "/things"}.items()
    assert {"pointer": "/identity/owner", "text": "name the team that answers for this tool"} in (
        result["tools"][0]["review"]
    )
    assert [one["what"] for one in result["left_out"]] == ["POST /files"]
    assert result["next"] == ["counterseal lint tools"]


def test_a_document_without_a_server_needs_one_to_be_given(run, write, folder):
    write("shop.json", json.dumps({**DOCUMENT, "servers": []}))
    result = run("import", "openapi", "shop.json")
    assert result.exit_code == 1
    assert "give --base-url" in " ".join(result.stdout.split())
    assert "no contract could be written" in result.stdout
    assert not (folder / "tools").exists()
    given = run("import", "openapi", "shop.json", "--base-url", "http://127.0.0.1:8000/api")
    assert given.exit_code == 0
    assert "http://127.0.0.1:8000/api/things" in (folder / "tools/listThings.yaml").read_text()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"swagger": "2.0"}', "Convert it to OpenAPI 3 first."),
        ("a: 1", "not an OpenAPI 3 document"),
        ("a: [", "not valid YAML"),
    ],
)
def test_a_file_that_is_no_document_is_wrong_use(run, write, content, says):
    write("shop.yaml", content)
    result = run("import", "openapi", "shop.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: shop.yaml: ")
    assert says in result.stderr


def test_a_missing_file_and_a_bad_base_url_are_wrong_use(run, shop):
    assert "can't be opened" in run("import", "openapi", "nowhere.json").stderr
    result = run("import", "openapi", "shop.json", "--base-url", "api.example.org")
    assert result.exit_code == 2
    assert "base URL" in result.stderr


def test_a_failure_after_the_first_file_names_what_was_written(run, shop, folder, monkeypatch):
    replace = Path.replace

    def fail_on_second(self, target):
        if target.name == "sendThing.yaml":
            raise OSError(28, "No space left on device", str(target))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fail_on_second)
    result = run("import", "openapi", "shop.json")
    assert result.exit_code == 2
    assert "Written before: tools/listThings.yaml." in result.stderr
    assert "Nothing was written" not in result.stderr
    assert files(folder) == ["listThings.yaml"]


def test_a_failure_half_way_leaves_nothing_behind(run, shop, write, folder):
    write("taken", "a file where a folder should be")
    result = run("import", "openapi", "shop.json", "--out", "taken/tools")
    assert result.exit_code == 2
    assert "Nothing was written." in result.stderr
    (folder / "tools/listThings.yaml").mkdir(parents=True)
    forced = run("import", "openapi", "shop.json", "--force")
    assert forced.exit_code == 2
    assert "is a folder" in forced.stderr
    assert files(folder) == ["listThings.yaml"]


def test_a_strangers_document_can_not_command_the_terminal(run, write):
    hostile = json.loads(json.dumps(DOCUMENT))
    hostile["info"]["title"] = "Shop\x1b[31m\u202e" + "x" * 500
    hostile["paths"]["/a\x1b[2J"] = {"get": {"summary": "\x07"}, "trace": {}}
    write("shop.json", json.dumps(hostile))
    result = run("import", "openapi", "shop.json")
    assert "\x1b" not in result.stdout
    assert "\u202e" not in result.stdout


def test_everything_fits_into_80_columns(run, shop):
    for arguments in (("--help",), ("openapi", "--help"), ("openapi", "shop.json")):
        assert max(map(len, run("import", *arguments).stdout.splitlines())) <= 80


@pytest.mark.parametrize("place", ["query", "form"])
def test_a_type_that_never_ends_is_left_out_with_the_reason(run, write, place):
    endless = {"anyOf": [{"$ref": "#/components/schemas/A"}, {"type": "string"}]}
    used = {"$ref": "#/components/schemas/A"}
    form = {"schema": {"type": "object", "properties": {"a": used}}}
    asks = {
        "query": {"parameters": [{"name": "a", "in": "query", "schema": used}]},
        "form": {"requestBody": {"content": {"application/x-www-form-urlencoded": form}}},
    }
    paths = {**DOCUMENT["paths"], "/odd": {"post": asks[place]}}
    made = {**DOCUMENT, "paths": paths, "components": {"schemas": {"A": endless}}}
    write("odd.json", json.dumps(made))
    result = run("import", "openapi", "odd.json", "--json")
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    assert len(told["tools"]) == 3
    assert "refers to itself" in {o["what"]: o["reason"] for o in told["left_out"]}["POST /odd"]
