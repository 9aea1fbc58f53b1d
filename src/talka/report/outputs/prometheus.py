"""Prometheus: a text file for the node exporter or a push, and remote write while the job runs."""

import struct
from collections.abc import Iterable
from typing import Final

from talka.report.document import ResultDocument
from talka.report.measurements import Family, families_of
from talka.report.outputs.targets import HttpPlace
from talka.units import MILLISECOND

LITERAL_BYTES: Final = 65_536
SHORT_LITERAL_BYTES: Final = 60
HEADERS: Final = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}


def remote_write(place: HttpPlace, families: Iterable[Family]) -> None:
    """To whatever takes remote write 1.0."""
    place.post(snappy(write_request(families)), HEADERS)


# Samples, as both formats have them.


def name_of(family: Family) -> str:
    parts = ["talka", family.name, family.unit, "total" if family.kind == "counter" else ""]
    return "_".join(part for part in parts if part)


def samples_of(family: Family) -> Iterable[tuple[str, dict[str, str], float, int]]:
    """(name, labels, value, instant in nanoseconds)."""
    name = name_of(family)
    for point in family.points:
        yield name, point.labels, point.value, point.at_ns
    for summary in family.summaries:
        for quantile, value in summary.quantiles.items():
            yield name, {**summary.labels, "quantile": quantile}, value, summary.at_ns
        yield f"{name}_sum", summary.labels, summary.total, summary.at_ns
        yield f"{name}_count", summary.labels, summary.count, summary.at_ns


# The text format.


def exposition(document: ResultDocument) -> bytes:
    """The result, without timestamps: the node exporter refuses those."""
    lines = []
    for family in families_of(document):
        name = name_of(family)
        lines += [f"# HELP {name} {family.meaning}", f"# TYPE {name} {family.kind}"]
        for sample, labels, value, _ in samples_of(family):
            told = ",".join(f'{label}="{escaped(text)}"' for label, text in labels.items())
            lines.append(f"{sample}{{{told}}} {number(value)}")
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))


# Remote write: the protobuf message WriteRequest in snappy's block format.


def write_request(families: Iterable[Family]) -> bytes:
    series: dict[tuple[tuple[str, str], ...], list[tuple[float, int]]] = {}
    for family in families:
        for name, labels, value, at_ns in samples_of(family):
            # Receivers insist on labels in the order of their names.
            key = tuple(sorted({"__name__": name, **labels}.items()))
            series.setdefault(key, []).append((value, at_ns // MILLISECOND))
    return b"".join(field(1, time_series(labels, samples)) for labels, samples in series.items())


def time_series(labels: Iterable[tuple[str, str]], samples: Iterable[tuple[float, int]]) -> bytes:
    pairs = [field(1, field(1, utf8(name)) + field(2, utf8(value))) for name, value in labels]
    points = [field(2, b"\x09" + struct.pack("<d", value) + b"\x10" + varint(at_ms)) for value, at_ms in samples]
    return b"".join([*pairs, *points])


def utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def field(number: int, content: bytes) -> bytes:
    """A field with a length: a text or a message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def snappy(content: bytes) -> bytes:
    """The block format, in literals only: valid, and no smaller than the content, which is small anyway."""
    encoded = bytearray(varint(len(content)))
    for start in range(0, len(content), LITERAL_BYTES):
        piece = content[start : start + LITERAL_BYTES]
        if len(piece) <= SHORT_LITERAL_BYTES:
            encoded.append(len(piece) - 1 << 2)  # some decoders refuse the long form for the few bytes at the end
        else:
            encoded.append(61 << 2)  # the length less one follows in two bytes
            encoded += struct.pack("<H", len(piece) - 1)
        encoded += piece
    return bytes(encoded)
