"""Blobs on a majority of managers, whatever is lost, doubled or overtaken in between."""

from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cluster.effects import Lane, PersistBlob, Send
from talka.cluster.leadership.quorum import majority
from talka.control.blobs import replicated_blobs
from talka.control.blobs.fetching import LIMIT_NS, RETRY_NS
from talka.control.blobs.replicated_blobs import (
    AGAIN_NS,
    LINGER_NS,
    BlobFailed,
    BlobKept,
    BlobLimits,
    BlobReady,
    BlobsFull,
    LoadBlob,
    ReplicatedBlobs,
    ServeBlob,
)
from talka.errors import Invalid
from talka.units import NEVER, SECOND
from talka.wire.jobs import BLOB_LIMIT_BYTES, CHANNEL, JobMessage, KeepBlob, Kept, Piece, WantBlob

PIECE = 4
quick = settings(deadline=None, derandomize=True, max_examples=60)
CONTENT = b"0123456789"


def digest_of(content: bytes) -> str:
    return sha256(content).hexdigest()


DIGEST = digest_of(CONTENT)


SMALL = BlobLimits(piece_bytes=PIECE)
"""A few bytes in each piece, so that ten bytes are several."""
piece_of = partial(replicated_blobs.piece_of, piece_bytes=PIECE)


def vault_of(
    me: str = "m1", managers: Sequence[str] = ("m1", "m2", "m3"), has: Sequence[str] = (), **limits: int
) -> ReplicatedBlobs:
    return ReplicatedBlobs(me, lambda: managers, has, Random(1), msgspec.structs.replace(SMALL, **limits))


def offer(offset: int, content: bytes = CONTENT) -> KeepBlob:
    return KeepBlob(digest_of(content), offset, len(content), content[offset : offset + PIECE])


def offered(to: str, offset: int) -> Send[JobMessage]:
    return Send(CHANNEL, to, offer(offset), Lane.RESULTS)


def kept(to: str, have_bytes: int, problem: str = "") -> Send[JobMessage]:
    return Send(CHANNEL, to, Kept(DIGEST, have_bytes, problem), Lane.RESULTS)


# -- giving blobs away


def test_a_blob_is_written_and_offered_to_the_others_and_counts_with_a_majority() -> None:
    vault = vault_of()
    assert vault.keep(0, DIGEST, CONTENT) == [
        PersistBlob(1, DIGEST, CONTENT),
        offered("m2", 0),
        offered("m3", 0),
    ]
    assert not vault.has(DIGEST)

    assert vault.on_persisted(1, 1) == [], "one of three"
    assert vault.has(DIGEST)
    assert vault.on_kept(2, "m2", Kept(DIGEST, 4)) == [offered("m2", 4)]
    assert vault.on_kept(3, "m2", Kept(DIGEST, 8)) == [offered("m2", 8)]
    assert vault.on_kept(4, "m2", Kept(DIGEST, 10)) == [BlobKept(DIGEST)]

    assert vault.on_kept(5, "m3", Kept(DIGEST, BLOB_LIMIT_BYTES)) == [], "said once"
    assert vault.next_tick_at == NEVER, "all have it"


def test_others_may_be_a_majority_before_the_own_disk_has_it() -> None:
    vault = vault_of()
    vault.keep(0, DIGEST, CONTENT)

    assert vault.on_kept(1, "m2", Kept(DIGEST, 10)) == []
    assert vault.on_kept(2, "m3", Kept(DIGEST, 10)) == [BlobKept(DIGEST)]
    assert vault.on_persisted(3, 1) == []


def test_a_doubled_word_is_one() -> None:
    vault = vault_of(managers=("m1", "m2", "m3", "m4", "m5"))
    vault.keep(0, DIGEST, CONTENT)
    vault.on_persisted(1, 1)

    assert vault.on_kept(2, "m2", Kept(DIGEST, 10)) == []
    assert vault.on_kept(2, "m2", Kept(DIGEST, 10)) == []
    assert vault.on_kept(3, "m3", Kept(DIGEST, 4)) == [offered("m3", 4)]
    assert vault.on_kept(3, "m3", Kept(DIGEST, 4)) == [], "that piece is on its way"


def test_words_about_blobs_nobody_offered_and_of_those_who_were_not_asked_are_nothing() -> None:
    vault = vault_of()
    assert vault.on_kept(0, "m2", Kept(DIGEST, 10)) == []
    vault.keep(0, DIGEST, CONTENT)
    vault.on_persisted(1, 1)

    assert vault.on_kept(2, "w7", Kept(DIGEST, 10)) == []


