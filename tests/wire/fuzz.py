"""Frames that nobody should send, through everything that reads frames: `python -m tests.wire.fuzz --frames 1000000`.

Every input goes through framing, unpacking, sealing, packets, rings and every decoder of messages. It may be taken or
refused as untrusted; anything else is a fault. The same seed makes the same frames.
"""

import argparse
import resource
import sys
import time
import zlib
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import inspect

from talka.errors import Untrusted
from talka.wire import asking, greeting, jobs, leadership, leases, membership, shards, tasks
from talka.wire.channels import Channel
from talka.wire.framing import FRAME_LIMIT_BYTES, Deframer, framed, packed, unpacked
from talka.wire.packets import PROTOCOL, Packet, decode_packet, encode_packet
from talka.wire.security.keys import Keyring, decode_ring, encode_ring, key_id
from talka.wire.security.sealing import Seal

GROWTH_LIMIT_KIB: Final = 16 * 1024
"""How much the memory may grow after the first tenth of the frames."""
FAULTS_SHOWN: Final = 20
GOLDEN: Final = Path(__file__).parent / "golden" / "protocol-1"
ME: Final = "manager-1"
TAKEN: Final = "taken"


CONVERSATIONS: Final[dict[str, Channel[Any]]] = {
    channel.name: channel
    for channel in (
        membership.CHANNEL,
        membership.UPDATES,
        leadership.CHANNEL,
        leases.CHANNEL,
        greeting.CHANNEL,
        asking.CHANNEL,
    )
}
# Their messages hold tallies that not every number fits, so they are not made but taken from the golden bytes.
SHARDS: Final[dict[str, Callable[[bytes], object]]] = {
    "to core": shards.decode_to_core,
    "from core": shards.decode_from_core,
    "from worker": shards.decode_unread,
}
HANDLERS: Final[dict[str, Callable[[bytes], object]]] = {
    "to handlers": tasks.decode_to_handlers,
    "from handlers": tasks.decode_from_handlers,
}
JOBS: Final[dict[str, Callable[[bytes], object]]] = {"jobs": jobs.decode, "results": jobs.decode_result}

WILD: Final[list[object]] = [
    None, True, -1, 0, 1, 2**31, 2**62, 2**63, 2**64 - 1, -(2**63), 0.5, float("inf"), float("nan"),
    "", "x", "x" * 300, "\U0001f600" * 70, b"", bytes(600), [], [[], [[]]], [0] * 70, {}, {"a": 1}, {1: [2]},
]  # fmt: skip
PIECES: Final = (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\x7f\xff\xff\xff",
                 b"\xc1", b"\xc3\x28", b"\xff" * 9, b"\x91" * 300, b"\x81\xa1a" * 200, b"\xd9\xff",
                 b"\xcf" + b"\xff" * 8)  # fmt: skip


# -- valid values, made from the types of the messages


def made(kind: inspect.Type, rng: Random) -> Any:
    """A value that a decoder of this type takes, in the form in which it is encoded."""
    match kind:
        case inspect.StructType(tag=tag, array_like=True, fields=fields):
            first = [] if tag is None else [tag]
            return first + [made(field.type, rng) for field in fields]
        case inspect.UnionType(types=types):
            return made(rng.choice(types), rng)
        case inspect.IntType(ge=least, le=most, lt=above):
            low = 0 if least is None else least
            high = most if most is not None else (2**63 - 1 if above is None else above - 1)
            return rng.choice([low, min(high, low + rng.getrandbits(6)), rng.randint(low, high), high])
        case inspect.StrType(min_length=least, max_length=most):
            return "".join(rng.choice("aé-7\U0001f600") for _ in range(size(least, most, rng)))
        case inspect.BytesType(min_length=least, max_length=most):
            return rng.randbytes(size(least, most, rng))
        case inspect.BoolType():
            return rng.random() < 0.5
        case inspect.NoneType():
            return None
        case inspect.LiteralType(values=values):
            return rng.choice(values)
        case inspect.TupleType(item_types=types):
            return [made(each, rng) for each in types]
        case (
            inspect.ListType(item_type=each, min_length=least, max_length=most)
            | inspect.VarTupleType(item_type=each, min_length=least, max_length=most)
        ):
            return [made(each, rng) for _ in range(size(least, 3 if most is None else min(most, 3), rng))]
        case _:
            raise AssertionError(f"no value is made of {kind}: teach it here")


