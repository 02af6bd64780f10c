"""A fixed policy beside a replay: which flows it would have begun elsewhere, and what is predicted."""

import json
from dataclasses import replace
from ipaddress import ip_address

import pytest
from click.testing import CliRunner
from kit.controller import KEY, LTE, SERVER, WLAN, Script

from cedos.controller import events as on
from cedos.controller.config import Choices, ControllerConfig
from cedos.controller.controller import Controller
from cedos.daemon.event_log import EventLog
from cedos.model import Indicator
from cedos.selector.objective import MaxS
from cedos.storage import model_files
from emu import policies
from emu.commands.replay import command
from emu.replay import OtherPolicy

ON_LTE = replace(KEY, local=ip_address("10.1.0.2"))
WIFI_FIRST = policies.networks_of("wifi-first")
MPTCP_CELLULAR = policies.networks_of("mptcp-cellular")


class Beside(Script):
    """A script with a fixed policy beside its controller; `lte`: LTE is the default."""

    def __init__(self, kinds, *, lte=False):
        self.other = OtherPolicy(kinds)
        super().__init__()
        if lte:
            self.model.rtt_s = {"wifi": 0.08, "cellular": 0.02}
        self.decide()

    def tell(self, *events, at_s=None):
        found = []
        for event in events:
            self.other.on_event(event, self.controller, self.now_s if at_s is None else at_s)
            given = super().tell(event, at_s=at_s)
            self.other.on_commands(given)
            found += given
        return found

    def carry(self, *keys, down=0, up=0, token=None):
        """A flow of these paths begins and ends; each carries so much."""
        self.tell(*(on.FlowOpened(key, 9.0, 109.0) for key in keys), at_s=9.0)
        if token is not None:
            self.tell(*(on.SubflowJoined(token, key, True) for key in keys), at_s=9.1)
        ends = (on.FlowClosed(key, 111.0, down, up, at_s=11.0) for key in keys)
        self.tell(*ends, at_s=11.0)


def test_a_flow_that_the_policy_begins_elsewhere_takes_its_bytes_and_its_prediction_along():
    script = Beside(WIFI_FIRST, lte=True)
    script.carry(ON_LTE, down=1_000_000)
    found = script.other.destinations[str(SERVER)]
    assert (found.flows, found.elsewhere, found.dead, found.predicted) == (1, 1, 0, 1)
    assert found.recorded.flows == {"lte0": 1}
    assert found.policy.flows == {"wlan0": 1}
    assert found.recorded.bytes == {"lte0": 1_000_000}
    assert found.policy.bytes == {"wlan0": 1_000_000}
    assert (found.recorded.metered_bytes, found.policy.metered_bytes) == (1_000_000, 0)
    # Two round trips and the bytes at 20 and at 1 Mbit/s.
    assert found.recorded.seconds == pytest.approx(0.04 + 0.4)
    assert found.policy.seconds == pytest.approx(0.16 + 8.0)
    assert found.recorded.joules != found.policy.joules


def test_a_policy_of_two_networks_spreads_mptcp_and_no_other_flow():
    script = Beside(MPTCP_CELLULAR)
    script.carry(KEY, down=1_000_000, token=7)
    script.carry(replace(KEY, local_port=4001), down=1_000_000)
    found = script.other.total
    assert found.policy.flows == {"lte0+wlan0": 1, "lte0": 1}
    assert found.elsewhere == 2
    assert 1_000_000 < found.policy.metered_bytes < 2_000_000  # of the spread one, a share


def down(network):
    return replace(network, up=False, addresses=())


def test_without_its_network_a_fixed_policy_takes_the_other_as_routes_do():
    script = Beside(WIFI_FIRST)
    script.networks(down(WLAN), LTE, at_s=8.5)
    script.decide(at_s=8.6)
    script.carry(ON_LTE, down=1000)
    assert script.other.total.policy.flows == {"lte0": 1}
    assert script.other.total.elsewhere == 0


def test_a_flow_that_the_policy_begins_on_a_dead_network_counts_and_is_not_predicted():
    script = Beside(WIFI_FIRST, lte=True)
    script.tell(on.Witnessed("wlan0", True, on.Witness.PING, 8.1), at_s=8.1)
    script.tell(on.Witnessed("wlan0", False, on.Witness.RADIO, 8.5), at_s=8.5)
    script.carry(ON_LTE, down=1000)
    found = script.other.total
    assert (found.elsewhere, found.dead, found.predicted) == (1, 1, 0)
    assert found.policy.bytes == {"wlan0": 1000}
    assert found.policy.seconds == 0.0


def test_the_command_shows_and_writes_the_comparison(tmp_path):
    config = ControllerConfig(Choices(MaxS(), model_files.load(), 3000))
    controller = Controller(config)
    log = EventLog(tmp_path / "log", controller)
    events = (
        on.ClockRead(1.7e9),
        on.IndicatorsRead("wlan0", {"rtt_s": Indicator(0.5, 1.0)}),
        on.IndicatorsRead("lte0", {"rtt_s": Indicator(0.02, 1.0)}),
        on.NetworksChanged((WLAN, LTE)),
        on.FlowOpened(ON_LTE, 5.0, 1.7e9),
        on.FlowClosed(ON_LTE, 1.7e9, 2_000_000, 0, at_s=6.0),
    )
    for now_s, event in enumerate(events, 1):
        controller.handle(event, float(now_s))
        log.add(event, float(now_s), controller.commands())
    log.close()
    told = CliRunner().invoke(
        command, [str(tmp_path / "log"), "--policy", "wifi-first", "--json", str(tmp_path / "json")]
    )
    assert told.exit_code == 0, told.output
    assert "wifi-first would have begun 1 of 1 flows on another network" in told.output
    assert "was not measured" in " ".join(told.output.split())
    written = json.loads((tmp_path / "json").read_text())["policy"]
    assert written["name"] == "wifi-first"
    assert written["destinations"][str(SERVER)]["recorded"]["metered_bytes"] == 2_000_000