def test_one_manager_alone_is_a_majority() -> None:
    vault = vault_of(managers=("m1",))
    vault.keep(0, DIGEST, CONTENT)

    assert vault.on_persisted(1, 1) == [BlobKept(DIGEST)]
    assert vault.keep(2, DIGEST, CONTENT) == [BlobKept(DIGEST)], "it is on disk already"
    assert vault.next_tick_at == NEVER


def test_what_is_being_kept_is_not_offered_twice_and_what_is_kept_is_said_again() -> None:
    vault = vault_of()
    vault.keep(0, DIGEST, CONTENT)
    assert vault.keep(0, DIGEST, CONTENT) == []
    vault.on_persisted(1, 1)
    vault.on_kept(2, "m2", Kept(DIGEST, 10))

    assert vault.keep(3, DIGEST, CONTENT) == [BlobKept(DIGEST)]


def test_what_is_not_answered_is_offered_again_until_a_majority_has_it() -> None:
    vault = vault_of()
    vault.keep(0, DIGEST, CONTENT)
    vault.on_kept(5, "m2", Kept(DIGEST, 4))
    assert vault.next_tick_at == AGAIN_NS
    assert vault.tick(AGAIN_NS - 1) == []

    assert vault.tick(AGAIN_NS + 5) == [offered("m2", 4), offered("m3", 0)]
    assert vault.tick(100 * LINGER_NS) == [offered("m2", 4), offered("m3", 0)]
    assert vault.on_kept(100 * LINGER_NS, "m2", Kept(DIGEST, 0)) == [offered("m2", 0)], "it was restarted"


def test_once_a_majority_has_it_the_rest_are_given_a_while() -> None:
    vault = vault_of()
    vault.keep(0, DIGEST, CONTENT)
    vault.on_kept(1, "m2", Kept(DIGEST, 10))
    vault.on_persisted(2, 1)

    assert vault.tick(AGAIN_NS) == [offered("m3", 0)]
    assert vault.tick(LINGER_NS + 1) == [offered("m3", 0)]
    assert vault.tick(LINGER_NS + 2) == []

    assert vault.next_tick_at == NEVER
    assert vault.on_kept(LINGER_NS + 3, "m3", Kept(DIGEST, 4)) == []


def test_the_own_disk_may_be_the_last_and_the_word_of_it_too_late() -> None:
    vault = vault_of()
    vault.keep(0, DIGEST, CONTENT)
    vault.on_kept(1, "m2", Kept(DIGEST, 10))
    vault.on_kept(1, "m3", Kept(DIGEST, 10))
    assert vault.tick(LINGER_NS + 1) == []

    assert vault.on_persisted(LINGER_NS + 2, 1) == []
    assert vault.has(DIGEST)


def test_after_a_problem_it_is_offered_from_the_start_but_not_at_once() -> None:
    vault = vault_of()
    vault.keep(0, DIGEST, CONTENT)
    vault.on_kept(1, "m2", Kept(DIGEST, 8))

    assert vault.on_kept(2, "m2", Kept(DIGEST, 0, "it is not what its digest says")) == []
    assert vault.tick(AGAIN_NS + 1) == [offered("m2", 0), offered("m3", 0)]


def test_a_blob_has_at_least_a_byte_and_at_most_the_limit() -> None:
    vault = vault_of()

    for content in (b"", bytes(BLOB_LIMIT_BYTES + 1)):
        with pytest.raises(Invalid, match=f"^a blob may have from 1 to {BLOB_LIMIT_BYTES} bytes, not {len(content)}$"):
            vault.keep(0, digest_of(content), content)


def test_more_than_a_manager_can_pass_on_is_refused_for_now() -> None:
    vault = vault_of(keeping_bytes=19)
    vault.keep(0, DIGEST, CONTENT)

    with pytest.raises(BlobsFull, match="try again in a moment"):
        vault.keep(0, digest_of(b"9876543210"), b"9876543210")
    vault.keep(0, digest_of(b"987654321"), b"987654321")


def test_what_was_removed_from_the_disk_is_not_there_any_more() -> None:
    vault = vault_of(has=(DIGEST,))
    assert vault.has(DIGEST)

    vault.forget((DIGEST, "0" * 64))

    assert not vault.has(DIGEST)


def test_a_disk_that_takes_nothing_does_not_keep_others_from_it() -> None:
    vault = vault_of()
    vault.keep(0, DIGEST, CONTENT)

    assert vault.on_not_persisted(1, 1, "the disk is full") == []
    assert not vault.has(DIGEST)
    assert vault.on_kept(2, "m2", Kept(DIGEST, 10)) == []
    assert not vault.has(DIGEST)
    assert vault.on_kept(2, "m3", Kept(DIGEST, 10)) == [BlobKept(DIGEST)]
    assert vault.has(DIGEST), "whoever put it may go on with it here"
    vault.tick(LINGER_NS + 3)
    assert not vault.has(DIGEST), "from now on others must be asked"


