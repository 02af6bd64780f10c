"""Exchanges over the emulated laptop: hedged ones take the faster answer, a lost network is replaced.

What is asked is what happened and not how fast: the host may be busy.
"""

import numpy as np
import pytest

from cedos.model import NetworkKind
from emu.experiments.meatballs import live
from emu.experiments.meatballs.exchange_policy import requests
from emu.experiments.meatballs.exchanges import policies_of
from emu.experiments.meatballs.live import serving
from emu.experiments.meatballs.outcome import SETTINGS
from emu.experiments.replayed_network import ReplayedNetwork
from emu.places.traces import Trace
from emu.testbed.access import Access
from emu.testbed.phones import Laptop

pytestmark = pytest.mark.emulation


def test_policies_side_by_side_through_a_loss_of_wifi() -> None:
    times = np.arange(1, 60_001)
    # Wi-Fi is gone from the 5th to the 12th second; that is noticed after one.
    wifi = Trace(times[(times <= 5_000) | (times > 12_000)], 60_000)
    accesses = {
        "wifi": Access(NetworkKind.WIFI, up=wifi, down=wifi, rtt_s=0.02),
        "cellular": Access(NetworkKind.CELLULAR, up=Trace(times), down=Trace(times), rtt_s=0.08),
    }
    networks = {name: ReplayedNetwork(each, detection_s=1.0) for name, each in accesses.items()}
    known = policies_of(SETTINGS["no"], "nexus-one", "3g", 1.0)
    asked = requests(15.0, 3, (0.3, 0.8))
    trials = {
        name: live.Trial(*known[name], asked)
        for name in ("cellular-only", "wifi-preferred", "brute-force")
    }
    with Laptop(source_rules=True) as laptop, serving(laptop):
        laptop.attach(*accesses.values())
        records = live.run_live(
            laptop,
            networks,
            trials,
            replay_at_s=max(link.started_at_s for link in laptop.links.values()),
            start_s=0.0,
            duration_s=15.0,
        )
    for of in records.values():
        assert len(of) == len(asked)
        assert all(each.answered for each in of)
    assert {each.winner for each in records["cellular-only"]} == {"cellular"}
    # With Wi-Fi there, it wins; while it is known to be gone, nothing else is there.
    early = [each.winner for each in records["wifi-preferred"] if 1.0 < each.began_s < 4.5]
    gone = [each.winner for each in records["wifi-preferred"] if 6.5 < each.began_s < 11.5]
    assert set(early) == {"wifi"}
    assert set(gone) == {"cellular"}
    # In the second that nobody noticed, the hedged request is answered and the single one waits.
    hidden = [each for each in records["wifi-preferred"] if 5.1 < each.began_s < 5.7]
    hedged = [each for each in records["brute-force"] if 5.1 < each.began_s < 5.7]
    assert hidden
    assert all(len(each.starts) == 2 for each in hidden)
    assert all(each.winner == "cellular" and each.hedged for each in hedged)
    assert trials["brute-force"].usage.bytes_of("cellular") > 4000 * len(asked)
