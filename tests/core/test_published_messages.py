"""Which messages the code of a version reads, as senders are told."""

from __future__ import annotations

import pytest

from perdure.core.published_messages import MessageChecks, MessageKind, PublishedMessages

PUBLISHED = PublishedMessages(
    signals={"go": ({"type": "integer"}, {"type": "string"})},
    promises={"given": ()},
    updates={"change": ()},
    approvals=("deal",),
    events=("paid",),
)
OPEN = PublishedMessages(signals=PUBLISHED.signals, open=True)


@pytest.mark.parametrize(
    ("kind", "name", "is_known"),
    [
        ("signal", "go", True),
        ("signal", "goo", False),
        ("signal", "given", False),
        ("signal", "deal", False),
        ("signal", "event:paid#1@0a0b0c0d", False),
        ("update", "change", True),
        ("update", "go", False),
        ("promise", "given", True),
        ("promise", "go", False),
        ("promise", "deal", True),
        ("promise", "deal#2", True),
        ("promise", "deal[3]", True),
        ("promise", "deal[3]#2", True),
        ("promise", "given#2", False),
        ("promise", "deal2", False),
        ("promise", "event:paid#1@0a0b0c0d", True),
    ],
)
def test_a_name_is_known_for_its_kind_alone(kind: MessageKind, name: str, is_known: bool) -> None:
    assert MessageChecks(PUBLISHED).knows(kind, name) is is_known
    assert MessageChecks(OPEN).knows(kind, name), "its code may make this name while it runs"


@pytest.mark.parametrize("published", [PUBLISHED, OPEN])
@pytest.mark.parametrize(
    ("name", "value", "wrong"),
    [
        ("go", b"1", ""),
        ("go", b'"x"', ""),
        ("go", b"true", "the value"),
        ("go", b"{", "not JSON"),
        ("other", b"true", ""),
    ],
)
def test_a_value_fits_one_of_the_schemas_of_its_name(
    published: PublishedMessages, name: str, value: bytes, wrong: str
) -> None:
    found = MessageChecks(published).misfit("signal", name, value)
    assert wrong in found and bool(found) is bool(wrong)


def test_a_refusal_names_what_was_meant() -> None:
    checks = MessageChecks(PUBLISHED)
    assert checks.unknown("signal", "goo") == "Did you mean 'go'? It reads go."
    assert checks.unknown("promise", "daal") == "Did you mean 'deal'? It reads deal, given."
    assert MessageChecks(PublishedMessages()).unknown("update", "x") == "It reads no updates."
