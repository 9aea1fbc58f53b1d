"""The seal around frames between members. Golden bytes hold it to what was released."""

import subprocess
import sys
from base64 import urlsafe_b64encode
from pathlib import Path
from random import Random

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.errors import Invalid, Untrusted
from talka.wire.security import sealing
from talka.wire.security.keys import Keyring, boot_key, key_id
from talka.wire.security.sealing import SEAL_BYTES, BadSeal, Opened, Seal

GOLDEN = Path(__file__).parents[1] / "golden" / "protocol-1" / "sealing"
quick = settings(deadline=None, derandomize=True, max_examples=150)

SECRETS = tuple(urlsafe_b64encode(Random(number).randbytes(32)).decode() for number in range(4))
IDS = tuple(key_id(secret) for secret in SECRETS)
RING = Keyring.of(SECRETS[:2])
BOOT = 4_611_686_018_427_387_903


def test_golden_bytes_are_opened_and_made_again() -> None:
    seal = Seal(RING, BOOT)
    golden = {name: bytes.fromhex((GOLDEN / f"{name}.hex").read_text()) for name in ("frame", "frame-addressed")}

    assert Seal(RING, 1).open(golden["frame"]) == Opened(b"hello", BOOT, 300, IDS[0], False)
    assert Seal(RING, 1).open(golden["frame-addressed"], me="b") == Opened(b"hello", BOOT, 301, IDS[1], True)
    assert seal.seal(300, b"hello") == golden["frame"]
    assert seal.seal(301, b"hello", key_id=IDS[1], to="b") == golden["frame-addressed"]


def test_a_sealed_frame_is_a_header_that_is_bound_and_a_ciphertext_under_the_boots_key() -> None:
    sealed = Seal(RING, 7).seal(5, b"hello", to="wörker")
    header = b"\x01\x01" + bytes.fromhex(IDS[0]) + (7).to_bytes(8, "big") + (5).to_bytes(8, "big")

    assert sealed[:22] == header
    cipher = AESGCM(boot_key(SECRETS[0], 7))
    assert cipher.decrypt((5).to_bytes(12, "big"), sealed[22:], header + "wörker".encode()) == b"hello"


@given(
    content=st.binary(max_size=300),
    boot=st.integers(0, 2**64 - 1),
    counter=st.integers(0, 2**64 - 1),
    key=st.sampled_from(["", *IDS[:2]]),
    to=st.text(max_size=20),
)
@quick
def test_what_is_sealed_is_opened_to_the_same(content: bytes, boot: int, counter: int, key: str, to: str) -> None:
    sealed = Seal(RING, boot).seal(counter, content, key_id=key, to=to)

    assert len(sealed) == len(content) + SEAL_BYTES
    assert Seal(RING, 1).open(sealed, me=to) == Opened(content, boot, counter, key or IDS[0], to != "")


@pytest.mark.parametrize("to", ["", "b"])
def test_no_bit_can_be_changed(to: str) -> None:
    seal, receiver = Seal(RING, BOOT), Seal(RING, 1)
    sealed = seal.seal(1, b"vote for me", to=to)
    assert receiver.open(sealed, me="b").content == b"vote for me"
    reasons = []
    for bit in range(8 * len(sealed)):
        spoilt = bytearray(sealed)
        spoilt[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadSeal) as refusal:
            receiver.open(bytes(spoilt), me="b")
        reasons.append(refusal.value.reason)

    # The lowest bit of the flags turns one kind of frame into the other.
    header = ["version"] * 8 + ["forged"] + ["version"] * 7 + ["key"] * 32
    assert reasons == header + ["forged"] * (8 * len(sealed) - len(header))


@given(data=st.data())
@quick
def test_no_frame_can_be_cut_or_made_longer(data: st.DataObject) -> None:
    sealed = Seal(RING, BOOT).seal(1, b"vote for me")
    spoilt = data.draw(
        st.one_of(
            st.integers(0, len(sealed) - 1).map(lambda end: sealed[:end]),
            st.binary(min_size=1, max_size=50).map(lambda more: sealed + more),
        )
    )
    with pytest.raises(BadSeal) as refusal:
        Seal(RING, 1).open(spoilt)

    assert refusal.value.reason == ("short" if len(spoilt) < SEAL_BYTES else "forged")


@given(content=st.binary(max_size=100))
@quick
def test_random_bytes_raise_nothing_but_untrusted(content: bytes) -> None:
    with pytest.raises(Untrusted):
        Seal(RING, 1).open(content)


@given(to=st.text(min_size=1, max_size=10), me=st.text(max_size=10))
@quick
def test_a_frame_for_one_member_does_not_open_at_another(to: str, me: str) -> None:
    sealed = Seal(RING, BOOT).seal(1, b"vote for me", to=to)
    if to == me:
        assert Seal(RING, 1).open(sealed, me=me).addressed
        return
    with pytest.raises(BadSeal) as refusal:
        Seal(RING, 1).open(sealed, me=me)

    assert refusal.value.reason == "forged"


