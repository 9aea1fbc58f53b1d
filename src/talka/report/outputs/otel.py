"""OpenTelemetry metrics by OTLP over HTTP in JSON: progress while the job runs, and the result at its end."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from talka.report.files import CannotDeliver
from talka.report.measurements import Family
from talka.report.outputs.output import JobInfo
from talka.report.outputs.targets import HttpPlace
from talka.version import VERSION

OTLP_PATH: Final = "/v1/metrics"
"""Of an address that names a host only."""
HEADERS: Final = {"Content-Type": "application/json"}
UNITS: Final = {"seconds": "s", "bytes": "By", "ratio": "1", "": "1"}
CUMULATIVE: Final = 2
"""Of the two temporalities, the one every receiver takes."""


def send_metrics(place: HttpPlace, families: Iterable[Family], job: JobInfo) -> None:
    answer = place.post(msgspec.json.encode(export_request(families, job)), HEADERS)
    if rejected := rejection(answer):
        raise CannotDeliver(f"{place.place} rejected {rejected}")


def rejection(answer: bytes) -> str:
    """What a server that answered 200 has not taken all the same."""
    try:
        partial = msgspec.json.decode(answer)["partialSuccess"]
        count, text = int(partial.get("rejectedDataPoints", 0)), str(partial.get("errorMessage", ""))
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError):
        return ""  # an empty answer, or one in a format of its own: all was taken
    return f"{count} data points: {text}" if count else ""


def export_request(families: Iterable[Family], job: JobInfo) -> dict[str, Any]:
    resource = {"service.name": "talka", "service.version": VERSION, "talka.job.id": job.id, "talka.job.name": job.name}
    metrics = [metric_of(family, job.started_ns) for family in families]
    scope = {"scope": {"name": "talka", "version": VERSION}, "metrics": metrics}
    return {"resourceMetrics": [{"resource": {"attributes": attributes(resource)}, "scopeMetrics": [scope]}]}


def metric_of(family: Family, started_ns: int) -> dict[str, Any]:
    metric: dict[str, Any] = {
        "name": f"talka.{family.name}",
        "description": family.meaning,
        "unit": UNITS[family.unit],
    }
    match family.kind:
        case "counter":
            metric["sum"] = {
                "aggregationTemporality": CUMULATIVE,
                "isMonotonic": True,
                "dataPoints": number_points(family, started_ns),
            }
        case "gauge":
            metric["gauge"] = {"dataPoints": number_points(family, started_ns)}
        case "summary":
            metric["summary"] = {"dataPoints": summary_points(family, started_ns)}
    return metric


def number_points(family: Family, started_ns: int) -> list[dict[str, Any]]:
    return [
        {
            "attributes": attributes(point.labels),
            **instants(started_ns, point.at_ns),
            # Whole numbers of 64 bits are texts in this format.
            **({"asInt": str(int(point.value))} if isinstance(point.value, int) else {"asDouble": point.value}),
        }
        for point in family.points
    ]


def summary_points(family: Family, started_ns: int) -> list[dict[str, Any]]:
    return [
        {
            "attributes": attributes(summary.labels),
            **instants(started_ns, summary.at_ns),
            "count": str(summary.count),
            "sum": summary.total,
            "quantileValues": [
                {"quantile": float(quantile), "value": value} for quantile, value in summary.quantiles.items()
            ],
        }
        for summary in family.summaries
    ]


def instants(started_ns: int, at_ns: int) -> dict[str, str]:
    return {"startTimeUnixNano": str(started_ns), "timeUnixNano": str(at_ns)}


def attributes(labels: dict[str, str]) -> list[dict[str, Any]]:
    return [{"key": name, "value": {"stringValue": utf8(value)}} for name, value in labels.items()]


def utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
