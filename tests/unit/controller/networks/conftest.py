"""Two networks, a search for portals on them, and servers that do not answer."""

from ipaddress import ip_address, ip_interface

import pytest

from cedos.controller import events as on
from cedos.controller.commands import CheckPage, ShakeHands
from cedos.controller.networks.context import ContextKeeper
from cedos.controller.networks.portals import Portals
from cedos.controller.outbox import Outbox
from cedos.model import FlowKey, FlowSample, Network, NetworkKind


class Told:
    """A search whose commands are answered at once; `answers` is what a check of each network finds."""

    def __init__(self, answers):
        self.answers = answers
        self.tls = {}  # what a well-known host answers over each network
        self.keeper = ContextKeeper()
        # Network and time-out of every fetch of the test page.
        self.checks = []
        self.shaken = []  # the networks over which that host was asked
        self.now_s = 1000.0
        self._outbox = Outbox()
        self.watch = Portals(self._outbox, self.keeper)

    @property
    def problems(self):
        return self.watch.problems(self.now_s)

    def state(self, name):
        return self.keeper.liveness(name)

    def life(self, name="home"):
        return self.state(name).verdict(self.now_s).life

    def networks(self, *networks):
        self.watch.networks_changed(networks, self.now_s)

    def wait(self, seconds):
        """Time passes: timers fire."""
        end_s = self.now_s + seconds
        while (at_s := self.watch.next_timer_s()) is not None and at_s <= end_s:
            self.now_s = max(self.now_s, at_s)
            self.watch.on_timer(self.now_s)
            self._carry_out()
        self.now_s = end_s

    def until(self, happened, limit_s=10.0):
        """Time passes until something has happened."""
        end_s = self.now_s + limit_s
        while not happened():
            assert self.now_s < end_s, "it does not happen"
            self.wait(0.01)

    def _carry_out(self):
        while commands := self._outbox.take():
            for command in commands:
                if isinstance(command, CheckPage):
                    self._check(command)
                elif isinstance(command, ShakeHands):
                    self.shaken.append(command.network)
                    answer = self.tls.get(command.network)
                    ended = on.HandshakeEnded(command.network, command.number, answer)
                    self.watch.on_handshake(ended, self.now_s)

    def _check(self, command):
        nothing = on.PortalFinding(on.PortalVerdict.UNCLEAR, "nothing can be told")
        self.checks.append((command.network, command.timeout_s))
        finding = self.answers.get(command.network, nothing)
        ended = on.PageChecked(command.network, command.number, finding)
        assert self.watch.on_page(ended, self.now_s)
        assert not self.watch.on_page(ended, self.now_s), "an answer counts once"


class Desk:
    """Wi-Fi (`home`) and a phone."""

    wifi = Network("home", "wlan0", 1, NetworkKind.WIFI, False, (ip_interface("10.0.1.2/24"),))
    lte = Network("phone", "lte0", 2, NetworkKind.CELLULAR, True, (ip_interface("10.0.2.2/24"),))

    @staticmethod
    def listen(answers=None):
        """Without answers no fetch of a page tells anything."""
        return Told(answers if answers is not None else {})

    @staticmethod
    def flow(network, server, *, state=1, down=0, port=443):
        """A connection over a network to a server, given by the last number of its address."""
        local = network.addresses[0].ip
        key = FlowKey(local, 5000 + server, ip_address(f"198.51.100.{server}"), port)
        return FlowSample(key, 1.0, state, None, None, None, None, down, 0, 0, 9.0, 0)


@pytest.fixture
def desk():
    return Desk()
