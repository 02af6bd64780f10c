"""Programs through the simulated gateway: the shipped sessions on links that fail under their data."""

import multiprocessing
import socket
from concurrent.futures import ProcessPoolExecutor

import pytest

from cedos.controller.events import ChoiceAsked, FlowOpened
from cedos.errors import ConfigError
from cedos.model import Direction, NetworkKind
from emu import policies
from emu.places.traces import Trace
from emu.simulator.gateway import SimulatedGateway
from emu.simulator.laptop import SimulatedLaptop
from emu.simulator.link import Clock, Network
from emu.simulator.sockets import Kernel, SimulatedSocket
from emu.testbed.access import Access
from emu.testbed.programs.gateway import PORT
from emu.workloads.mixed import PlannedTransfer

WIFI, CELLULAR = NetworkKind.WIFI, NetworkKind.CELLULAR
BEGUN_S = 2.0


class Gatewayed:
    """A laptop with Wi-Fi (20 Mbit/s, 20 ms) and LTE (10 Mbit/s, 60 ms) that uses the gateway."""

    def __init__(self):
        self.clock = Clock()
        self.networks = {
            kind: Network(
                self.clock, Access(kind, Trace.constant(rate_bps), Trace.constant(rate_bps), rtt_s)
            )
            for kind, rate_bps, rtt_s in ((WIFI, 20e6, 0.02), (CELLULAR, 10e6, 0.06))
        }
        self.daemon = SimulatedLaptop(
            self.clock, self.networks, policies.simulated("cedos-gateway").daemon
        )
        self.gateway = SimulatedGateway(self.clock, self.networks, self.daemon)
        self.events = []
        handle = self.daemon.controller.handle

        def noted(event, now_s):
            self.events.append(event)
            handle(event, now_s)

        self.daemon.controller.handle = noted

    def took(self, *sizes, down=True, until_s=30.0):
        """Begin transfers two seconds later, and return how long each takes; None: it does not end."""
        begun = []

        def begin():
            for number, size in enumerate(sizes):
                planned = PlannedTransfer(
                    number,
                    "x",
                    BEGUN_S,
                    "198.51.100.2",
                    Direction.DOWN if down else Direction.UP,
                    size,
                    mptcp=False,
                )
                begun.append(self.gateway.begin(planned))

        self.clock.at(BEGUN_S, begin)
        self.gateway.run(until_s)
        return [None if each.ended_s is None else each.ended_s - BEGUN_S for each in begun]

    def megabytes_over(self, kind):
        return self.networks[kind].down.delivered_bytes / 1e6


def test_a_small_answer_takes_the_round_trips_of_the_session_and_its_own():
    (first_s,) = Gatewayed().took(1_000)
    # TCP, the session's handshake, and the stream's opening with the request: three of 22 ms.
    assert 0.066 < first_s < 0.078


@pytest.mark.parametrize("down", [True, False])
def test_a_large_transfer_goes_over_wi_fi_or_both(down):
    there = Gatewayed()
    (took_s,) = there.took(10_000_000, down=down)
    assert 8 * 10 / 30 < took_s < 8 * 10 / 20 * 1.2


def test_a_download_goes_on_when_wi_fi_dies_silently():
    there = Gatewayed()
    there.clock.at(BEGUN_S + 1.0, there.networks[WIFI].fail)
    (took_s,) = there.took(10_000_000)
    # About 2 MB came over Wi-Fi by then. The rest needs 6.4 s over LTE, behind half a second's notice.
    assert 6.4 < took_s < 8.6
    assert there.megabytes_over(CELLULAR) > 6.0


def test_an_upload_goes_on_and_is_complete():
    there = Gatewayed()
    there.clock.at(BEGUN_S + 1.0, there.networks[WIFI].fail)
    (took_s,) = there.took(5_000_000, down=False)
    assert took_s < 4.5


def test_wi_fi_that_comes_back_is_used_again():
    there = Gatewayed()
    wifi = there.networks[WIFI]
    there.clock.at(BEGUN_S + 0.5, wifi.fail)
    there.clock.at(BEGUN_S + 2.5, wifi.up_again)
    before = []
    there.clock.at(BEGUN_S + 2.5, lambda: before.append(there.megabytes_over(WIFI)))
    (took_s,) = there.took(12_000_000)
    assert took_s < 10.0
    assert there.megabytes_over(WIFI) > before[0] + 3.0


