"""Look-ups over networks: when the rule is asked, what it may see, and what is sent when it says so."""

from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from math import inf

import pytest
from kit.controller import Script

from cedos.controller.commands import SendProbe
from cedos.controller.events import FlowOpened, NetworksChanged, PingsPossible
from cedos.controller.outbox import Outbox
from cedos.controller.probing import Probing, expected_price
from cedos.model import Evaluation, FlowKey, Network, NetworkKind, Strategy, StrategyKind
from cedos.selector.budgets.prices import Prices
from cedos.selector.energy import DELPHI
from cedos.selector.probing.rules import Moment
from cedos.selector.probing.value import ProbeValue

WIFI = Network("wlan0", "wlan0", 3, NetworkKind.WIFI, metered=False)
LTE = Network("lte0", "lte0", 4, NetworkKind.CELLULAR, metered=True)
INTERVAL_S = 2.0


@dataclass(frozen=True)
class Flat:
    """A quote that is the same for any amount."""

    rate: float

    def rate_for(self, amount, duration_s):
        return self.rate


def evaluation(name, cost):
    return Evaluation(Strategy(StrategyKind.SINGLE, (name,)), cost, cost, cost, 0.0, 0.0, cost)


def costs(wlan0, lte0):
    return evaluation("wlan0", wlan0), evaluation("lte0", lte0)


class Asked:
    """A rule that is asked each second."""

    def __init__(self, see, *networks, begun=0, interval_s=INTERVAL_S):
        self._outbox = Outbox()
        self.probing = Probing(self._outbox, interval_s, DELPHI, see)
        self.now_s = 0.5
        self.probing.networks_changed(networks, self.now_s)
        # What was sent.
        self.probes = []
        for _ in range(begun):
            self.probing.on_transfer_begun()

    def look(self, times=1):
        for _ in range(times):
            at_s = self.probing.next_timer_s()
            if at_s is None:
                return
            self.now_s = at_s
            self.probing.on_timer(at_s)
            self.probes += [each for each in self._outbox.take() if isinstance(each, SendProbe)]

    def names(self):
        return [each.network for each in self.probes]


def seeing(evaluations=(), **more):
    def see(now_s):
        return Moment(now_s, False, {}, evaluations, **more)

    return see


def test_a_look_up_pays_what_budgets_ask_today_like_any_transfer():
    moment = Moment(1000.0, True, {}, costs(0.2, 0.21), 0.1)
    wifi, lte = (ProbeValue(expected_price(each.kind, DELPHI), light=True) for each in (WIFI, LTE))
    for network, rule in (("wlan0", wifi), ("lte0", lte)):
        rule.probed(network, replace(moment, now_s=70.0))
    assert wifi.weigh("wlan0", moment), "it may have died meanwhile"
    assert not lte.weigh("lte0", moment), "whether it lives changes nothing"
    dear = replace(moment, prices=Prices(data={"wlan0": (Flat(1.0),)}))
    assert not wifi.weigh("wlan0", dear)
    other = replace(moment, prices=Prices(data={"lte0": (Flat(1.0),)}))
    assert wifi.weigh("wlan0", other), "its bytes are not what the budget counts"
    spent = replace(moment, prices=Prices(data={"lte0": (Flat(inf),)}))
    new = ProbeValue(expected_price(LTE.kind, DELPHI), light=True)
    assert new.weigh("lte0", moment), "what was never probed is probed once"
    assert not new.weigh("lte0", spent), "what is forbidden is not asked even once"


@pytest.mark.parametrize(("rival_s", "again"), [(0.21, True), (5.0, False)])
def test_only_an_answer_that_may_change_the_choice_is_asked_for(rival_s, again):
    """Half a minute of looks; a winner by far is not asked again."""
    asked = Asked(seeing(costs(0.2, rival_s)), WIFI, LTE, begun=12)
    asked.look(30)
    assert "lte0" in asked.names(), "what was never probed is probed once"
    assert (asked.names().count("wlan0") > 1) is again


@pytest.mark.parametrize(
    ("heard", "pings", "probed"),
    [(False, True, False), (True, False, False), (False, False, True)],
)
def test_a_look_up_stands_in_for_pings_that_are_in_vain_unless_programs_hear_it(
    heard, pings, probed
):
    """Every two seconds at most."""

    def see(now_s):
        at_s = {"wlan0": now_s - 0.4} if heard else {}
        return Moment(now_s, False, {}, costs(0.2, 0.21), heard_at_s=at_s)

    asked = Asked(see, WIFI, begun=90)
    asked.probing.pingable = frozenset({"wlan0"} if pings else ())
    asked.look(21)
    assert 9 <= len(asked.probes) <= 11 if probed else not asked.probes


def test_each_network_is_probed_once_and_the_rule_sees_what_began():
    seen = []

    class Once:
        done = False

        def weigh(self, network, moment):
            seen.append((moment.pending, moment.transfers_per_s))
            return not self.done

        def probed(self, network, moment):
            self.done = True

    asked = Asked(seeing(), WIFI, replace(LTE, up=False))
    for key in asked.probing._rules:
        asked.probing._rules[key] = Once()
    asked.probing.on_transfer_begun()
    asked.look(5)
    asked.probing.networks_changed((WIFI, LTE), asked.now_s)
    asked.look(5)
    assert asked.probes == [SendProbe(name) for name in ("wlan0", "lte0")]
    assert seen[0] == (True, pytest.approx(1 / 60))
    assert seen[1][0] is False


def test_a_router_that_comes_and_goes_has_no_network_probed_anew():
    """Withdraw a route each second: a probe was sent each time, over the other, metered network."""
    asked = Asked(seeing(costs(0.2, 5.0)), WIFI, LTE)
    for _ in range(60):
        asked.probing.networks_changed((replace(WIFI, up=False), LTE), asked.now_s)
        asked.probing.networks_changed((WIFI, LTE), asked.now_s)
        asked.look()
    assert asked.names().count("lte0") < 6
    assert asked.names().count("wlan0") < 6
    # Another interface of the same name is another network.
    asked.probing.networks_changed((replace(WIFI, index=9), LTE), asked.now_s)
    asked.look()
    assert asked.names()[-1] == "wlan0"


def test_nothing_is_looked_up_where_that_is_off():
    asked = Asked(seeing(), WIFI, interval_s=None)
    asked.look(3)
    assert asked.probes == []


def test_the_controller_asks_with_what_it_knows():
    """A program that connects, pings in vain, a network that came: then a look-up is worth sending."""
    script = Script(look_up_interval_s=INTERVAL_S)
    script.tell(NetworksChanged((WIFI, LTE)), PingsPossible(frozenset()))
    key = FlowKey(IPv4Address("10.0.0.2"), 4000, IPv4Address("198.51.100.1"), 80)
    script.tell(FlowOpened(key, 8.0, 108.0))
    script.wait(10.0)
    sent = script.given(SendProbe)
    assert {each.network for each in sent} == {"wlan0", "lte0"}
    script.tell(PingsPossible(frozenset({"wlan0", "lte0"})))
    script.wait(60.0)
    assert script.given(SendProbe) == []
