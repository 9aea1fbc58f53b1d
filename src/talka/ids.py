"""Names that are drawn, not chosen. The randomness is passed in, so that a seed gives the same names."""

from random import Random
from typing import NewType

JobId = NewType("JobId", str)

# No vowels: no words by accident. No 0, 1, l: nothing to misread.
ALPHABET = "23456789bcdfghjkmnpqrstvwxz"


PAIRS = [first + second for first in ALPHABET for second in ALPHABET]
SIDE = len(PAIRS)
POSSIBILITIES = SIDE**5
BITS = POSSIBILITIES.bit_length()


def new_job_id(random: Random) -> JobId:
    """Ten letters, about 2^47 possibilities: short enough to type, unique enough for one history."""
    # Drawn at once, and as `randrange` does it: letter by letter it would cost more than the rest of a job.
    number = random.getrandbits(BITS)
    while number >= POSSIBILITIES:
        number = random.getrandbits(BITS)
    number, first = divmod(number, SIDE)
    number, second = divmod(number, SIDE)
    number, third = divmod(number, SIDE)
    fifth, fourth = divmod(number, SIDE)
    return JobId(PAIRS[first] + PAIRS[second] + PAIRS[third] + PAIRS[fourth] + PAIRS[fifth])