def test_a_manager_alone_whose_disk_takes_nothing_says_so_and_may_be_asked_again() -> None:
    vault = vault_of(managers=("m1",))
    vault.keep(0, DIGEST, CONTENT)

    assert vault.on_not_persisted(1, 1, "the disk is full") == [BlobFailed(DIGEST, "the disk is full")]
    assert vault.next_tick_at == NEVER
    assert vault.keep(2, DIGEST, CONTENT) == [PersistBlob(2, DIGEST, CONTENT)]


# -- being given blobs


def test_pieces_are_put_together_and_acknowledged_once_they_are_on_disk() -> None:
    vault = vault_of("m2")
    assert vault.on_keep(0, "m1", offer(0)) == [kept("m1", 4)]
    assert vault.on_keep(0, "m1", offer(8)) == [kept("m1", 4)], "a hole"
    assert vault.on_keep(0, "m1", offer(0)) == [kept("m1", 4)], "a repetition"
    assert vault.on_keep(0, "m1", offer(4)) == [kept("m1", 8)]

    assert vault.on_keep(0, "m1", offer(8)) == [PersistBlob(1, DIGEST, CONTENT)]
    assert vault.on_keep(0, "m1", offer(8)) == [], "it is being written"
    assert not vault.has(DIGEST)
    assert vault.on_persisted(1, 1) == [kept("m1", BLOB_LIMIT_BYTES)]

    assert vault.on_keep(2, "m3", offer(0)) == [kept("m3", len(CONTENT))], "it is here already"


def test_the_one_who_gave_it_is_told_when_the_disk_would_not_take_it() -> None:
    vault = vault_of("m2")
    for offset in (0, 4, 8):
        vault.on_keep(0, "m1", offer(offset))

    assert vault.on_not_persisted(1, 1, "the disk is full" * 1000) == [kept("m1", 0, ("the disk is full" * 63)[:1000])]
    assert vault.on_keep(2, "m1", offer(0)) == [kept("m1", 4)]


def test_a_blob_of_another_digest_is_refused_and_begun_anew() -> None:
    vault = vault_of("m2")
    wrong = KeepBlob(DIGEST, 0, 3, b"abc")

    assert vault.on_keep(0, "m1", wrong) == [kept("m1", 0, "it is not what its digest says")]
    assert vault.on_keep(1, "m1", offer(0)) == [kept("m1", 4)]


@pytest.mark.parametrize("size_bytes", [0, BLOB_LIMIT_BYTES + 1])
def test_a_blob_of_no_bytes_or_too_many_is_refused(size_bytes: int) -> None:
    vault = vault_of("m2")

    assert vault.on_keep(0, "m1", KeepBlob(DIGEST, 0, size_bytes, b"")) == [kept("m1", 0, "it is empty or too large")]


def test_data_beyond_the_end_is_not_taken() -> None:
    vault = vault_of("m2")

    assert vault.on_keep(0, "m1", KeepBlob(DIGEST, 0, 3, b"0123")) == [kept("m1", 0)]


def test_of_too_many_unfinished_blobs_the_oldest_are_given_up() -> None:
    vault = vault_of("m2", incoming=2)
    other, third = b"abcdefgh", b"ABCDEFGH"
    vault.on_keep(0, "m1", offer(0))
    vault.on_keep(0, "m1", offer(0, other))
    vault.on_keep(0, "m1", offer(0, third))

    assert vault.on_keep(1, "m1", offer(4)) == [kept("m1", 0)], "it has to be begun anew"


def test_of_unfinished_blobs_that_are_too_large_together_the_oldest_are_given_up() -> None:
    vault = vault_of("m2", incoming_bytes=7)
    other = b"abcdefgh"
    vault.on_keep(0, "m1", offer(0, other))

    assert vault.on_keep(0, "m1", offer(0)) == [kept("m1", 4)], "the newest stays"
    (word,) = vault.on_keep(1, "m1", offer(4, other))

    assert word == Send(CHANNEL, "m1", Kept(digest_of(other), 0), Lane.RESULTS)


# -- getting blobs back


def test_a_blob_on_the_own_disk_is_loaded_from_there() -> None:
    vault = vault_of(has=(DIGEST,))

    assert vault.fetch(0, DIGEST) == [LoadBlob(DIGEST)]
    assert vault.on_loaded(1, DIGEST, CONTENT) == [BlobReady(DIGEST, CONTENT)]


