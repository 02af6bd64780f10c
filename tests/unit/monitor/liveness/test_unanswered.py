"""Who waits for an answer in vain."""

from dataclasses import replace
from typing import Any

from cedos.monitor.liveness.unanswered import Unanswered


def test_who_waits_in_vain(desk: Any) -> None:
    watch, nets, now_s = Unanswered(), [desk.wifi, desk.lte], 5.0
    stuck = [desk.flow(desk.wifi, 1, state=2), desk.flow(desk.wifi, 2, state=2)]
    assert watch.observe(stuck, nets, 1.0) == frozenset()
    assert watch.observe(stuck[:1], nets, 2.0) == {"home"}
    assert watch.unanswered_servers("home", now_s) == 0  # one server may be down
    assert watch.observe(stuck, nets, 2.5) == {"home"}
    assert watch.observe(stuck, nets, 3.5) == {"home"}
    assert watch.unanswered_servers("home", now_s) == 2
    # Something else came through: it is the servers.
    alive = desk.flow(desk.wifi, 3, down=500)
    assert watch.observe([*stuck, alive], nets, 4.5) == frozenset()
    assert watch.unanswered_servers("home", now_s) == 0
    assert watch.observe([*stuck, alive], nets, 5.4) == frozenset(), "a moment ago it carried"
    assert watch.observe([*stuck, alive], nets, 5.6) == {"home"}
    # Connections that do come up, and those of no network, say nothing.
    assert watch.observe([replace(one, state=1) for one in stuck], nets, 6.5) == frozenset()
    assert watch.observe([desk.flow(desk.lte, 1, state=2)], [desk.wifi], 9.0) == frozenset()


def test_rescued_connections_speak_against_the_network_they_were_on(desk: Any) -> None:
    watch = Unanswered()
    for server, enough in ((1, False), (1, False), (2, True), (2, False), (3, False)):
        if server < 3:
            assert watch.unanswered_servers("home", 5.0) == 0
        assert watch.rescued("home", desk.flow(desk.wifi, server).key.remote, 5.0) is enough
    # Whoever asks the same server again does not restart its wait.
    assert not watch.rescued("home", desk.flow(desk.wifi, 1).key.remote, 5.6)
    assert watch.unanswered_servers("home", 5.6) == 0, "it may be a pause"
    assert watch.unanswered_servers("home", 5.7) == 3
    assert watch.unanswered_servers("phone", 5.7) == 0
    assert watch.unanswered_servers("home", 15.1) == 0
    watch.observe([desk.flow(desk.wifi, 3, down=1)], [desk.wifi], 6.0)
    assert watch.unanswered_servers("home", 6.0) == 0


def test_what_came_since_clears_a_network_of_rescues_between_two_looks(desk: Any) -> None:
    """A slow network under load: first packets wait in its queue, and data trickles in."""
    watch, remote = Unanswered(), desk.flow(desk.wifi, 1).key.remote
    carrying = [desk.flow(desk.wifi, 3, down=500 * k) for k in range(4)]
    watch.observe(carrying[:1], [desk.wifi], 1.0)
    watch.rescued("home", remote, 1.1)
    watch.rescued("home", desk.flow(desk.wifi, 2).key.remote, 1.2)
    watch.observe(carrying[1:2], [desk.wifi], 1.3)
    assert watch.unanswered_servers("home", 1.9) == 0
    assert watch.carrying == {"home"}
    # Nothing for a while: it may carry nothing any more.
    for at_s in (1.5, 2.2, 2.4):
        watch.observe(carrying[1:2], [desk.wifi], at_s)
    assert watch.carrying == frozenset()


def test_a_network_that_has_gone_carries_nothing(desk: Any) -> None:
    watch = Unanswered()
    watch.observe([desk.flow(desk.wifi, 3, down=500)], [desk.wifi, desk.lte], 1.0)
    assert watch.carrying == {"home"}
    watch.observe([], [desk.lte], 1.2)
    assert watch.carrying == frozenset()
