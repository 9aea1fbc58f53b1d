"""Names that are drawn, not chosen. The randomness is passed in, so that a seed gives the same names."""

from random import Random
from typing import NewType

JobId = NewType("JobId", str)

# No vowels: no words by accident. No 0, 1, l: nothing to misread.
ALPHABET = "23456789bcdfghjkmnpqrstvwxz"


def new_job_id(random: Random) -> JobId:
    """Ten letters, about 2^47 possibilities: short enough to type, unique enough for one history."""
    return JobId("".join(random.choice(ALPHABET) for _ in range(10)))
