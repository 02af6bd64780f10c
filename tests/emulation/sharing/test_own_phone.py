"""A requestor whose own phone carries beside three helpers."""

import time

import pytest
from kit.street import HELPERS, RATE_BPS, Street, uplinks

from emu.places.traces import TCP_GOODPUT_SHARE
from emu.testbed.neighbours import Neighbourhood
from emu.testbed.programs.gateway import SharingHosts
from emu.testbed.programs.servers import Servers

# Several of these at once are too much for two cores: they run one after the other.
pytestmark = pytest.mark.xdist_group("sharing")


def test_a_download_uses_the_own_phone_and_all_helpers():
    there = Neighbourhood(uplinks([RATE_BPS] * HELPERS), own=uplinks([RATE_BPS])[0])
    with there, Servers(there), SharingHosts(there) as hosts:
        street = Street(there, hosts)
        # The README's commands.
        offer = ("--price", "0.50EUR/GB", "--limit", "500MB", "--battery", "40%")
        street.begin([offer] * HELPERS, "--rate", "20Mbit", "--budget", "2EUR")
        # A first download lacks a second at its beginning, while each path finds its rate.
        assert street.download(6_000_000).end() == 0
        count = 18_000_000
        began_s = time.monotonic()
        download = street.download(count)
        assert download.end() == 0
        assert (download.received_bytes, download.wrong_bytes) == (count, 0)
        rate_bps = 8 * count / (time.monotonic() - began_s)
        share = rate_bps / ((HELPERS + 1) * RATE_BPS * TCP_GOODPUT_SHARE)
        print(f"{share:.3f} of the sum of four")
        assert share > 0.9  # without one of them: 0.75
        street.wait_for_receipts(count // 2)
        owed = street.owed_bytes("requestor")
        assert {helper for _, helper in owed} == {f"helper-{number}" for number in range(HELPERS)}
        assert "EUR" in hosts.cedos("requestor", "share", "receipts")
