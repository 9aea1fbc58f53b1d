"""One blob on its way, piece by piece."""

from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cluster.effects import Lane, Send
from talka.control.blobs.fetching import LIMIT_NS, RETRY_NS, BlobFetch
from talka.units import NEVER
from talka.wire.jobs import BLOB_LIMIT_BYTES, JobMessage, Piece, WantBlob

NOW = 1_000_000_000
CONTENT = bytes(range(200))
DIGEST = sha256(CONTENT).hexdigest()


def fetch_of(*sources: str, size_bytes: int = len(CONTENT)) -> BlobFetch:
    return BlobFetch(DIGEST, size_bytes, sources)


def asked(said: list[Send[JobMessage]]) -> tuple[str, int]:
    (speak,) = said
    assert isinstance(speak.message, WantBlob) and speak.message.digest == DIGEST and speak.lane is Lane.STREAM
    return speak.to, speak.message.offset


def piece(offset: int, end: int, content: bytes = CONTENT) -> Piece:
    return Piece(DIGEST, offset, len(content), content[offset:end])


NOTHING = Piece(DIGEST, 0, 0, b"")


def test_pieces_are_asked_for_one_after_the_other() -> None:
    fetch = fetch_of("m1")

    assert asked(fetch.start(NOW)) == ("m1", 0)
    assert asked(fetch.on_piece(NOW, "m1", piece(0, 150))) == ("m1", 150)
    assert not fetch.is_over
    assert fetch.on_piece(NOW, "m1", piece(150, 200)) == []

    assert (fetch.content, fetch.is_over, fetch.problem) == (CONTENT, True, "")
    assert fetch.next_tick_at == NEVER
    assert fetch.on_piece(NOW, "m1", piece(0, 150)) == []


def test_the_first_source_is_asked_first_and_awaited_until_it_answers() -> None:
    fetch = fetch_of("m2", "m1", "m3")
    assert fetch.awaited == ""

    assert asked(fetch.start(NOW)) == ("m2", 0)
    assert (fetch.awaited, fetch.asked_at) == ("m2", NOW)
    fetch.on_piece(NOW + 1, "m1", piece(0, 50))
    assert fetch.awaited == "m2", "another one's answer is not its"
    fetch.on_piece(NOW + 1, "m2", piece(0, 50))
    assert (fetch.awaited, fetch.asked_at) == ("m2", NOW + 1), "it is asked for the next piece"
    for name in ("m2", "m1", "m3"):
        fetch.on_piece(NOW + 1, name, NOTHING)
    assert fetch.awaited == "", "all have answered, and the next round has not begun"


def test_a_silent_source_gives_way_to_the_next_which_goes_on_where_it_was() -> None:
    fetch = fetch_of("m1", "m2")
    first, _ = asked(fetch.start(NOW))
    other = {"m1": "m2", "m2": "m1"}[first]
    fetch.on_piece(NOW, first, piece(0, 50))

    assert fetch.tick(NOW + RETRY_NS - 1) == []
    assert asked(fetch.tick(NOW + RETRY_NS)) == (other, 50)
    assert fetch.on_piece(NOW + RETRY_NS, first, piece(50, 200)) == [], "it was asked too long ago"

    assert asked(fetch.tick(NOW + 2 * RETRY_NS)) == (first, 50)


def test_a_source_that_does_not_have_it_gives_way_at_once() -> None:
    fetch = fetch_of("m1", "m2")
    first, _ = asked(fetch.start(NOW))
    other = {"m1": "m2", "m2": "m1"}[first]

    assert asked(fetch.on_piece(NOW, first, NOTHING)) == (other, 0)
    assert fetch.on_piece(NOW, other, NOTHING) == [], "nobody has it yet: all are asked again, but not at once"

    assert asked(fetch.tick(fetch.next_tick_at)) == (first, 0)
    assert asked(fetch.on_piece(NOW, first, NOTHING)) == (other, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(Piece("f" * 64, 0, len(CONTENT), CONTENT), id="another blob"),
        pytest.param(piece(10, 20), id="another place"),
        pytest.param(Piece(DIGEST, 0, len(CONTENT), b""), id="no data"),
        pytest.param(Piece(DIGEST, 0, len(CONTENT), CONTENT + b"!"), id="too much"),
    ],
)
def test_a_piece_that_was_not_asked_for_is_ignored(wrong: Piece) -> None:
    fetch = fetch_of("m1")
    fetch.start(NOW)

    assert fetch.on_piece(NOW, "m1", wrong) == []

    assert asked(fetch.tick(NOW + RETRY_NS)) == ("m1", 0)


