"""Effects are proposed from the method and the words: upwards, never downwards."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal.contract.effects import EFFECTS, Effect
from counterseal.contract.sources.effect_guess import propose_operation_effect

from .conftest import said


def proposed(method, path="/things", **operation):
    return propose_operation_effect(method, path, operation)[0].value


@pytest.mark.parametrize(
    ("method", "effect"),
    [
        ("GET", "retrieve"),
        ("HEAD", "retrieve"),
        ("POST", "external_notification"),
        ("PUT", "external_notification"),
        ("PATCH", "external_notification"),
        ("DELETE", "irreversible"),
    ],
)
def test_the_method_decides_where_words_say_nothing(method, effect):
    assert proposed(method, operationId="thing") == effect


@pytest.mark.parametrize(
    "operation",
    [
        {"operationId": "deleteThing"},
        {"operationId": "things_remove"},
        {"summary": "Cancel the order"},
        {"summary": "Capture a payment"},
        {"description": "Saves it. All older versions are purged."},
        {"description": "This can't be reversed: the key is revoked at once."},
        {"path": "/orders/{id}/refund"},
        {"path": "/bulkDelete"},
        {"path": "/accounts/{id}/transfers"},
        {"summary": "Terminates a contract"},
        {"summary": "Charge a card"},
        {"description": "The file is permanently gone."},
    ],
)
def test_words_that_can_not_be_undone_raise_a_change(operation):
    path = operation.pop("path", "/things")
    for method in ("POST", "PUT", "PATCH"):
        assert proposed(method, path, **operation) == "irreversible"


@pytest.mark.parametrize(
    ("effect", "operation"),
    [
        ("external_notification", {"operationId": "sendReport"}),
        ("external_notification", {"operationId": "report_send"}),
        ("external_notification", {"summary": "Resets the password"}),
        ("external_notification", {"summary": "Get and approve the next item"}),
        ("external_notification", {"description": "Shows it. It also updates the counter."}),
        ("external_notification", {"description": "This endpoint will trigger a build."}),
        ("external_notification", {"path": "/jobs/{id}/start"}),
        ("external_notification", {"path": "/users/{id}/send-mail"}),
        ("irreversible", {"path": "/users/{id}/delete"}),
        ("irreversible", {"path": "/payments/{id}/refund"}),
        ("irreversible", {"summary": "Delete user"}),
        ("irreversible", {"summary": "Charge the card on file"}),
        ("irreversible", {"operationId": "cancelOrder"}),
        ("irreversible", {"description": "Returns the message, which this deletes."}),
    ],
)
def test_a_get_that_says_it_changes_something_is_raised(effect, operation):
    assert proposed("GET", operation.pop("path", "/things"), **operation) == effect


SAYS_SO = [
    "Permanently delete",
    "Bulk delete users",
    "Force-delete a user",
    "This endpoint is used to delete a user.",
    "Allows you to cancel an order.",
    "<p>Deletes all users</p>",
    "Deprecated. Deletes the user.",
    "Deprecated\n**Delete** the user",
    "Lets you permanently remove a user",
    "Enables you to charge the card",
    "All sessions are revoked at once.",
    "The user will be deleted.",
    "User deletion",
    "Gets the message, and deletes it",
    "Resets and then purges the queue",
]


@pytest.mark.parametrize("text", SAYS_SO)
@pytest.mark.parametrize("place", ["summary", "description"])
def test_a_get_that_says_it_destroys_is_raised_whatever_stands_around_the_word(place, text):
    assert proposed("GET", **{place: text}) == "irreversible"


@pytest.mark.parametrize(
    ("effect", "name"),
    [
        ("irreversible", "user_delete_by_id"),
        ("irreversible", "userDeletion"),
        ("irreversible", "getAndDeleteMessage"),
        ("external_notification", "getAndResetCounters"),
        ("external_notification", "fetch_and_update_counter"),
    ],
)
def test_a_verb_of_change_counts_anywhere_in_an_operations_name(effect, name):
    assert proposed("GET", operationId=name) == effect


@pytest.mark.parametrize(
    ("effect", "path"),
    [
        ("irreversible", "/users/{id}:delete"),
        ("irreversible", "/v1/users:batchDelete"),
        ("irreversible", "/users/{id}.delete"),
        ("irreversible", "/users/bulk-delete/{batch}"),
        ("external_notification", "/users/{id}:start"),
        ("external_notification", "/users:batchSend"),
    ],
)
def test_a_verb_of_change_counts_anywhere_in_a_path(effect, path):
    assert proposed("GET", path) == effect


@pytest.mark.parametrize(
    "operation",
    [
        {"path": "/v1/charges"},
        {"path": "/v1/charges/{charge}", "operationId": "GetChargesCharge"},
        {"path": "/order/{id}", "summary": "Order details"},
        {"operationId": "listPayments", "summary": "List all payments"},
        {"operationId": "refunds_list", "summary": "Refunds of an account"},
        {"summary": "Get a cancelled order", "description": "Deleted ones are not shown."},
        {"summary": "Find posts", "description": "Use this post ID to ask for its comments."},
        {"description": "Returns the update history, with transfers and refunds."},
        {"description": "To delete it, ask for it by DELETE."},
        {"description": "Checks whether a user is deleted. Returns those that are cancelled."},
        {"summary": "List orders and updates", "description": "Allows access to charge details."},
        {"summary": "Enables you to list charges"},
        {"path": "/users/{id}/updates", "operationId": "listDeletions"},
        {"path": "/v1/users:batchGet"},
    ],
)
def test_a_get_that_reads_what_others_changed_stays_a_reader(operation):
    assert proposed("GET", operation.pop("path", "/things"), **operation) == "retrieve"


@pytest.mark.parametrize(
    ("method", "wanted", "effect"),
    [
        ("GET", "internal_mutation", "internal_mutation"),
        ("GET", "read_only", "retrieve"),
        ("POST", "internal_mutation", "external_notification"),
        ("POST", "irreversible", "irreversible"),
        ("POST", "meta", "meta"),
        ("DELETE", "draft", "irreversible"),
        ("POST", "harmless", "external_notification"),
        ("POST", ["meta"], "external_notification"),
    ],
)
def test_a_document_may_ask_for_more_care_never_for_less(method, wanted, effect):
    assert proposed(method, **{"x-counterseal-effect": wanted}) == effect


@given(
    st.sampled_from(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]),
    st.text(max_size=30),
    st.dictionaries(
        st.sampled_from(["operationId", "summary", "description", "x-counterseal-effect"]),
        st.text(max_size=30) | st.sampled_from([*Effect]) | st.none() | st.integers(),
    ),
)
def test_no_words_lower_what_the_method_says(method, path, operation):
    plain = EFFECTS[Effect(proposed(method))].risk
    assert EFFECTS[Effect(proposed(method, path, **operation))].risk >= plain


def test_the_word_that_raised_it_is_named(importing):
    tool = importing("post", "/orders/{id}/refund")
    assert tool.data["effect"] == "irreversible"
    assert "'refund' in the path" in said(tool, "/effect")[0]
