"""The clairvoyant's metered bytes, and those of our buffer manager on the same rates."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emu.experiments.cedos.studies import Playback, least_metered_bytes, play

RATE = 640e3


def test_what_no_unmetered_network_can_bring_is_paid():
    playback = Playback(RATE, 10.0, delay_s=0.0)
    assert least_metered_bytes([RATE] * 10, [RATE] * 10, playback) == 0.0
    assert least_metered_bytes([0.0] * 10, [RATE] * 10, playback) == pytest.approx(800_000)
    assert least_metered_bytes([0.0] * 10, [RATE / 2] * 10, playback) is None
    # Twice the rate for three seconds is six seconds of film.
    assert least_metered_bytes([2 * RATE] * 3 + [0.0] * 7, [RATE] * 10, playback) == pytest.approx(
        4 * 80_000
    )
    # The store holds one second: the rest has to be paid.
    small = Playback(RATE, 10.0, delay_s=0.0, store_bytes=80_000)
    assert least_metered_bytes([2 * RATE] * 3 + [0.0] * 7, [RATE] * 10, small) == pytest.approx(
        6 * 80_000
    )
    # No network at all for two seconds: it was bought before, as late as possible.
    assert least_metered_bytes([0.0] * 3 + [2 * RATE] * 7, [2 * RATE] + [0.0] * 9, playback) is None
    assert least_metered_bytes(
        [0.0] * 2 + [RATE] * 8, [2 * RATE] + [0.0] * 9, playback
    ) == pytest.approx(160_000)


@given(st.integers(0, 2**32), st.integers(5, 40), st.integers(5, 60))
def test_ours_never_stalls_where_the_phone_is_steady_and_pays_little_more(seed, contact_s, gap_s):
    chance = random.Random(seed)
    wifi = []
    while len(wifi) < 300:
        wifi += [chance.uniform(3e6, 20e6)] * chance.randint(3, contact_s)
        wifi += [0.0] * chance.randint(3, gap_s)
    cellular = [chance.uniform(4e6, 20e6) for _ in wifi]
    playback = Playback(RATE, len(wifi) - 10.0)
    least = least_metered_bytes(wifi, cellular, playback)
    assert least is not None
    ours = play(wifi, cellular, playback)
    assert ours.stalls == 0
    assert ours.metered_bytes >= least - 1
    gaps = sum(1 for a, b in itertools.pairwise(wifi) if b and not a)
    assert ours.metered_bytes - least <= 300_000 * (gaps + 1)
