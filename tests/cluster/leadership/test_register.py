import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cluster.effects import Lane, Persist, Send
from talka.cluster.leadership.register import (
    ENTRY_PREFIX,
    HELD_LIMIT,
    KEYS_LIMIT,
    NEVER,
    RECORD_KEY,
    Acceptor,
    VoterRecord,
)
from talka.cluster.leadership.voters import CONFIG_KEY, VoterConfig, VoterEntry, encode_config
from talka.cluster.safeguards import Safeguards
from talka.wire.leadership import CHANNEL, LeadershipMessage, ProposalRefused, RegisterEntry, Version

quick = settings(deadline=None, derandomize=True, max_examples=100)
STORAGE = 41


def entry(key: str, term: int, sequence: int = 1, value: bytes = b"") -> RegisterEntry:
    return RegisterEntry(key, Version(term, sequence), value)


def word(number: int) -> Send[LeadershipMessage]:
    return Send(CHANNEL, "b", ProposalRefused(number), Lane.CONTROL)


def number_of(told: Send[LeadershipMessage]) -> int:
    assert isinstance(told.message, ProposalRefused)
    return told.message.term


def write(disk: dict[str, bytes], acceptor: Acceptor) -> list[Send[LeadershipMessage]]:
    """Make everything durable; what may be said then."""
    return written(disk, acceptor.flush(), acceptor)


def written(disk: dict[str, bytes], persist: Persist | None, acceptor: Acceptor) -> list[Send[LeadershipMessage]]:
    assert persist is not None
    for key, content in persist.puts:
        if content is None:
            disk.pop(key, None)
        else:
            disk[key] = content
    return acceptor.persisted(persist.ticket)


def facts(acceptor: Acceptor) -> tuple[object, ...]:
    return msgspec.structs.astuple(acceptor.record), acceptor.entries


# -- what survives


def test_a_new_disk_is_given_its_number_with_the_first_write() -> None:
    disk: dict[str, bytes] = {}
    acceptor = Acceptor(disk, STORAGE)
    assert not acceptor.is_durable

    write(disk, acceptor)

    assert msgspec.structs.astuple(Acceptor(disk, 99).record) == (STORAGE, 1, 0, "", False, 0, 0)


def test_term_and_vote_are_one_write_and_survive() -> None:
    disk: dict[str, bytes] = {}
    acceptor = Acceptor(disk, STORAGE)
    write(disk, acceptor)
    acceptor.promise(5, "b")
    persist = acceptor.flush()
    assert persist is not None and [key for key, _ in persist.puts] == [RECORD_KEY]
    written(disk, persist, acceptor)

    record = Acceptor(disk, 99).record

    assert (record.term, record.voted_for) == (5, "b")


@given(steps=st.lists(st.tuples(st.sampled_from("pavcso"), st.integers(1, 9), st.sampled_from("xyz")), max_size=30))
@quick
def test_what_is_read_after_a_crash_is_what_the_last_write_said(steps: list[tuple[str, int, str]]) -> None:
    disk: dict[str, bytes] = {}
    acceptor = Acceptor(disk, STORAGE)
    write(disk, acceptor)
    for step, number, name in steps:
        match step:
            case "p":
                acceptor.promise(number, name)
            case "a":
                acceptor.accept((entry(name, number), entry("config" + name, number, 2)))
            case "v":
                acceptor.adopt(number)
            case "c":
                acceptor.confirm(number)
            case "s":
                acceptor.start_over(number)
            case _:
                acceptor.admit()
        persist = acceptor.flush()
        if persist is not None:
            written(disk, persist, acceptor)
        assert facts(Acceptor(disk, 99)) == facts(acceptor)
    assert acceptor.flush() is None


def test_every_write_raises_the_revision_once_however_much_it_changes() -> None:
    disk: dict[str, bytes] = {}
    acceptor = Acceptor(disk, STORAGE)
    write(disk, acceptor)
    acceptor.promise(1, "a")
    acceptor.accept((entry("x", 1), entry("y", 1)))
    acceptor.admit()
    assert acceptor.record.revision == 2
    write(disk, acceptor)

    acceptor.promise(2, "a")

    assert acceptor.record.revision == 3


def test_a_disk_that_starts_over_keeps_nothing_but_counts_on() -> None:
    disk: dict[str, bytes] = {}
    acceptor = Acceptor(disk, STORAGE)
    acceptor.promise(5, "b")
    acceptor.accept((entry("x", 5),))
    acceptor.admit()
    acceptor.confirm(7)
    write(disk, acceptor)
    revision = acceptor.record.revision

    acceptor.start_over(77)
    write(disk, acceptor)

    again = Acceptor(disk, 99)
    assert again.entries == {}
    assert msgspec.structs.astuple(again.record) == (77, revision + 1, 0, "", False, 0, 0)
    assert sorted(disk) == [RECORD_KEY]