def size(least: int | None, most: int | None, rng: Random) -> int:
    low, high = least or 0, 40 if most is None else most
    return rng.choice([low, min(high, low + 8), min(high, low + rng.getrandbits(6)), min(high, 512)])


def golden(*folders: str) -> list[bytes]:
    paths = (path for folder in folders for path in sorted((GOLDEN / folder).glob("*.hex")))
    return [bytes.fromhex(path.read_text()) for path in paths]


class Corpus:
    """Valid input of every sort, to be spoilt."""

    def __init__(self, rng: Random) -> None:
        self.messages: dict[str, list[bytes]] = {
            name: [
                msgspec.msgpack.encode(made(inspect.type_info(kind), rng)) for kind in channel.kinds for _ in range(6)
            ]
            for name, channel in CONVERSATIONS.items()
        }
        self.messages["shards"] = golden("shards", "unread")
        self.messages["jobs"] = golden("jobs", "tasks", "results")
        self.messages["handlers"] = golden("handlers")
        # As many as of each kind of message, for what is taken only rarely is hardly tried.
        self.messages["results"] = 6 * golden("results")
        bodies = [*CONVERSATIONS, "jobs"]
        self.packets = [self._packet(name, body, rng) for name in bodies for body in self.messages[name]]
        secrets = [urlsafe_b64encode(rng.randbytes(32)).decode() for _ in range(4)]
        ring = Keyring.of(tuple(secrets[:3]))
        rotated = ring.with_key(secrets[3]).with_primary(key_id(secrets[3])).without(key_id(secrets[1]))
        self.rings = [
            encode_ring(each) for each in (ring, rotated, Keyring.of(tuple(secrets[:1])), ring.merge(rotated))
        ]
        self.receiver = Seal(ring, 1)
        self._ids = ["", *ring.accepted()]
        self._senders = [Seal(ring, rng.getrandbits(62)) for _ in range(4)]
        self._counter = 0
        self.packed = [packed(text * 400) for text in self.packets[:20]] + [packed(each) for each in self.packets[:20]]
        # None opens to much: the peak of the memory must show a leak, not hide it.
        self.bombs = [b"\x01" + zlib.compress(bytes(length), 9) for length in (65_537, 100_000, 1_000_000, 10_000_000)]
        self.everything = [
            *(each for group in self.messages.values() for each in group),
            *self.packets,
            *self.rings,
            *self.packed,
        ]

    def _packet(self, name: str, body: bytes, rng: Random) -> bytes:
        channel = jobs.CHANNEL.number if name == "jobs" else CONVERSATIONS[name].number or rng.randrange(8)
        updates = [msgspec.Raw(each) for each in rng.sample(self.messages["updates"], rng.randrange(3))]
        counter = rng.getrandbits(62)
        return encode_packet(
            Packet(PROTOCOL, "prod/eu", "worker-7", counter >> 3, counter, channel, msgspec.Raw(body), updates)
        )

    def sealed(self, content: bytes, rng: Random) -> bytes:
        self._counter += 1
        sender = rng.choice(self._senders)
        return sender.seal(self._counter, content, key_id=rng.choice(self._ids), to=rng.choice(["", ME, "worker-2"]))


# -- spoiling


def spoilt(content: bytes, rng: Random) -> bytes:
    """The bytes with one to four places changed, cut out, put in or doubled."""
    data = bytearray(content)
    for _ in range(1 + rng.getrandbits(2)):
        place = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0 | 1:
                if place < len(data):
                    data[place] ^= 1 << rng.getrandbits(3)
            case 2:
                data[place : place + 1] = bytes([rng.getrandbits(8)])
            case 3:
                del data[place : place + 1 + rng.getrandbits(3)]
            case 4:
                data[place:place] = data[place : place + rng.getrandbits(5)] or rng.randbytes(3)
            case _:
                piece = rng.choice(PIECES)
                data[place : place + (len(piece) if rng.random() < 0.5 else 0)] = piece
    return bytes(data)


