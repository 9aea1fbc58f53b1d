"""Names that are drawn, not chosen. The randomness is passed in, so that a seed gives the same names."""

from random import Random
from typing import NewType

JobId = NewType("JobId", str)

# No vowels: no words by accident. No 0, 1, l: nothing to misread.
ALPHABET = "23456789bcdfghjkmnpqrstvwxz"


PAIRS = [first + second for first in ALPHABET for second in ALPHABET]


def new_job_id(random: Random) -> JobId:
    """Ten letters, about 2^47 possibilities: short enough to type, unique enough for one history."""
    number = random.randrange(
        len(PAIRS) ** 5
    )  # drawn at once: letter by letter it would cost more than the rest of a job
    letters = []
    for _ in range(5):
        number, pair = divmod(number, len(PAIRS))
        letters.append(PAIRS[pair])
    return JobId("".join(letters))
