"""What a result must say of a plan of arrivals, whoever was killed while it ran."""

from typing import Any


def adds_up(document: Any, planned: int, served: int) -> None:
    """Every arrival is counted, was cut or dropped, or is missing; each is one request. The server has served what is
    counted, and beside it nothing but what is missing."""
    totals = document["totals"]
    cut, missing = totals["interrupted_iterations"], sum(lost["arrivals_missing"] for lost in document["lost_shards"])
    told = totals["iterations"] + cut + totals["dropped_iterations"] + missing
    assert told == planned, (totals, document["lost_shards"])
    assert totals["requests"] <= served <= totals["requests"] + missing, (served, totals, document["lost_shards"])
