"""Secrets, what is derived from them, and the ring of keys. Golden bytes hold the ring to what was released."""

import base64
from itertools import permutations
from pathlib import Path
from random import Random

import msgspec
import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from talka.errors import Invalid, Untrusted
from talka.wire.greeting import RING_LIMIT_BYTES as CARRIED_BYTES
from talka.wire.security.keys import (
    JUMP_LIMIT,
    KEYS_LIMIT,
    MERGED_KEYS_LIMIT,
    MERGED_RETIRED_LIMIT,
    RETIRED_LIMIT,
    RING_LIMIT_BYTES,
    SECRET_LIMIT,
    BadRing,
    Key,
    Keyring,
    boot_key,
    decode_ring,
    encode_ring,
    key_id,
    parse_secrets,
    weakness,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "protocol-1" / "sealing" / "ring.hex"
HINT = "Make a good one with: talka secret -o FILE"
quick = settings(deadline=None, derandomize=True, max_examples=150)


def secret_of(number: int) -> str:
    return base64.urlsafe_b64encode(Random(number).randbytes(32)).decode()


SECRETS = tuple(secret_of(number) for number in range(MERGED_KEYS_LIMIT + 1))
IDS = tuple(key_id(secret) for secret in SECRETS)


# -- what a good secret is


@given(content=st.binary(min_size=32, max_size=48))
@quick
def test_random_secrets_of_every_usual_form_are_good(content: bytes) -> None:
    rng = Random(content)  # as even as a real one: hypothesis likes bytes that no generator would draw
    drawn = rng.randbytes(len(content))
    forms = [
        base64.urlsafe_b64encode(drawn).rstrip(b"="),
        base64.b64encode(drawn),
        drawn.hex().encode(),
        drawn.hex().upper().encode(),
    ]

    assert [weakness(form.decode()) for form in forms] == [""] * 4


@pytest.mark.parametrize(
    ("secret", "problem"),
    [
        ("k7Gq2mZx", "it has 8 characters, at least 32 are needed"),
        (secret_of(1)[:31], "it has 31 characters, at least 32 are needed"),
        (secret_of(1)[:-1] + "\u200b", "it has a character that cannot be seen"),
        (secret_of(1) + "ключ" * 200, "it has 1644 bytes, at most 1024 are allowed"),
        ("abc" * 12, "it has only 3 different characters, at least 10 are needed"),
        ("aXbXcXdXeXfXgXhXiXjXkXlXmXnXoXpX", "one character makes up more than a third of it"),
        ("x8Qm2kPz7v" * 4, "it repeats the same 10 characters"),
        ("x8Qm2kPz7v" * 4 + "x8Q", "it repeats the same 10 characters"),
        (secret_of(1)[:16] * 2, "it repeats the same 16 characters"),
        ("0123456789abcdefghijklmnopqrstuv", "most of it is characters in order"),
        ("ZYXWVUTSRQPONMLKJIHGFEDCBA9876543210", "most of it is characters in order"),
        ("qwertyuiopasdfghjklzxcvbnm1234567890", "most of it is characters in order"),
        ("k3-abcdefgh-q9-12345678-m2-stuvwxyz", "most of it is characters in order"),
        ("aaaabbbbccccddddeeeeffffgggghhhhiiiijjjj", "most of it is characters in order, or one and the same"),
        ("password1password2password3password4", "it is worth about 66 bits, at least 80 are needed"),
    ],
)
def test_a_secret_that_can_be_guessed_is_refused(secret: str, problem: str) -> None:
    assert weakness(secret).startswith(problem)


@pytest.mark.parametrize(
    "secret",
    [
        "correct horse battery staple and a donkey too",
        "abcqfghwklmzrst5uvwn123x789pcde2",  # three in a row are none
        "Съешь же ещё этих мягких французских булок",
        secret_of(5)[:32],
        secret_of(5) + "wxyz" + secret_of(6),  # a run in good company
        (secret_of(7) + secret_of(8)[:20]) * 2,  # what is repeated is long enough by itself
        secret_of(1)[:31] + secret_of(1)[:29],  # less than half of it is there twice
        "".join(secret_of(number) for number in range(30))[:SECRET_LIMIT],
    ],
)
def test_a_secret_that_cannot_be_guessed_is_taken(secret: str) -> None:
    assert weakness(secret) == ""


@pytest.mark.parametrize(("share", "is_good"), [(11, True), (12, False)])
def test_one_character_may_make_up_a_third(share: int, is_good: bool) -> None:
    others = [each for each in "AqB7cZdR8eYfWmGvHhTiPjLnMs" if each != "x"][: 33 - share]
    secret = "".join(other + "x" * (place < share) for place, other in enumerate(others))

    assert (len(secret), secret.count("x")) == (33, share)
    assert (weakness(secret) == "") is is_good


# -- the file of secrets


def test_secrets_are_read_one_a_line_without_comments_and_empty_lines() -> None:
    text = f"\ufeff# the cluster's keys\r\n  {SECRETS[0]}  \r\n\r\n   # the one before\n{SECRETS[1]}"

    assert parse_secrets(text, "keys.txt") == SECRETS[:2]


def test_as_many_secrets_as_keys_may_be_in_use_are_taken() -> None:
    assert parse_secrets("\n".join(SECRETS[:KEYS_LIMIT]), "keys.txt") == SECRETS[:KEYS_LIMIT]


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (["", "# nothing"], f"keys.txt line 1: there is no secret. {HINT}"),
        (
            ["#", "too-short"],
            f"keys.txt line 2: the secret cannot be used: it has 9 characters, at least 32 are needed. {HINT}",
        ),
        (
            [SECRETS[0], SECRETS[1], f" {SECRETS[0]}"],
            "keys.txt line 3: the secret is the same as in line 1. Remove one",
        ),
        (list(SECRETS[:9]), "keys.txt line 9: there are more than 8 secrets. Remove the oldest"),
    ],
)
def test_a_wrong_file_is_refused_by_its_line_and_never_shown(lines: list[str], sentence: str) -> None:
    with pytest.raises(Invalid) as refusal:
        parse_secrets("\n".join(lines), "keys.txt")

    assert str(refusal.value) == sentence