@pytest.mark.parametrize("away_s", [0.03, 0.3])
def test_acknowledgements_that_a_short_failure_lost_do_no_harm(away_s):
    there = Gatewayed()
    for number in range(8):
        at_s = BEGUN_S + 0.4 * number
        there.clock.at(at_s, there.networks[WIFI].fail)
        there.clock.at(at_s + away_s, there.networks[WIFI].up_again)
    (took_s,) = there.took(12_000_000)
    assert took_s < 8 * 12 / 10, "not longer than over LTE alone"


def test_a_program_is_refused_while_no_network_leads_to_the_gateway():
    there = Gatewayed()
    for network in there.networks.values():
        network.fail()
    assert there.took(1_000) == [None]


def test_the_daemon_sees_the_session_and_answers_its_questions():
    there = Gatewayed()
    there.took(3_000_000)
    opened = [each.key for each in there.events if isinstance(each, FlowOpened)]
    assert {(str(key.local), key.remote_port) for key in opened} == {
        ("192.168.43.2", PORT),
        ("192.168.44.2", PORT),
    }
    asked = [
        each.transfer.size.median_bytes for each in there.events if isinstance(each, ChoiceAsked)
    ]
    # Of the announced body, what is behind the part that counts as small.
    assert any(2_500_000 < size < 3_000_000 for size in asked)


def times(sizes):
    there = Gatewayed()
    there.clock.at(BEGUN_S + 0.7, there.networks[WIFI].fail)
    return there.took(*sizes), [len(there.events), there.clock.now_s]


def test_the_same_load_takes_the_same_time_in_another_process():
    sizes = (1_000, 2_000_000, 30_000, 4_000_000)
    # The seed of hashes is drawn as a process starts.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(times, sizes).result() == times(sizes)


def test_only_policies_that_the_simulator_knows_are_simulated():
    assert policies.simulated("cedos-gateway").gateway
    assert not policies.simulated("cedos").gateway
    with pytest.raises(ConfigError, match="cedos-gateway"):
        policies.simulated("cedos-told")


class Alone:
    """A connection over LTE of 10 Mbit/s and 60 ms, without a session, whose third second is a pause."""

    def __init__(self):
        self.clock = Clock()
        trace = Trace([*range(2_000), *range(3_000, 10_000)], 10_000)
        lte = Network(self.clock, Access(CELLULAR, trace, trace, 0.06))
        kernel = Kernel(self.clock, {"lte0": lte}, ("10.0.0.2", 443), self)
        self.socket = SimulatedSocket(kernel)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lte0")
        self.socket.connect_ex(("10.0.0.2", 443))
        self.wait(0.2)

    def wait(self, until_s):
        while self.clock.now_s < until_s:
            self.clock.run(until_s)

    def watch(self, opened): ...

    def unwatch(self, closed): ...

    def sends(self, size, *, until_s):
        self.socket.sendmsg([bytes(size)])
        self.wait(until_s)
        return self.socket.info()


def test_sparse_packets_show_no_rate_but_how_long_they_were_on_their_way():
    """Mark each as limited by the program, and TCP as busy as long, as Linux does over 60 ms."""
    alone = Alone()
    for count in range(1, 5):
        info = alone.sends(1_000, until_s=0.2 + 0.2 * count)
        assert info.rate_limited_by_us
        assert info.busy_s == pytest.approx(0.06 * count, rel=0.1)
    info = alone.sends(120_000, until_s=1.8)
    assert not info.rate_limited_by_us
    assert info.delivery_rate_bps > 2e6
    assert alone.sends(1_000, until_s=1.95).delivery_rate_bps == info.delivery_rate_bps


def test_a_copy_that_is_acknowledged_late_does_not_end_the_busy_time_twice():
    alone = Alone()
    alone.wait(1.96)
    info = alone.sends(3_000, until_s=5.0)
    assert info.repeated_segments, "TCP repeated what came after the pause"
    assert 1.0 < info.busy_s < 1.5