def twisted(value: Any, rng: Random) -> Any:
    """The value with one part replaced by another kind of value, left out or doubled."""
    if not isinstance(value, list) or not value or rng.random() < 0.1:
        return rng.choice(WILD)
    place = rng.randrange(len(value))
    part = value[place]
    parts = [[twisted(part, rng)], [twisted(part, rng)], [twisted(part, rng)], [], [part, part]][rng.randrange(5)]
    return [*value[:place], *parts, *value[place + 1 :]]


class Fuzzer:
    """Makes frames, one after the other, of every kind in turn of chance."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(f"fuzz:{seed}")
        self.corpus = Corpus(self.rng)
        self.kinds: dict[str, Callable[[], bytes]] = {
            "random bytes": self._random,
            "spoilt sealed frame": lambda: spoilt(self._sealed(self.rng.choice(self.corpus.packets)), self.rng),
            "sealed random bytes": lambda: self._sealed(self._random()),
            "sealed spoilt packet": lambda: self._sealed(spoilt(self.rng.choice(self.corpus.packets), self.rng)),
            "sealed packet": lambda: self._sealed(self.rng.choice(self.corpus.packets)),
            "spoilt packet": lambda: spoilt(self.rng.choice(self.corpus.packets), self.rng),
            "twisted packet": lambda: self._twisted(self.rng.choice(self.corpus.packets)),
            "spoilt message": lambda: spoilt(self._message(), self.rng),
            "twisted message": lambda: self._twisted(self._message()),
            "cut": self._cut,
            "stream": self._stream,
            "spoilt packed content": lambda: spoilt(self.rng.choice(self.corpus.packed), self.rng),
            "bomb": lambda: self.rng.choice(self.corpus.bombs),
            "spoilt ring": lambda: spoilt(self.rng.choice(self.corpus.rings), self.rng),
            "twisted ring": lambda: self._twisted(self.rng.choice(self.corpus.rings)),
        }

    def frames(self, count: int) -> Iterator[tuple[str, bytes]]:
        kinds = list(self.kinds.items())
        for _ in range(count):
            name, make = self.rng.choice(kinds)
            yield name, make()

    def _random(self) -> bytes:
        return self.rng.randbytes(self.rng.getrandbits(self.rng.choice([3, 5, 7, 11])))

    def _sealed(self, content: bytes) -> bytes:
        return self.corpus.sealed(content, self.rng)

    def _message(self) -> bytes:
        return self.rng.choice(self.corpus.messages[self.rng.choice(list(self.corpus.messages))])

    def _twisted(self, content: bytes) -> bytes:
        return msgspec.msgpack.encode(twisted(msgspec.msgpack.decode(content, strict=False), self.rng))

    def _cut(self) -> bytes:
        whole = self.rng.choice(self.corpus.everything)
        return whole[: self.rng.randrange(len(whole))]

    def _stream(self) -> bytes:
        """Frames with a length, of which one may be wrong or beyond every limit."""
        parts = [framed(self.rng.choice(self.corpus.packets)) for _ in range(1 + self.rng.getrandbits(2))]
        wrong = self.rng.choice([0, 1, FRAME_LIMIT_BYTES, FRAME_LIMIT_BYTES + 1, 2**31, 2**32 - 1])
        place = self.rng.randrange(len(parts))
        parts[place] = wrong.to_bytes(4, "big") + parts[place][4:]
        return b"".join(parts)


# -- reading


class Reader:
    """Everything that reads what others send, and what became of it."""

    def __init__(self, receiver: Seal) -> None:
        self.outcomes: dict[str, dict[str, int]] = {}
        """How many were taken or refused, by stage and reason."""
        self.faults: list[str] = []
        self.fault_count = 0
        self._receiver = receiver
        self._frame: tuple[str, bytes] = ("", b"")
        self._bodies = {each.number: name for name, each in CONVERSATIONS.items() if each.number}
        self._bodies[jobs.CHANNEL.number] = "jobs"
        self._messages = {name: each.decode for name, each in CONVERSATIONS.items()} | SHARDS | HANDLERS | JOBS

    def read(self, kind: str, data: bytes) -> None:
        self._frame = (kind, data)
        half = len(data) // 2
        deframer = Deframer()
        self._try("framing", lambda content: deframer.feed(content[:half]) + deframer.feed(content[half:]), data)
        self._try("unpacking", unpacked, data)
        opened = self._try("sealing", lambda content: self._receiver.open(content, me=ME), data)
        if opened is not None:
            self._packet(opened.content)
        self._packet(data)
        for name, decode in self._messages.items():
            self._try(name, decode, data)
        ring = self._try("rings", decode_ring, data)
        if ring is not None:
            self._try("merged rings", lambda _: Seal(self._receiver.ring.merge(ring), 1), data)

    def _packet(self, data: bytes) -> None:
        packet = self._try("packets", decode_packet, data)
        if packet is None:
            return
        if name := self._bodies.get(packet.channel):
            self._try(f"{name} in a packet", self._messages[name], packet.body)
        for update in packet.updates:
            self._try("updates in a packet", self._messages["updates"], update)

    def _try(self, stage: str, read: Callable[[Any], Any], data: bytes | msgspec.Raw) -> Any:
        result = None
        try:
            result = read(data)
            reason = TAKEN
        except Untrusted as problem:
            reason = getattr(problem, "reason", type(problem).__name__)
            if not str(problem):
                self._fault(stage, "a refusal without a sentence")
        except Exception as error:  # noqa: BLE001 - whatever else it raises is what is looked for
            reason = "FAULT"
            self._fault(stage, f"{type(error).__name__}: {error}")
        counts = self.outcomes.setdefault(stage, {})
        counts[reason] = counts.get(reason, 0) + 1
        return result

    def _fault(self, stage: str, what: str) -> None:
        self.fault_count += 1
        if len(self.faults) < FAULTS_SHOWN:
            kind, data = self._frame
            self.faults.append(f"{stage}: {what[:200]}\n  {kind}, {len(data)} bytes: {data[:400].hex()}")


class Report(NamedTuple):
    kinds: dict[str, int]
    outcomes: dict[str, dict[str, int]]
    faults: list[str]
    fault_count: int
    early_kib: int
    """The most memory used, after the first tenth of the frames."""
    final_kib: int


def peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)


def run(frames: int, seed: int) -> Report:
    fuzzer = Fuzzer(seed)
    reader = Reader(fuzzer.corpus.receiver)
    kinds = dict.fromkeys(fuzzer.kinds, 0)
    early_kib = 0
    for number, (kind, data) in enumerate(fuzzer.frames(frames)):
        if number == frames // 10:
            early_kib = peak_kib()
        kinds[kind] += 1
        reader.read(kind, data)
    return Report(kinds, reader.outcomes, reader.faults, reader.fault_count, early_kib, peak_kib())


def table(report: Report) -> str:
    lines = [f"{'kind of frame':<24} {'frames':>9}"]
    lines += [f"{kind:<24} {count:>9}" for kind, count in report.kinds.items()]
    lines += ["", f"{'stage':<24} {'outcome':<22} {'times':>9}"]
    for stage, counts in sorted(report.outcomes.items()):
        lines += [f"{stage:<24} {reason:<22} {count:>9}" for reason, count in sorted(counts.items())]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wire.fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    report = run(options.frames, options.seed)
    took_s = time.perf_counter() - started
    growth_kib = report.final_kib - report.early_kib
    sys.stdout.write(
        f"{table(report)}\n\n{options.frames} frames of seed {options.seed} in {took_s:.1f} s:"
        f" {options.frames / took_s:.0f} a second\n"
        f"memory: {report.early_kib} KiB after the first tenth, {report.final_kib} KiB at the end\n"
    )
    for fault in report.faults:
        sys.stdout.write(f"FAULT in {fault}\n")
    if growth_kib > GROWTH_LIMIT_KIB:
        sys.stdout.write(f"FAULT: the memory grew by {growth_kib} KiB, at most {GROWTH_LIMIT_KIB} are allowed\n")
    sys.stdout.write(f"{report.fault_count} faults\n")
    return 1 if report.fault_count or growth_kib > GROWTH_LIMIT_KIB else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