# -- what is derived


def test_keys_are_derived_as_the_standard_says() -> None:
    def standard(information: bytes) -> bytes:
        return HKDF(SHA256(), 32, b"talka cluster secret 1", information).derive(SECRETS[0].encode())

    assert key_id(SECRETS[0]) == standard(b"talka key id 1")[:4].hex()
    assert boot_key(SECRETS[0], 2**62) == standard(b"talka boot key 1" + (2**62).to_bytes(8, "big"))


def test_every_boot_and_every_secret_has_its_own_key() -> None:
    keys = {boot_key(secret, boot) for secret in SECRETS[:3] for boot in (0, 1, 256, 2**64 - 1)}

    assert len(keys) == 12
    assert {len(key) for key in keys} == {32}


# -- the ring


def golden_ring() -> Keyring:
    return Keyring.of(SECRETS[:2]).with_key(SECRETS[2]).with_primary(IDS[2]).without(IDS[0])


def test_golden_bytes_are_read_as_the_ring_and_written_from_it() -> None:
    golden = bytes.fromhex(GOLDEN.read_text())

    assert decode_ring(golden) == golden_ring()
    assert encode_ring(golden_ring()) == golden
    assert golden_ring().digest == "b77309f342a8335d"


def test_the_first_secret_of_a_file_is_the_primary() -> None:
    ring = Keyring.of(SECRETS[:3])

    assert (ring.version, ring.primary_id, ring.primary_secret) == (0, IDS[0], SECRETS[0])
    assert ring.accepted() == tuple(sorted(IDS[:3]))
    assert ring.secrets() == dict(zip(IDS[:3], SECRETS[:3], strict=True))


@pytest.mark.parametrize("count", [0, KEYS_LIMIT + 1])
def test_a_ring_begins_with_some_secrets_but_not_too_many(count: int) -> None:
    with pytest.raises(Invalid, match=f"^a ring begins with 1 to 8 secrets, not {count}$"):
        Keyring.of(SECRETS[:count])


def test_a_ring_does_not_begin_with_the_same_secret_twice() -> None:
    with pytest.raises(Invalid, match="^two of the secrets are the same"):
        Keyring.of((SECRETS[0], SECRETS[0]))


def test_a_rotation_adds_a_key_makes_it_primary_and_retires_the_old_one() -> None:
    ring = Keyring.of(SECRETS[:1])

    added = ring.with_key(SECRETS[1])
    assert (added.version, added.primary_id, len(added.accepted())) == (1, IDS[0], 2)
    used = added.with_primary(IDS[1])
    assert (used.version, used.primary_secret, len(used.accepted())) == (2, SECRETS[1], 2)
    alone = used.without(IDS[0])
    assert (alone.version, alone.primary_id, alone.accepted()) == (3, IDS[1], (IDS[1],))
    assert SECRETS[0].encode() not in encode_ring(alone)
    assert len({each.digest for each in (ring, added, used, alone)}) == 4