def test_a_frame_for_anybody_opens_at_everybody() -> None:
    sealed = Seal(RING, BOOT).seal(1, b"gossip")

    assert {Seal(RING, 1).open(sealed, me=name).addressed for name in ("", "b", "c")} == {False}


@pytest.mark.parametrize(
    ("sealed", "reason", "sentence"),
    [
        (b"", "short", "a frame of 0 bytes is shorter than its seal of 38"),
        (bytes(37), "short", "a frame of 37 bytes is shorter than its seal of 38"),
        (b"\x02" + bytes(37), "version", "a frame has a seal of version 2 with flags 0, this member cannot open it"),
        (
            b"\x01\x02" + bytes(36),
            "version",
            "a frame has a seal of version 1 with flags 2, this member cannot open it",
        ),
        (b"\x01" + bytes(37), "key", "a frame is sealed with key 00000000, which this member does not accept"),
        (
            b"\x01\x00" + bytes.fromhex(IDS[1]) + bytes(32),
            "forged",
            f"a frame under key {IDS[1]} was changed, forged, or is bound to another member",
        ),
    ],
    ids=["nothing", "a byte too short", "another version", "an unknown flag", "an unknown key", "no tag"],
)
def test_a_frame_that_cannot_be_opened_says_why(sealed: bytes, reason: str, sentence: str) -> None:
    with pytest.raises(BadSeal) as refusal:
        Seal(RING, 1).open(sealed)

    assert (refusal.value.reason, str(refusal.value)) == (reason, sentence)
    assert isinstance(refusal.value, Untrusted)


def test_another_clusters_frame_is_told_by_its_key() -> None:
    with pytest.raises(BadSeal) as refusal:
        Seal(RING, 1).open(Seal(Keyring.of(SECRETS[2:3]), 1).seal(1, b"hello"))

    assert refusal.value.reason == "key"


# -- counters


@pytest.mark.parametrize("counter", [-1, 0, 6, 7, 2**64])
def test_a_counter_is_used_once_and_grows(counter: int) -> None:
    seal = Seal(RING, BOOT)
    seal.seal(0, b"first")
    seal.seal(7, b"second")
    with pytest.raises(Invalid, match=f"^counter {counter} cannot seal a frame: it must be above 7 and fit 8 bytes$"):
        seal.seal(counter, b"third")

    assert seal.seal(8, b"third"), "a refused counter leaves no trace"
    assert seal.seal(2**64 - 1, b"last")


def test_each_key_counts_by_itself() -> None:
    seal = Seal(RING, BOOT)

    assert seal.seal(7, b"hello") != seal.seal(7, b"hello", key_id=IDS[1])
    with pytest.raises(Invalid):
        seal.seal(7, b"hello", key_id=IDS[1])


def test_a_key_that_left_and_came_back_does_not_count_from_the_start() -> None:
    seal = Seal(RING, BOOT)
    seal.seal(7, b"hello", key_id=IDS[1])
    seal.ring = Keyring.of(SECRETS[:1])
    seal.ring = RING
    with pytest.raises(Invalid, match="must be above 7 "):
        seal.seal(7, b"other", key_id=IDS[1])


@pytest.mark.parametrize("boot", [-1, 2**64])
def test_a_boot_that_does_not_fit_is_refused(boot: int) -> None:
    with pytest.raises(Invalid, match=f"^boot {boot} does not fit 8 bytes$"):
        Seal(RING, boot)


# -- rotation


def test_a_frame_goes_under_the_key_asked_for_while_it_is_accepted() -> None:
    seal, receiver = Seal(RING, BOOT), Seal(RING, 1)

    assert receiver.open(seal.seal(1, b"", key_id=IDS[1])).key_id == IDS[1]
    assert receiver.open(seal.seal(2, b"", key_id=IDS[3])).key_id == IDS[0]
    seal.ring = RING.without(IDS[1])
    assert receiver.open(seal.seal(3, b"", key_id=IDS[1])).key_id == IDS[0]


def test_a_rotation_holds_for_the_next_frame() -> None:
    seal, receiver = Seal(RING, BOOT), Seal(RING, 1)
    old = seal.seal(1, b"old")
    assert receiver.open(old).key_id == IDS[0]

    rotated = RING.with_key(SECRETS[2]).with_primary(IDS[2]).without(IDS[0])
    seal.ring = receiver.ring = rotated
    assert receiver.ring is rotated
    assert receiver.open(seal.seal(2, b"new")) == Opened(b"new", BOOT, 2, IDS[2], False)
    with pytest.raises(BadSeal) as refusal:
        receiver.open(old)
    assert refusal.value.reason == "key"


