"""Helpers in the controller: sessions are told of them, and nothing else goes over them."""

from dataclasses import replace
from ipaddress import ip_address, ip_interface

from kit.controller import LTE, SERVER, WLAN, Script, of_kind, size_of

from cedos.controller import commands as give
from cedos.controller import events as on
from cedos.controller.commands import AnswerChoice
from cedos.controller.controller import Controller
from cedos.model import Direction, FlowKey, FlowSample, Network, NetworkKind, Transfer
from cedos.selector.decision.case import Sent

GATEWAY = ip_address("198.51.100.9")
OWN = ip_interface("169.254.1.5/32")
# A neighbour on the Wi-Fi's own link.
HELPER = Network(
    "helper-1", "wlan0", WLAN.index, NetworkKind.HELPER, True, (OWN,), leads_to=GATEWAY,
    money_per_mb=0.0005,
)  # fmt: skip
KEY = FlowKey(OWN.ip, 4000, GATEWAY, 443)
LARGE = Transfer(size_of(10_000_000))


class Street(Script):
    """A controller with Wi-Fi, LTE, and a helper."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.there(WLAN, LTE)

    def there(self, *networks, helpers=(HELPER,)):
        return self.tell(on.NetworksChanged(networks, helpers))

    def chosen(self, transfer=LARGE, **asked):
        question = on.ChoiceAsked(transfer, redundant=False, multipath=True, **asked)
        (answer,) = of_kind(AnswerChoice, self.tell(question))
        return answer.decision.choice.networks

    def looked(self, down, at_s, state=1):
        sample = FlowSample(
            KEY, at_s, state, None, 0.05, 0.04, 4e6, down, 300, 0, 0.01, 0, idle_ack_s=0.1
        )
        return self.sampled(sample)

    def context(self):
        return self.controller.context(self.now_s)


def test_a_sessions_large_transfer_goes_over_the_helper_too():
    script = Street()
    assert "helper-1" in script.chosen()
    assert script.recorded().choice.networks[-1] == "helper-1"


def test_it_is_no_network_of_steering_nor_the_default_nor_asked_anything():
    script = Street()
    script.there(helpers=(HELPER,))  # this host's own networks are gone
    script.decide(10.0)
    script.wait(40.0)
    given = script.given(object)
    for each in given:
        if isinstance(each, give.AnswerChoice | give.RecordDecision):
            continue
        assert "helper-1" not in repr(each), each
    assert script.controller.default.decision is None or not (
        script.controller.default.decision.choice.networks
    )
    assert script.chosen() == ("helper-1",)


def test_its_connections_are_neither_rescued_nor_closed_nor_do_they_teach_destinations():
    script = Street(rescue=True, close_stuck="always")
    script.tell(on.FlowOpened(KEY, 9.0, 109.0), at_s=9.0)
    script.looked(5_000_000, 10.0)
    found = script.wait(
        30.0, lambda each: [on.TimerFired()] if isinstance(each, give.LookAtFlows) else []
    )
    kinds = (give.LookAtFirstPacket, give.RescueFlow, give.CloseConnection, give.SetDestinations)
    assert not [each for each in found if isinstance(each, kinds)]
    assert script.flow(KEY).paths[KEY].network == "helper-1"


def test_the_next_neighbour_of_its_name_is_another_network():
    script = Street()
    script.looked(500_000, 10.0)
    script.looked(1_000_000, 11.0)
    assert "delivery_down_bps" in script.context().networks["helper-1"]
    script.there(WLAN, LTE, helpers=(replace(HELPER, money_per_mb=0.002),))
    assert "delivery_down_bps" in script.context().networks["helper-1"]
    script.there(WLAN, LTE, helpers=(replace(HELPER, addresses=(ip_interface("169.254.1.6/32"),)),))
    assert "delivery_down_bps" not in script.context().networks["helper-1"]


def test_what_it_has_not_answered_may_be_sent_again_over_another_network():
    script = Street()
    urgent = Transfer(size_of(3000), Direction.UP)
    assert script.chosen(urgent, sent=Sent("helper-1", 2.0)) != ("helper-1",)


def test_a_server_of_its_link_stays_reachable_without_it():
    """Connections that are not a session's go where they went."""
    script = Street()
    key = FlowKey(WLAN.addresses[0].ip, 4001, SERVER, 80)
    script.tell(on.FlowOpened(key, 9.0, 109.0), at_s=9.0)
    assert script.flow(key).paths[key].network == "wlan0"


def test_all_of_a_connection_that_begins_after_the_daemon_counts():
    script = Street()
    script.controller = Controller(script.controller.config)  # starts beside the helper
    script.there(WLAN)
    closed = on.FlowClosed(KEY, 109.0, 10_000_000, 300)
    script.tell(on.FlowOpened(KEY, 9.0, 109.0), closed, at_s=9.0)
    assert script.controller.networks.by_helpers.of("helper-1") == (10_000_000, 300)
