"""What is recognised: utterances, here or on a server that is asked over Wi-Fi alone (4.4.3.2).

Sound is sent when it was spoken, so its length is known; the dissertation's recogniser listens along
and must guess it.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

BYTES_PER_S = 20_000
"""Of recorded sound."""

LOCAL, REMOTE = "local", "remote"
WIFI = "wifi"
UTTERANCES = 20
LENGTHS_S = (1.0, 8.0)
EVERY_S = 30.0
ANSWER_BYTES = 200


@dataclass(frozen=True, slots=True)
class Utterance:
    """So many seconds of speech, spoken to its end at `at_s`."""

    number: int
    at_s: float
    length_s: float

    @property
    def up_bytes(self) -> int:
        return round(self.length_s * BYTES_PER_S)

    @property
    def size_bytes(self) -> int:
        return self.up_bytes + ANSWER_BYTES


def utterances(duration_s: float, seed: int, every_s: float = EVERY_S) -> Sequence[Utterance]:
    """The same 20 utterances of 1 to 8 s again and again, one each 30 s (4.5.5.2)."""
    rng = random.Random(f"utterances:{seed}")
    lengths = [round(rng.uniform(*LENGTHS_S), 2) for _ in range(UTTERANCES)]
    count = int((duration_s - lengths[0]) / every_s) + 1
    return [
        Utterance(k, k * every_s + lengths[k % UTTERANCES], lengths[k % UTTERANCES])
        for k in range(count)
    ]
