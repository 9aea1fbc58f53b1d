"""Frames that nobody should send do no harm; `make fuzz` sends many more of them."""

from random import Random

import pytest

from talka.wire.packets import decode_packet
from talka.wire.security.keys import decode_ring
from tests.wire import fuzz


def test_fifty_thousand_frames_are_taken_or_refused_and_the_memory_stays_flat() -> None:
    report = fuzz.run(50_000, seed=1)

    assert report.faults == []
    assert sum(report.kinds.values()) == 50_000
    assert min(report.kinds.values()) > 2_000, "every kind has its share"
    assert report.final_kib - report.early_kib <= fuzz.GROWTH_LIMIT_KIB
    for stage, counts in report.outcomes.items():
        assert counts.get(fuzz.TAKEN, 0) > 0, f"{stage} was not reached by anything it could take"
        assert len(counts) > 1 or stage == "merged rings", f"{stage} was not reached by anything it had to refuse"
    reasons = {stage: set(counts) - {fuzz.TAKEN} for stage, counts in report.outcomes.items()}
    assert reasons["framing"] == {"too-long"}
    assert reasons["unpacking"] == {"malformed", "bomb"}
    assert reasons["sealing"] == {"short", "version", "key", "forged"}
    assert reasons["packets"] == {"malformed", "protocol"}


def test_what_is_spoilt_was_right_before() -> None:
    corpus = fuzz.Corpus(Random(1))
    for name, channel in fuzz.CONVERSATIONS.items():
        decoded = [channel.decode(content) for content in corpus.messages[name]]
        assert {type(each) for each in decoded} == set(channel.kinds)
    for content in corpus.packets:
        decode_packet(content)
    for content in corpus.rings:
        decode_ring(content)

    taken = [0] * len(fuzz.SHARDS)
    for content in corpus.messages["shards"]:
        for place, decode in enumerate(fuzz.SHARDS.values()):
            taken[place] += decodes(decode, content)
    assert min(taken) >= 4 and sum(taken) >= len(corpus.messages["shards"])
    handlers = corpus.messages["handlers"]
    assert all(any(decodes(decode, content) for decode in fuzz.HANDLERS.values()) for content in handlers)
    jobs = corpus.messages["jobs"]
    assert all(any(decodes(decode, content) for decode in fuzz.JOBS.values()) for content in jobs)


def decodes(decode, content: bytes) -> bool:
    try:
        decode(content)
    except fuzz.Untrusted:
        return False
    return True


def test_a_seed_makes_the_same_frames_again() -> None:
    first, again, other = (list(fuzz.Fuzzer(seed).frames(300)) for seed in (1, 1, 2))

    assert first == again
    assert first != other


def test_anything_unexpected_is_shown_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def careless(data: bytes) -> object:
        return {}[data[:1]]

    monkeypatch.setitem(fuzz.SHARDS, "to core", careless)

    assert fuzz.main(["--frames", "200", "--seed", "3"]) == 1
    shown = capsys.readouterr().out
    assert "FAULT in to core: KeyError: " in shown
    assert shown.count("FAULT in ") == fuzz.FAULTS_SHOWN
    assert shown.endswith("200 faults\n")


def test_a_refusal_without_a_sentence_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def mute(data: bytes) -> object:
        raise fuzz.Untrusted

    monkeypatch.setitem(fuzz.SHARDS, "to core", mute)

    assert fuzz.run(50, seed=1).fault_count == 50


@pytest.mark.parametrize(("growth_kib", "code"), [(0, 0), (fuzz.GROWTH_LIMIT_KIB, 0), (fuzz.GROWTH_LIMIT_KIB + 1, 1)])
def test_memory_that_grows_fails(
    growth_kib: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    peaks = iter([1000, 1000 + growth_kib])
    monkeypatch.setattr(fuzz, "peak_kib", lambda: next(peaks))

    assert fuzz.main(["--frames", "100"]) == code
    shown = capsys.readouterr().out
    assert f"memory: 1000 KiB after the first tenth, {1000 + growth_kib} KiB at the end\n" in shown
    assert ("FAULT: the memory grew" in shown) is (code == 1)
    assert "100 frames of seed 1 in " in shown