def test_without_its_safeguard_term_and_vote_are_forgotten() -> None:
    disk: dict[str, bytes] = {}
    acceptor = Acceptor(disk, STORAGE, Safeguards(persist_vote=False))
    acceptor.admit()
    acceptor.confirm(7)
    acceptor.promise(5, "b")
    write(disk, acceptor)

    assert msgspec.structs.astuple(Acceptor(disk, 99).record) == (STORAGE, 1, 0, "", True, 7, 0)
    assert (acceptor.record.term, acceptor.record.voted_for) == (5, "b")


def test_a_later_term_is_followed_without_a_vote_and_an_earlier_one_is_not() -> None:
    acceptor = Acceptor({}, STORAGE)
    acceptor.promise(5, "b")

    acceptor.adopt(5)
    acceptor.adopt(4)
    assert (acceptor.record.term, acceptor.record.voted_for) == (5, "b")
    acceptor.adopt(6)
    assert (acceptor.record.term, acceptor.record.voted_for) == (6, "")


def test_admission_is_written_once() -> None:
    disk: dict[str, bytes] = {}
    acceptor = Acceptor(disk, STORAGE)
    acceptor.admit()
    write(disk, acceptor)

    acceptor.admit()

    assert acceptor.flush() is None


def test_the_number_of_the_group_is_not_known_before_it_is_confirmed_and_survives_from_then_on() -> None:
    disk: dict[str, bytes] = {}
    acceptor = Acceptor(disk, STORAGE)
    config = VoterConfig(7, 1, (VoterEntry("a", STORAGE),))
    acceptor.accept((entry(CONFIG_KEY, 1, 1, encode_config(config)),))
    assert acceptor.record.group_id == 0  # one disk that holds it is no majority

    acceptor.confirm(7)
    write(disk, acceptor)

    assert Acceptor(disk, 99).record.group_id == 7


def test_the_number_of_the_group_is_written_once() -> None:
    disk: dict[str, bytes] = {}
    acceptor = Acceptor(disk, STORAGE)
    acceptor.confirm(7)
    write(disk, acceptor)

    acceptor.confirm(7)

    assert acceptor.flush() is None
    assert acceptor.record.revision == 1


# -- what is accepted


@given(versions=st.lists(st.tuples(st.sampled_from("xy"), st.integers(0, 4), st.integers(0, 4)), max_size=30))
@quick
def test_of_each_key_the_latest_version_is_held_whatever_the_order_of_arrival(
    versions: list[tuple[str, int, int]],
) -> None:
    acceptor = Acceptor({}, STORAGE)
    for key, term, sequence in versions:
        assert acceptor.accept((entry(key, term, sequence, f"{term}.{sequence}".encode()),))

    for key in "xy":
        latest = max([NEVER, *(Version(term, sequence) for name, term, sequence in versions if name == key)])
        assert acceptor.version_of(key) == latest
        if latest > NEVER:
            assert acceptor.entries[key].value == f"{latest.term}.{latest.sequence}".encode()


def test_what_is_not_newer_changes_nothing_and_is_not_written() -> None:
    disk: dict[str, bytes] = {}
    acceptor = Acceptor(disk, STORAGE)
    acceptor.accept((entry("x", 2, 1, b"kept"),))
    write(disk, acceptor)

    assert acceptor.accept((entry("x", 1, 9, b"old"), entry("x", 2, 1, b"same version")))

    assert acceptor.entries["x"].value == b"kept"
    assert acceptor.flush() is None


def test_only_what_changed_is_written() -> None:
    acceptor = Acceptor({}, STORAGE)
    acceptor.accept((entry("x", 1), entry("y", 1)))
    write({}, acceptor)
    acceptor.accept((entry("y", 2),))

    persist = acceptor.flush()

    assert persist is not None
    assert [key for key, _ in persist.puts] == [RECORD_KEY, ENTRY_PREFIX + "y"]


def test_a_voter_takes_all_of_a_write_or_nothing_of_it_when_it_holds_too_many_keys() -> None:
    acceptor = Acceptor({}, STORAGE)
    assert acceptor.accept(tuple(entry(f"k{number}", 1) for number in range(KEYS_LIMIT - 1)))

    assert not acceptor.accept((entry("k0", 2), entry("one more", 2), entry("two more", 2)))
    assert acceptor.version_of("k0") == Version(1, 1)
    assert acceptor.accept((entry("k0", 2), entry("one more", 2)))
    assert acceptor.accept((entry("k0", 3),))