def test_a_ring_is_never_shown_with_its_secrets() -> None:
    shown = repr(Keyring.of(SECRETS[:2]))

    assert IDS[0] in shown and IDS[1] in shown
    assert SECRETS[0] not in shown and SECRETS[1] not in shown


def full_ring() -> Keyring:
    return Keyring.of(SECRETS[:KEYS_LIMIT])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda ring: ring.with_key("weak"), "the secret cannot be used: it has 4 characters"),
        (lambda ring: ring.with_key(SECRETS[1]), f"key {IDS[1]} is in use already. Make a good one"),
        (lambda ring: ring.without(IDS[1]).with_key(SECRETS[1]), f"key {IDS[1]} is retired; a retired key does not"),
        (lambda ring: ring.with_key(SECRETS[20]), "8 keys are in use, which is the limit. Retire one first"),
        (lambda ring: ring.with_primary("00000000"), "there is no key '00000000' in use. These are: "),
        (lambda ring: ring.without(IDS[1]).with_primary(IDS[1]), f"there is no key '{IDS[1]}' in use. These are: "),
        (lambda ring: ring.without("nonsense"), "there is no key 'nonsense' in use. These are: "),
        (lambda ring: ring.without(IDS[0]), f"key {IDS[0]} is the primary one. Make another key primary, then"),
    ],
    ids=[
        "a weak secret",
        "a known one",
        "a retired one",
        "a ninth",
        "an unknown primary",
        "a retired primary",
        "an unknown key retired",
        "the primary retired",
    ],
)
def test_what_would_spoil_a_ring_is_refused(change, sentence: str) -> None:
    with pytest.raises(Invalid) as refusal:
        change(full_ring())

    assert str(refusal.value).startswith(sentence)


def test_keys_can_be_exchanged_as_often_as_retired_ones_are_kept() -> None:
    ring = Keyring.of(SECRETS[:2])
    for number in range(RETIRED_LIMIT):
        new = secret_of(1000 + number)
        ring = ring.with_key(new).without(key_id(new))

    assert len(ring.accepted()) == 2
    assert len(encode_ring(ring)) < 8 * 1024
    with pytest.raises(
        Invalid, match="^256 keys were retired, which is the limit. Start the cluster with a new secret$"
    ):
        ring.without(IDS[1])


def test_what_one_member_retires_is_retired_for_one_that_was_away() -> None:
    away = Keyring.of(SECRETS[:1])
    rotated = away.with_key(SECRETS[1]).with_primary(IDS[1]).without(IDS[0])

    assert away.merge(rotated) == rotated
    assert Keyring.of(SECRETS[:1]).merge(rotated).accepted() == (IDS[1],)


def test_two_members_that_retire_each_others_primary_keep_a_key() -> None:
    both = Keyring.of(SECRETS[:2])
    one = both.with_primary(IDS[1]).without(IDS[0])
    other = both.without(IDS[1])

    merged = one.merge(other)
    assert (merged.primary_id, merged.accepted()) == (IDS[1], (IDS[1],))
    assert merged.primary_secret == SECRETS[1]
    assert decode_ring(encode_ring(merged)) == merged
    moved = merged.with_key(SECRETS[2]).with_primary(IDS[2])
    assert moved.accepted() == (IDS[2],), "once another is primary, a retired key is gone"


def test_a_merge_beyond_every_limit_is_refused() -> None:
    ring = Keyring.of(SECRETS[:KEYS_LIMIT])
    for start in range(KEYS_LIMIT, MERGED_KEYS_LIMIT, KEYS_LIMIT):
        ring = ring.merge(Keyring.of(SECRETS[start : start + KEYS_LIMIT]))

    assert len(ring.accepted()) == MERGED_KEYS_LIMIT
    with pytest.raises(BadRing, match="^a ring of 33 keys in use and 0 retired ones is over the limit of 32 and 512$"):
        ring.merge(Keyring.of(SECRETS[MERGED_KEYS_LIMIT:]))


def largest_ring(retired: int = MERGED_RETIRED_LIMIT) -> Keyring:
    keys = {key_id(secret): Key(key_id(secret), 2**62 - 1, 0, secret) for secret in long_secrets()}
    numbers = range(0, 2 * retired, 2)
    keys |= {f"{number:08x}": Key(f"{number:08x}", 2**62 - 1, 2**62 - 1, "") for number in numbers}
    return Keyring(tuple(keys[each] for each in sorted(keys)), (2**62 - 1, key_id(long_secrets()[0])))


