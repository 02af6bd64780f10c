"""Places one after another: nothing lost, nothing out of step."""

import pytest

from cedos.errors import PlaceError
from emu.places import places
from emu.repository import ROOT
from emu.simulation.joined import joined

HERE = ROOT / "traces"


def test_each_part_is_where_it_belongs() -> None:
    known = list(places.load(HERE).values())[:3]
    found = joined(known)
    assert set(found) == {"wifi", "cellular"}
    total_s = sum(place.common_s for place in known)
    for name, access in found.items():
        assert access.down.period_s == total_s
        begin_s = 0.0
        for place in known:
            own = place.networks[name].down
            for second in (1, place.common_s // 2, place.common_s - 2):
                assert access.down.rate_bps(
                    begin_s + second, begin_s + second + 1
                ) == pytest.approx(own.rate_bps(second, second + 1), abs=24_000)
            begin_s += place.common_s


def test_one_direction_stays_one() -> None:
    known = list(places.load(HERE).values())
    found = joined(known[:1])
    assert found["wifi"].up is found["wifi"].down
    assert found["cellular"].up is not found["cellular"].down


def test_no_place_is_refused() -> None:
    with pytest.raises(PlaceError, match="at least one place"):
        joined([])