def test_a_ring_that_did_not_change_keeps_the_counters() -> None:
    seal = Seal(RING, BOOT)
    seal.seal(9, b"hello")
    seal.ring = RING.with_key(SECRETS[2])
    with pytest.raises(Invalid):
        seal.seal(9, b"other")


# -- keys are derived once for each life, and only frames that open are remembered


@pytest.fixture
def derived(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The boots that a key was derived for, in order."""
    boots: list[int] = []

    def counting(secret: str, boot: int) -> bytes:
        boots.append(boot)
        return boot_key(secret, boot)

    monkeypatch.setattr(sealing, "boot_key", counting)
    return boots


def test_the_key_of_a_life_is_derived_once(derived: list[int]) -> None:
    seal, receiver = Seal(RING, 5), Seal(RING, 1)
    derived.clear()
    for counter in range(3):
        receiver.open(seal.seal(counter, b"hello"))

    assert derived == [5]


def test_what_costs_nothing_is_checked_before_a_key_is_derived(derived: list[int]) -> None:
    receiver = Seal(RING, 1)
    derived.clear()
    for sealed in (bytes(37), b"\x02" + bytes(40), b"\x01\x02" + bytes(40), b"\x01" + bytes(40)):
        with pytest.raises(BadSeal):
            receiver.open(sealed)

    assert derived == []


def test_the_life_used_longest_ago_is_forgotten_first_and_a_forger_displaces_nobody(
    derived: list[int],
) -> None:
    receiver = Seal(RING, 1, ciphers_limit=2)
    frames = {boot: Seal(RING, boot).seal(1, b"hello") for boot in (5, 6, 7)}
    for boot in (5, 6, 5):
        receiver.open(frames[boot])
    for boot in range(100, 110):
        with pytest.raises(BadSeal):
            receiver.open(b"\x01\x00" + bytes.fromhex(IDS[0]) + boot.to_bytes(8, "big") + bytes(24))
    derived.clear()

    for boot in (7, 5, 6):
        receiver.open(frames[boot])
    assert derived == [7, 6]


def test_keys_of_a_retired_secret_are_forgotten(derived: list[int]) -> None:
    receiver = Seal(RING, 1)
    frames = [Seal(RING, 5).seal(1, b"hello", key_id=each) for each in IDS[:2]]
    for frame in frames:
        receiver.open(frame)
    derived.clear()
    receiver.ring = RING.without(IDS[1])
    receiver.ring = RING
    assert derived == [1], "its own key under the secret that came back"

    for frame in frames:
        receiver.open(frame)
    assert derived == [1, 5]


def test_sealing_brings_in_neither_certificates_nor_sockets() -> None:
    listing = "import sys, talka.wire.security.sealing; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True, timeout=60)

    loaded = found.stdout.split()
    assert "talka.wire.security.keys" in loaded
    assert not [name for name in loaded if "x509" in name or name in ("ssl", "socket", "dns", "asyncio")]


# -- spare secrets


def test_a_spare_secret_opens_only_what_is_asked_to_be_opened_with_it() -> None:
    seal = Seal(Keyring.of(SECRETS[:1]), 1, SECRETS[2:3])
    sealed = Seal(Keyring.of(SECRETS[2:3]), 9).seal(1, b"hello")

    with pytest.raises(BadSeal, match="does not accept"):
        seal.open(sealed)
    assert seal.open(sealed, spare=True) == Opened(b"hello", 9, 1, IDS[2], False, is_spare=True)
    with pytest.raises(BadSeal, match="does not accept"):
        seal.open(Seal(Keyring.of(SECRETS[3:4]), 9).seal(1, b"hello"), spare=True)
    with pytest.raises(BadSeal, match=f"under key {IDS[2]} was changed"):
        seal.open(sealed[:-1] + bytes([sealed[-1] ^ 1]), spare=True)


def test_a_spare_secret_seals_when_it_is_named_and_never_by_itself() -> None:
    seal = Seal(Keyring.of(SECRETS[:1]), 1, SECRETS[2:3])

    assert Seal(Keyring.of(SECRETS[2:3]), 9).open(seal.seal(1, b"hello", key_id=IDS[2])).content == b"hello"
    assert seal.seal(2, b"hello")[2:6].hex() == IDS[0]


def test_a_spare_secret_that_is_in_the_ring_is_a_key_as_any_other_and_stays_when_it_leaves_it() -> None:
    seal = Seal(RING, 1, SECRETS[1:2])
    sealed = Seal(Keyring.of(SECRETS[1:2]), 9).seal(1, b"hello")
    assert not seal.open(sealed).is_spare
    seal.seal(5, b"", key_id=IDS[1])

    seal.ring = RING.without(IDS[1])

    assert seal.open(sealed, spare=True).is_spare
    with pytest.raises(Invalid, match="must be above 5"):
        seal.seal(5, b"", key_id=IDS[1])