def test_content_that_is_not_what_its_digest_names_is_fetched_again_from_the_start() -> None:
    fetch = fetch_of("m1", "m2")
    first, _ = asked(fetch.start(NOW))

    other, offset = asked(fetch.on_piece(NOW, first, piece(0, 200, bytes(200))))

    assert (other != first, offset) == (True, 0)
    fetch.on_piece(NOW, other, piece(0, 200))
    assert fetch.content == CONTENT


def test_after_a_minute_it_is_given_up() -> None:
    fetch = fetch_of("m1")
    fetch.start(NOW)
    at = NOW
    while not fetch.is_over:
        at = fetch.next_tick_at
        fetch.tick(at)

    assert at == NOW + LIMIT_NS
    assert fetch.problem == "no manager gave all of it within 60 s"
    assert (fetch.content, fetch.next_tick_at) == (None, NEVER)


def test_a_blob_of_a_size_that_cannot_be_is_given_up_at_once() -> None:
    fetch = fetch_of("m1", size_bytes=BLOB_LIMIT_BYTES + 1)

    assert fetch.start(NOW) == []

    assert fetch.problem == f"it is said to have {BLOB_LIMIT_BYTES + 1} bytes: at most {BLOB_LIMIT_BYTES} are allowed"


def test_of_a_blob_whose_size_is_not_known_the_first_piece_tells_it() -> None:
    fetch = fetch_of("m1", size_bytes=0)
    fetch.start(NOW)

    assert asked(fetch.on_piece(NOW, "m1", piece(0, 150))) == ("m1", 150)
    fetch.on_piece(NOW, "m1", piece(150, 200))

    assert fetch.content == CONTENT


def test_a_size_that_was_wrong_is_not_believed_any_longer_than_its_content() -> None:
    fetch = fetch_of("m1", size_bytes=0)
    fetch.start(NOW)

    assert asked(fetch.on_piece(NOW, "m1", piece(0, 9, b"not that."))) == ("m1", 0)
    fetch.on_piece(NOW, "m1", piece(0, 200))

    assert fetch.content == CONTENT


def test_a_first_piece_that_names_an_impossible_size_is_as_good_as_none() -> None:
    fetch = fetch_of("m1", "m2", size_bytes=0)
    first, _ = asked(fetch.start(NOW))

    other, offset = asked(fetch.on_piece(NOW, first, Piece(DIGEST, 0, BLOB_LIMIT_BYTES + 1, b"x")))

    assert (other != first, offset) == (True, 0)


def test_without_a_source_it_is_given_up_at_once() -> None:
    fetch = fetch_of()

    assert fetch.start(NOW) == []

    assert fetch.problem == "no node is known that could have it"


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(["answer", "lose", "lack", "damage"]), st.integers(1, 80)), max_size=40))
def test_whatever_is_lost_or_damaged_it_never_ends_with_other_content(steps: list[tuple[str, int]]) -> None:
    fetch = fetch_of("m1", "m2", "m3")
    now, said = NOW, fetch.start(NOW)
    for what, size_bytes in [*steps, *[("answer", 80)] * 20]:
        if not said:
            now = min(fetch.next_tick_at, now + LIMIT_NS)
            said = fetch.tick(now)
        if not said or what == "lose":
            said = []
            continue
        to, offset = asked(said)
        given = piece(offset, offset + size_bytes, bytes(200) if what == "damage" else CONTENT)
        said = fetch.on_piece(now, to, NOTHING if what == "lack" else given)

    assert fetch.content == CONTENT or fetch.problem
