"""Whole results on their way from workers into the checkpoint."""

from hashlib import sha256

from talka.control.jobs.attempt_results import AttemptResults
from talka.control.jobs.effects import BlobWanted
from talka.control.load.shard_run import ShardAttempt
from talka.stats.tally import Tally
from talka.wire.jobs import AttemptResult, decode_result, encode_result

RESULT = AttemptResult("b4k7", 3, Tally(started=5), [])
CONTENT = encode_result(RESULT)
DIGEST = sha256(CONTENT).hexdigest()


def test_a_result_is_fetched_from_who_offers_it_and_is_known_from_then_on() -> None:
    results = AttemptResults("b4k7")
    assert not results.is_known(3, DIGEST)

    assert results.fetch(3, DIGEST, 70, "w1") == BlobWanted("b4k7", DIGEST, 70, ("w1",))

    assert results.is_fetching and results.is_fetched(3) and results.is_known(3, DIGEST)
    assert results.fetched(DIGEST, CONTENT) == (3, RESULT)
    assert results.fetched(DIGEST, CONTENT) is None, "nobody asked again"
    assert not results.is_fetching


def test_a_result_that_nobody_has_or_can_read_is_none() -> None:
    results = AttemptResults("b4k7")
    results.fetch(3, DIGEST, 70, "w1")
    assert results.fetched(DIGEST, None) == (3, None)
    results.fetch(3, DIGEST, 70, "w1")
    assert results.fetched(DIGEST, b"\xc1") == (3, None)


def test_a_result_is_here_while_a_majority_is_given_it_and_after() -> None:
    results = AttemptResults("b4k7")

    wanted = results.keep(DIGEST, CONTENT, RESULT)

    assert (wanted.job, wanted.digest, wanted.content) == ("b4k7", DIGEST, CONTENT)
    assert results.has(3) and results.is_known(3, DIGEST) and not results.is_known(3, "another")
    assert results.release(DIGEST) == RESULT
    assert results.release(DIGEST) is None
    assert not results.has(3)
    results.kept[3] = DIGEST
    assert results.has(3) and results.is_known(3, "another")


def test_attempts_whose_results_are_anywhere_on_their_way_are_arriving() -> None:
    results = AttemptResults("b4k7")
    results.fetch(1, "one", 70, "w1")
    results.keep(DIGEST, CONTENT, RESULT)
    results.kept[5] = "five"

    assert list(results.arriving()) == [1, 3, 5]


def test_results_that_a_checkpoint_names_are_fetched_from_managers() -> None:
    results = AttemptResults("b4k7")

    assert results.fetch_kept({3: DIGEST}) == [BlobWanted("b4k7", DIGEST, 0, ())]

    assert results.kept == {3: DIGEST}


def test_the_last_counts_of_a_lost_attempt_are_its_result() -> None:
    attempt = ShardAttempt(3, 0, "w1")
    attempt.tally, attempt.started_at_ns, attempt.reported_ns, attempt.life = Tally(started=5), 110, 170, 9

    wanted = AttemptResults("b4k7").keep_counts(attempt, {"at": b"7"}, origin_ns=100)

    result = decode_result(wanted.content)
    assert wanted.digest == sha256(wanted.content).hexdigest()
    assert (result.attempt, result.tally.started, result.is_lost, result.worker, result.life) == (3, 5, True, "w1", 9)
    assert (result.started_at_ns, result.ended_at_ns) == (10, 70)
