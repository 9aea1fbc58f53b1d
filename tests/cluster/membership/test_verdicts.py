"""The verdicts a member remembers."""

import pytest

from talka.cluster.membership.verdicts import LIMIT, Audit, Verdict


def add(audit: Audit, at: int) -> None:
    audit.add(at, "b", 5, 2, "dead", accuser="c", reason="no answer", own=False)


def test_a_verdict_says_who_was_accused_by_whom_and_why() -> None:
    audit = Audit()

    audit.add(7, "b", 5, 2, "suspect", "a", "probe failed", True)

    assert audit.entries() == [
        Verdict(
            at=7,
            subject="b",
            boot=5,
            incarnation=2,
            verdict="suspect",
            accuser="a",
            reason="probe failed",
            own=True,
        )
    ]


def test_the_newest_verdict_is_last() -> None:
    audit = Audit()
    assert audit.entries() == []

    for at in (3, 1, 2):
        add(audit, at)

    assert [entry.at for entry in audit.entries()] == [3, 1, 2]


def test_only_the_last_verdicts_are_kept() -> None:
    audit = Audit()

    for at in range(LIMIT + 2):
        add(audit, at)

    assert LIMIT == 256
    assert [entry.at for entry in audit.entries()] == list(range(2, LIMIT + 2))


def test_what_was_handed_out_is_not_changed_by_later_verdicts_nor_changes_them() -> None:
    audit = Audit()
    add(audit, 1)
    seen = audit.entries()

    add(audit, 2)
    seen.clear()

    assert [entry.at for entry in audit.entries()] == [1, 2]
    with pytest.raises(AttributeError):
        audit.entries()[0].at = 9  # type: ignore[misc]