def test_entries_are_given_in_the_order_of_their_keys_from_behind_one() -> None:
    acceptor = Acceptor({}, STORAGE)
    acceptor.accept((entry("c", 1), entry("a", 1), entry("b", 1)))

    assert [held.key for held in acceptor.after("")] == ["a", "b", "c"]
    assert [held.key for held in acceptor.after("a")] == ["b", "c"]
    assert acceptor.after("c") == []


def test_the_configuration_is_one_of_the_values() -> None:
    acceptor = Acceptor({}, STORAGE)
    config = VoterConfig(7, 1, (VoterEntry("a", STORAGE),))
    assert acceptor.config() is None

    acceptor.accept((entry(CONFIG_KEY, 1, 1, encode_config(config)),))

    assert acceptor.config() == config


# -- nothing is said before it is on disk


def test_words_are_given_back_once_what_they_rest_on_is_on_disk() -> None:
    acceptor = Acceptor({}, STORAGE)
    acceptor.promise(1, "b")
    acceptor.hold(word(1))
    acceptor.hold(word(2))
    persist = acceptor.flush()
    assert persist is not None and not acceptor.is_durable

    assert acceptor.persisted(persist.ticket - 1) == []
    assert not acceptor.is_durable
    assert acceptor.persisted(persist.ticket) == [word(1), word(2)]
    assert acceptor.is_durable
    assert acceptor.persisted(persist.ticket) == []


def test_words_that_rest_on_nothing_new_wait_for_the_write_under_way() -> None:
    acceptor = Acceptor({}, STORAGE)
    persist = acceptor.flush()
    acceptor.hold(word(1))
    assert acceptor.flush() is None

    assert written({}, persist, acceptor) == [word(1)]


def test_an_answer_of_the_disk_to_no_write_under_way_frees_nothing() -> None:
    acceptor = Acceptor({}, STORAGE)
    first = acceptor.flush()
    assert first is not None
    acceptor.promise(1, "b")
    acceptor.hold(word(1))

    assert acceptor.persisted(first.ticket) == []
    assert acceptor.persisted(first.ticket) == []
    second = acceptor.flush()
    assert second is not None and second.ticket > first.ticket
    assert acceptor.persisted(first.ticket) == []
    assert acceptor.persisted(second.ticket) == [word(1)]


def test_what_changes_while_a_write_is_under_way_is_one_write_after_it() -> None:
    disk: dict[str, bytes] = {}
    acceptor = Acceptor(disk, STORAGE)
    first = acceptor.flush()
    for term in (1, 2, 3):
        acceptor.promise(term, "b")
        acceptor.hold(word(term))
        assert acceptor.flush() is None

    assert written(disk, first, acceptor) == []
    assert Acceptor(disk, 99).record.term == 0
    assert not acceptor.is_durable
    assert write(disk, acceptor) == [word(1), word(2), word(3)]
    assert Acceptor(disk, 99).record.term == 3
    assert acceptor.is_durable


@given(steps=st.lists(st.sampled_from("change say written".split()), max_size=60))
@quick
def test_words_come_in_order_each_once_and_never_before_what_they_rest_on(steps: list[str]) -> None:
    disk: dict[str, bytes] = {}
    acceptor = Acceptor(disk, STORAGE)
    under_way: list[Persist] = []
    said, term = 0, 0
    rests_on: dict[int, int] = {}
    heard: list[int] = []

    def step_ends() -> None:
        persist = acceptor.flush()
        if persist is not None:
            assert under_way == [], "one write at a time"
            under_way.append(persist)

    def disk_is_written() -> None:
        for told in written(disk, under_way.pop(), acceptor):
            heard.append(number_of(told))
            assert Acceptor(disk, 99).record.term >= rests_on[heard[-1]]
        step_ends()

    step_ends()
    for step in steps:
        if step == "change":
            term += 1
            acceptor.promise(term, "b")
        if step != "written" and not acceptor.is_durable:
            said += 1
            rests_on[said] = term
            acceptor.hold(word(said))
            step_ends()
        elif step == "written" and under_way:
            disk_is_written()
    while under_way:
        disk_is_written()
    assert heard == list(range(1, said + 1))
    assert acceptor.is_durable


def test_words_are_dropped_when_the_disk_is_too_far_behind() -> None:
    acceptor = Acceptor({}, STORAGE)
    persist = acceptor.flush()
    for number in range(2 * HELD_LIMIT):
        acceptor.hold(word(number))
    acceptor.promise(1, "b")
    for number in range(2 * HELD_LIMIT):
        acceptor.hold(word(number))

    assert written({}, persist, acceptor) == [word(number) for number in range(HELD_LIMIT)]
    assert len(write({}, acceptor)) == HELD_LIMIT


def test_a_record_says_what_its_disk_says() -> None:
    assert VoterRecord(STORAGE).revision == 1  # the write that makes it is the first
