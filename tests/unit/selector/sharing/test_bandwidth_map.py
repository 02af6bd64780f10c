from cedos.selector.sharing.bandwidth_map import NOWHERE, BandwidthMap

NOON = 1_800_014_400.0  # 12:00 UTC
DAY = 86_400.0


def test_the_nearest_record_counts() -> None:
    known = BandwidthMap(b"secret")
    here, there = known.place(46.948, 7.447), known.place(47.377, 8.540)
    assert known.rate_bps(b"bob", here, NOON) is None
    known.on_carried(b"bob", there, 9e6, NOON)
    assert known.rate_bps(b"bob", here, NOON) == 9e6, "better than nothing"
    known.on_carried(b"bob", here, 2e6, NOON + 8 * 3600)
    known.on_carried(b"bob", there, 9e6, NOON + 9 * 3600)
    assert known.rate_bps(b"bob", here, NOON) == 2e6, "another time of the day, but here"
    known.on_carried(b"bob", here, 5e6, NOON)
    assert known.rate_bps(b"bob", here, NOON + DAY) == 5e6
    assert known.rate_bps(b"cyd", here, NOON) is None


def test_a_rate_follows_what_is_measured() -> None:
    known = BandwidthMap(b"secret")
    for rate in (1e6, 3e6):
        known.on_carried(b"bob", NOWHERE, rate, NOON)
    assert known.rate_bps(b"bob", NOWHERE, NOON) == 2e6
    for _ in range(30):
        known.on_carried(b"bob", NOWHERE, 8e6, NOON)
    assert 7.9e6 < (known.rate_bps(b"bob", NOWHERE, NOON) or 0) < 8e6


def test_what_is_a_month_old_is_forgotten() -> None:
    known = BandwidthMap(b"secret")
    known.on_carried(b"bob", NOWHERE, 1e6, NOON)
    assert known.rate_bps(b"bob", NOWHERE, NOON + 29 * DAY) == 1e6
    assert known.rate_bps(b"bob", NOWHERE, NOON + 31 * DAY) is None
    known.on_carried(b"bob", NOWHERE, 5e6, NOON + 31 * DAY)
    assert known.rate_bps(b"bob", NOWHERE, NOON + 31 * DAY) == 5e6


def test_places_are_cells_of_some_200_m_and_hashed_with_the_secret() -> None:
    known = BandwidthMap(b"secret")
    here = known.place(46.9481, 7.4471)
    assert known.place(46.9482, 7.4472) == here, "15 m on"
    assert known.place(46.9521, 7.4471) != here, "440 m on"
    assert BandwidthMap(b"another").place(46.9481, 7.4471) != here


def test_it_is_bounded_and_one_helper_cannot_push_out_the_others() -> None:
    known = BandwidthMap(b"secret", helpers=4, cells=8)
    known.on_carried(b"bob", NOWHERE, 1e6, NOON)
    for number in range(100):
        known.on_carried(b"cyd", bytes([number]), 1e6, NOON)
    assert known.rate_bps(b"bob", NOWHERE, NOON) == 1e6
    assert len(known) == 9
    for number in range(100):
        known.on_carried(bytes([number]), NOWHERE, 1e6, NOON)
    assert len(known) == 4


def test_it_survives_in_a_file() -> None:
    known = BandwidthMap(b"secret")
    for number in range(5):
        known.on_carried(bytes([number]), NOWHERE, 1e6 * number, NOON)
    again = BandwidthMap(b"secret")
    for record in known.records():
        again.restore(record)
    assert list(again.records()) == list(known.records())
