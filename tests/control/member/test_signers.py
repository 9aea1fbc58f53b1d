"""Whose word a worker takes for a bundle, and whom a leader names."""

from talka.cluster.safeguards import Safeguards
from talka.control.member.signers import CHECKED_LIMIT, SIGNERS_LIMIT, UNKNOWN_NS, Signers, SignersNamed
from talka.units import SECOND
from talka.wire.jobs import SIGNERS_LIMIT as NAMED_LIMIT
from talka.wire.security.bundles import BundleSigner, BundleWord

DIGEST = "5e" * 32


def signer(number: int, group: str = "g") -> BundleSigner:
    return BundleSigner(number.to_bytes(32), group)


OURS, OTHER = signer(1), signer(2)


def test_without_certificates_the_word_of_a_key_holds_that_the_leader_has_named() -> None:
    signers = Signers("g")
    signers.name([OURS.public])

    assert signers.judge(0, DIGEST, OURS.sign(DIGEST)) == "holds"


def test_no_word_and_what_is_no_word_is_refused() -> None:
    signers = Signers("g")
    for content in (b"", b"signed"):
        assert (signers.judge(0, DIGEST, content), signers.problem) == ("refused", "no manager has signed this bundle")


def test_a_word_for_another_bundle_or_another_cluster_is_refused() -> None:
    signers = Signers("g")
    signers.name([OURS.public])
    for content in (OURS.sign("5f" * 32), signer(1, "other").sign(DIGEST)):
        assert signers.judge(0, DIGEST, content) == "refused"
        assert signers.problem == "the signature of this bundle is of another bundle, or was changed"


def test_a_key_that_nobody_named_is_waited_for_and_then_refused() -> None:
    signers = Signers("g")
    signers.name([OURS.public])

    assert signers.judge(SECOND, DIGEST, OTHER.sign(DIGEST)) == "unknown"
    assert signers.judge(SECOND + UNKNOWN_NS - 1, "5f" * 32, OTHER.sign("5f" * 32)) == "unknown"
    assert signers.judge(SECOND + UNKNOWN_NS, DIGEST, OTHER.sign(DIGEST)) == "refused"
    assert signers.problem == "no manager that the cluster's leader names has signed this bundle"

    signers.name([OTHER.public])
    assert signers.judge(SECOND + UNKNOWN_NS, DIGEST, OTHER.sign(DIGEST)) == "holds"


def test_what_was_checked_is_not_checked_again(monkeypatch) -> None:
    signers, checked = Signers("g"), []
    signers.name([OURS.public, OTHER.public])
    holds = BundleWord.holds

    def counted(self: BundleWord, group: str, digest: str) -> bool:
        checked.append((self.signer, digest))
        return holds(self, group, digest)

    monkeypatch.setattr(BundleWord, "holds", counted)
    for _ in range(3):
        assert signers.judge(0, DIGEST, OURS.sign(DIGEST)) == "holds"
        assert signers.judge(0, DIGEST, OTHER.sign(DIGEST)) == "holds"

    assert checked == [(OURS.public, DIGEST), (OTHER.public, DIGEST)]


def test_with_certificates_a_voucher_is_needed_and_names_count_for_nothing() -> None:
    asked: list[tuple[bytes, bytes]] = []

    def doubt(key: bytes, voucher: bytes) -> str:
        asked.append((key, voucher))
        return "" if voucher == b"m1's" else "w is a worker"

    signers = Signers("g", doubt)
    signers.name([OTHER.public])
    ours, other = signer(1), signer(2)
    ours.voucher = b"m1's"

    assert signers.judge(0, DIGEST, ours.sign(DIGEST)) == "holds"
    assert signers.judge(0, DIGEST, other.sign(DIGEST)) == "refused"
    assert signers.problem == "no manager has signed this bundle: w is a worker"
    assert asked == [(ours.public, b"m1's"), (other.public, b"")]


def test_a_voucher_is_looked_at_every_time_since_certificates_end() -> None:
    problems = ["", "the certificate of 'm1' has expired"]
    signers = Signers("g", lambda key, voucher: problems.pop(0))

    assert [signers.judge(0, DIGEST, OURS.sign(DIGEST)) for _ in range(2)] == ["holds", "refused"]


def test_a_worker_keeps_so_many_keys_and_no_more() -> None:
    signers = Signers("g")
    signers.name([OURS.public])
    signers.name(number.to_bytes(32) for number in range(SIGNERS_LIMIT - 1))
    assert signers.judge(0, DIGEST, OURS.sign(DIGEST)) == "holds"

    signers.name([OURS.public, b"x" * 32])  # the one that was named longest ago goes
    assert signers.judge(0, DIGEST, OURS.sign(DIGEST)) == "holds"

    signers.name(b"y" + number.to_bytes(31) for number in range(SIGNERS_LIMIT))
    assert signers.judge(0, DIGEST, OURS.sign(DIGEST)) == "unknown"


def test_of_keys_that_nobody_named_so_many_are_remembered() -> None:
    signers = Signers("g")
    for number in range(SIGNERS_LIMIT + 1):
        assert signers.judge(0, DIGEST, signer(number + 1).sign(DIGEST)) == "unknown"

    assert signers.judge(UNKNOWN_NS, DIGEST, signer(1).sign(DIGEST)) == "unknown", "it is met anew"
    assert signers.judge(UNKNOWN_NS, DIGEST, signer(SIGNERS_LIMIT + 1).sign(DIGEST)) == "refused"


def test_so_many_checks_are_remembered_and_no_more() -> None:
    signers = Signers("g")
    signers.name([OURS.public])
    for number in range(CHECKED_LIMIT + 5):
        digest = f"{number:064x}"
        assert signers.judge(0, digest, OURS.sign(digest)) == "holds"

    assert len(signers._checked) == CHECKED_LIMIT


def test_without_the_safeguard_everything_is_taken() -> None:
    signers = Signers("g", safeguards=Safeguards(signed_bundles=False))

    assert signers.judge(0, DIGEST, b"") == "holds"


def test_a_leader_names_its_own_key_and_those_of_jobs_it_keeps() -> None:
    named = SignersNamed(OURS.public)
    for content in (OTHER.sign(DIGEST), OTHER.sign("5f" * 32), OURS.sign(DIGEST), b"", b"signed"):
        named.add(content)

    assert named.keys == (OURS.public, OTHER.public)


def test_a_leader_names_so_many_keys_its_own_always_among_them() -> None:
    named = SignersNamed(OURS.public)
    last = [signer(number + 10) for number in range(NAMED_LIMIT + 3)]
    for one in last:
        named.add(one.sign(DIGEST))

    assert named.keys == (OURS.public, *(one.public for one in last[-(NAMED_LIMIT - 1) :]))


def test_where_certificates_vouch_a_leader_names_nobody() -> None:
    named = SignersNamed(b"")
    named.add(OTHER.sign(DIGEST))

    assert named.keys == ()