def long_secrets() -> list[str]:
    return [Random(number).randbytes(SECRET_LIMIT // 2).hex() for number in range(MERGED_KEYS_LIMIT)]


def test_the_largest_ring_fits_what_carries_it() -> None:
    assert RING_LIMIT_BYTES <= CARRIED_BYTES
    assert len(encode_ring(largest_ring())) <= RING_LIMIT_BYTES
    assert decode_ring(encode_ring(largest_ring())) == largest_ring()


def changed(**fields: object) -> bytes:
    return encode_ring(msgspec.structs.replace(golden_ring(), **fields))


def with_first_key(**fields: object) -> bytes:
    first, *others = golden_ring().keys
    return changed(keys=(msgspec.structs.replace(first, **fields), *others))


def with_retired(secret: str) -> bytes:
    """The golden ring, whose retired key has a secret nevertheless."""
    keys = [msgspec.structs.replace(key, secret=secret) if key.retired else key for key in golden_ring().keys]
    return changed(keys=tuple(keys))


@pytest.mark.parametrize(
    ("wrong", "content"),
    [
        ("too many bytes", bytes(RING_LIMIT_BYTES + 1)),
        ("nothing", b""),
        ("nesting", b"\x91" * 5000),
        ("more than a ring", encode_ring(golden_ring()) + b"\xc0"),
        ("text that is not text", encode_ring(golden_ring()).replace(IDS[0].encode(), b"\xc3\x28" * 4)),
        ("no keys", changed(keys=())),
        ("a primary that is not there", changed(primary=(1, "00000000"))),
        ("a primary that is retired and gone", changed(primary=(9, IDS[0]))),
        ("keys in no order", changed(keys=golden_ring().keys[::-1])),
        ("a key twice", changed(keys=(golden_ring().keys[0], *golden_ring().keys))),
        ("an id that is no id", with_first_key(id="0000000G")),
        ("an id with a line after it", changed(keys=(*golden_ring().keys, Key("ffffffff\n", 0, 1, "")))),
        ("another's secret", encode_ring(Keyring((Key(IDS[0], 0, 0, SECRETS[7]),), (0, IDS[0])))),
        ("a key without a secret", with_first_key(retired=0, secret="")),
        ("a retired key with its secret", with_retired(SECRETS[0])),
        ("a version below zero", with_first_key(added=-1)),
        ("a version no counter reaches", with_first_key(added=2**62)),
        ("too many retired keys", encode_ring(largest_ring(MERGED_RETIRED_LIMIT + 1))),
    ],
)
def test_bytes_that_are_no_ring_are_refused(wrong: str, content: bytes) -> None:
    with pytest.raises(BadRing) as refusal:
        decode_ring(content)

    assert isinstance(refusal.value, Untrusted), wrong
    assert not any(secret in str(refusal.value) for secret in SECRETS[:8])


# -- the algebra: any members, any changes, any order of meeting

CHANGES = st.lists(st.tuples(st.sampled_from(["add", "use", "retire"]), st.integers(0, 5)), max_size=6)


def applied(ring: Keyring, changes: list[tuple[str, int]]) -> Keyring:
    for change, number in changes:
        try:
            if change == "add":
                ring = ring.with_key(SECRETS[number])
            else:
                ring = ring.with_primary(IDS[number]) if change == "use" else ring.without(IDS[number])
        except Invalid:
            continue
    return ring


def ring_of(first: list[int], changes: list[tuple[str, int]], repairs: int) -> Keyring:
    secrets = tuple(SECRETS[number] for number in first)
    ring = Keyring.of(secrets)
    for _ in range(repairs):
        ring = applied(ring, changes).repaired(secrets)
    return applied(ring, changes)


RINGS = st.builds(
    ring_of, st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True), CHANGES, st.sampled_from([0, 0, 0, 1, 2])
)


@given(one=RINGS, two=RINGS, three=RINGS)
@quick
def test_the_order_of_merging_never_matters(one: Keyring, two: Keyring, three: Keyring) -> None:
    results = {
        encode_ring(first.merge(second).merge(third)) for first, second, third in permutations((one, two, three))
    }
    results |= {
        encode_ring(first.merge(second.merge(third))) for first, second, third in permutations((one, two, three))
    }

    assert len(results) == 1
    merged = one.merge(two)
    assert merged.merge(merged) == merged == merged.merge(one) == two.merge(merged)


@given(one=RINGS, two=RINGS)
@quick
def test_a_merged_ring_can_always_seal_and_be_read(one: Keyring, two: Keyring) -> None:
    merged = one.merge(two)

    assert key_id(merged.primary_secret) == merged.primary_id
    latest = max(one.era, two.era)
    assert merged.era == latest
    assert merged.version == max(ring.version for ring in (one, two) if ring.era == latest)
    assert decode_ring(encode_ring(merged)) == merged
    assert (one.digest == two.digest) is (one == two)


@given(ring=RINGS, changes=CHANGES)
@quick
def test_every_change_raises_the_version_and_survives_merging_with_what_was_before(ring: Keyring, changes) -> None:
    later = applied(ring, changes)

    assume(later != ring)
    assert later.version > ring.version
    assert ring.merge(later) == later


@given(one=RINGS, two=RINGS)
@quick
def test_honest_rings_reach_each_other_whatever_was_changed_and_merged(one: Keyring, two: Keyring) -> None:
    merged = one.merge(two)

    assert one.is_reached_by(two) and two.is_reached_by(one)
    assert one.is_reached_by(merged) and merged.is_reached_by(one)
    assert Keyring.of((SECRETS[9],)).is_reached_by(merged), "also one that lost its folder"


# -- how far ahead a ring may be


def with_version(ring: Keyring, version: int) -> Keyring:
    return msgspec.structs.replace(ring, primary=(version, ring.primary_id))


def test_a_ring_too_far_ahead_is_not_reached_and_one_at_the_limit_is() -> None:
    mine = with_version(golden_ring(), 5)

    assert mine.is_reached_by(with_version(golden_ring(), 5 + JUMP_LIMIT))
    assert not mine.is_reached_by(with_version(golden_ring(), 6 + JUMP_LIMIT))
    assert not mine.is_reached_by(with_version(golden_ring(), 2**61))


def test_an_era_too_far_ahead_is_not_reached_nor_one_that_begins_too_far_ahead() -> None:
    mine = golden_ring()
    at_limit, above = (msgspec.structs.replace(mine, era=era) for era in (JUMP_LIMIT, JUMP_LIMIT + 1))

    assert mine.is_reached_by(at_limit) and not mine.is_reached_by(above)
    assert mine.is_reached_by(with_version(at_limit, JUMP_LIMIT))
    assert not mine.is_reached_by(with_version(at_limit, JUMP_LIMIT + 1))
    assert above.is_reached_by(with_version(mine, 2**61)), "what is of an earlier era changes nothing"
    assert above.merge(with_version(mine, 2**61)) == above


def test_nobody_changes_a_ring_beyond_what_a_new_member_would_believe() -> None:
    ring = with_version(golden_ring().with_key(SECRETS[9]), JUMP_LIMIT - 1).with_primary(IDS[9])

    assert ring.version == JUMP_LIMIT and Keyring.of((SECRETS[8],)).is_reached_by(ring)
    for change in (
        lambda: ring.with_key(SECRETS[10]),
        lambda: ring.with_primary(IDS[9]),
        lambda: ring.without(next(id for id in ring.accepted() if id != ring.primary_id)),
    ):
        with pytest.raises(Invalid, match=f"at version {JUMP_LIMIT}.*talka cluster keys --repair FILE"):
            change()
    assert ring.repaired((SECRETS[10],)).with_key(SECRETS[11]).version == 1


def test_a_repaired_ring_outranks_all_that_was_before_and_nothing_of_it_is_left() -> None:
    hostile = with_version(Keyring.of(SECRETS[:8]), 2**61)
    good = hostile.repaired((SECRETS[9], SECRETS[10]))

    assert good.merge(hostile) == hostile.merge(good) == good
    assert (good.era, good.version, good.accepted()) == (1, 0, tuple(sorted(IDS[9:11])))
    assert good.primary_id == IDS[9]
    assert good.digest != Keyring.of(SECRETS[9:11]).digest
    assert good.repaired(SECRETS[:1]).merge(good) == good.repaired(SECRETS[:1])


def test_a_ring_of_an_earlier_release_is_of_the_first_era() -> None:
    earlier = msgspec.msgpack.encode(msgspec.msgpack.decode(encode_ring(golden_ring()))[:2])

    assert decode_ring(earlier) == golden_ring() and golden_ring().era == 0