def test_a_blob_that_is_being_kept_is_there_at_once() -> None:
    vault = vault_of()
    vault.keep(0, DIGEST, CONTENT)

    assert vault.fetch(0, DIGEST) == [BlobReady(DIGEST, CONTENT)]


@pytest.mark.parametrize("size_bytes", [len(CONTENT), 0])
def test_a_blob_is_fetched_from_others_piece_by_piece_also_when_its_size_is_not_known(size_bytes: int) -> None:
    vault = vault_of()
    effects = vault.fetch(0, DIGEST, size_bytes)
    assert vault.fetch(0, DIGEST, size_bytes) == [], "it is on its way"
    assert vault.next_tick_at == RETRY_NS

    for offset in (0, 4, 8):
        (word,) = effects
        assert isinstance(word, Send)
        assert word.message == WantBlob(DIGEST, offset)
        effects = vault.on_piece(1, word.to, piece_of(DIGEST, CONTENT, offset))

    assert effects == [BlobReady(DIGEST, CONTENT)]
    assert vault.next_tick_at == NEVER
    assert vault.on_piece(2, "m2", piece_of(DIGEST, CONTENT, 8)) == []


def test_a_manager_that_has_it_not_does_not_hide_the_one_that_has() -> None:
    vault = vault_of()
    (word,) = vault.fetch(0, DIGEST)
    assert isinstance(word, Send)

    (word,) = vault.on_piece(1, word.to, piece_of(DIGEST, None, 0))
    assert isinstance(word, Send)
    (word,) = vault.on_piece(2, word.to, piece_of(DIGEST, CONTENT, 0))

    assert isinstance(word, Send)
    assert word.message == WantBlob(DIGEST, 4)


def test_a_size_that_cannot_be_is_not_believed() -> None:
    vault = vault_of(managers=("m1", "m2"))
    vault.fetch(0, DIGEST)

    assert vault.on_piece(1, "m2", Piece(DIGEST, 0, BLOB_LIMIT_BYTES + 1, b"0123")) == []
    assert vault.tick(RETRY_NS) == [Send(CHANNEL, "m2", WantBlob(DIGEST, 0), Lane.STREAM)]


def test_a_blob_is_fetched_from_the_holders_that_are_named() -> None:
    vault = vault_of()

    assert vault.fetch(0, DIGEST, len(CONTENT), ("w7",)) == [Send(CHANNEL, "w7", WantBlob(DIGEST, 0), Lane.STREAM)]


def test_a_silent_manager_is_asked_again_until_it_takes_too_long() -> None:
    vault = vault_of(managers=("m1", "m2"))
    vault.fetch(0, DIGEST)
    vault.keep(0, digest_of(b"other"), b"other")
    vault.on_kept(0, "m2", Kept(digest_of(b"other"), 5))

    assert vault.tick(RETRY_NS) == [Send(CHANNEL, "m2", WantBlob(DIGEST, 0), Lane.STREAM)]
    assert vault.tick(RETRY_NS + 1) == []
    assert vault.tick(LIMIT_NS) == [BlobReady(DIGEST, None)]


def test_a_manager_alone_finds_nothing_with_others() -> None:
    assert vault_of(managers=("m1",)).fetch(0, DIGEST) == [BlobReady(DIGEST, None)]


def test_what_the_disk_has_lost_is_fetched_from_others() -> None:
    vault = vault_of(managers=("m1", "m2"), has=(DIGEST,))

    assert vault.on_loaded(0, DIGEST, None) == [Send(CHANNEL, "m2", WantBlob(DIGEST, 0), Lane.STREAM)]
    assert not vault.has(DIGEST)


# -- serving


def test_others_are_served_from_what_is_being_kept_from_the_disk_or_told_that_nothing_is_here() -> None:
    vault = vault_of(has=("1" * 64,))
    vault.keep(0, DIGEST, CONTENT)

    assert vault.on_want("m2", WantBlob(DIGEST, 8)) == [Send(CHANNEL, "m2", Piece(DIGEST, 8, 10, b"89"), Lane.STREAM)]
    assert vault.on_want("m2", WantBlob("1" * 64, 8)) == [ServeBlob("m2", "1" * 64, 8)]
    assert vault.on_want("m2", WantBlob("2" * 64, 8)) == [Send(CHANNEL, "m2", Piece("2" * 64, 8, 0, b""), Lane.STREAM)]


def test_a_piece_beyond_the_end_is_of_nothing_and_at_the_end_empty() -> None:
    assert piece_of(DIGEST, CONTENT, 10) == Piece(DIGEST, 10, 10, b"")
    assert piece_of(DIGEST, CONTENT, 11) == Piece(DIGEST, 11, 0, b"")


# -- whatever happens


class Cluster:
    """Managers with disks. A blob on a disk outlives its manager; all else of it is lost when it stops."""

    def __init__(self, count: int) -> None:
        self.names = [f"m{turn}" for turn in range(count)]
        self.disks: dict[str, dict[str, bytes]] = {name: {} for name in self.names}
        self.vaults = {name: self._started(name) for name in self.names}
        self.words: list[tuple[str, Send[JobMessage]]] = []
        self.writes: list[tuple[str, ReplicatedBlobs, PersistBlob]] = []
        self.said_kept = 0
        self.ready: list[BlobReady] = []
        self.now = 0

    def _started(self, name: str) -> ReplicatedBlobs:
        return ReplicatedBlobs(name, lambda: self.names, self.disks[name], Random(name), SMALL)

    def follow(self, name: str, effects: list[object]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self.words.append((name, effect))
                case PersistBlob():
                    self.writes.append((name, self.vaults[name], effect))
                case BlobKept(digest=digest):
                    holders = [other for other in self.names if digest in self.disks[other]]
                    assert len(holders) >= majority(len(self.names)), f"only {holders} have it"
                    self.said_kept += 1
                case ServeBlob(to=to, digest=digest, offset=offset):
                    content = self.disks[name].get(digest)
                    self.words.append((name, Send(CHANNEL, to, piece_of(digest, content, offset), Lane.STREAM)))
                case LoadBlob(digest=digest):
                    self.follow(name, self.vaults[name].on_loaded(self.now, digest, self.disks[name].get(digest)))
                case BlobReady():
                    self.ready.append(effect)
                case _:
                    raise AssertionError(effect)

    def deliver(self, place: int, *, doubled: bool = False) -> None:
        sender, word = self.words[place] if doubled else self.words.pop(place)
        vault, message = self.vaults[word.to], word.message
        match message:
            case KeepBlob():
                self.follow(word.to, vault.on_keep(self.now, sender, message))
            case Kept():
                self.follow(word.to, vault.on_kept(self.now, sender, message))
            case WantBlob():
                self.follow(word.to, vault.on_want(sender, message))
            case Piece():
                self.follow(word.to, vault.on_piece(self.now, sender, message))

    def write(self) -> None:
        name, vault, persist = self.writes.pop(0)
        if vault is self.vaults[name]:  # else it stopped before the write
            self.disks[name][persist.digest] = persist.content
            self.follow(name, vault.on_persisted(self.now, persist.ticket))

    def tick(self) -> None:
        self.now += SECOND
        for name, vault in self.vaults.items():
            if self.now >= vault.next_tick_at:
                self.follow(name, vault.tick(self.now))

    def restart(self, name: str) -> None:
        self.vaults[name] = self._started(name)


@given(count=st.integers(1, 5), size=st.integers(1, 14), data=st.data())
@quick
def test_a_blob_counts_as_kept_only_with_a_majority_and_gets_there_in_the_end(
    count: int, size: int, data: st.DataObject
) -> None:
    cluster = Cluster(count)
    content = bytes(range(size))
    digest = digest_of(content)
    keeper = cluster.names[0]
    cluster.follow(keeper, cluster.vaults[keeper].keep(0, digest, content))
    for _ in range(data.draw(st.integers(0, 40))):
        event = data.draw(st.sampled_from(["deliver", "deliver", "double", "lose", "write", "tick", "restart"]))
        if event == "tick":
            cluster.tick()
        elif event == "write" and cluster.writes:
            cluster.write()
        elif event == "restart" and count > 1:
            cluster.restart(data.draw(st.sampled_from(cluster.names[1:])))
        elif event in ("deliver", "double", "lose") and cluster.words:
            place = data.draw(st.integers(0, len(cluster.words) - 1))
            if event == "lose":
                del cluster.words[place]
            else:
                cluster.deliver(place, doubled=event == "double")

    for _ in range(20):
        while cluster.words or cluster.writes:
            if cluster.writes:
                cluster.write()
            else:
                cluster.deliver(0)
        cluster.tick()
        if cluster.said_kept and not cluster.words:
            break

    assert cluster.said_kept == 1
    reader = cluster.names[-1]
    cluster.follow(reader, cluster.vaults[reader].fetch(cluster.now, digest))
    for _ in range(20):
        while cluster.words:
            cluster.deliver(0)
        cluster.tick()
    assert cluster.ready == [BlobReady(digest, content)]
