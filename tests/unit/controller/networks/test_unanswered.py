"""Destinations at which connections wait in vain."""

from cedos.controller.networks.unanswered import Unanswered


def test_rescued_connections_speak_against_the_network_they_were_on(desk):
    watch = Unanswered()
    remotes = {n: desk.flow(desk.wifi, n).key.remote for n in (1, 2)}
    for server in (1, 1, 2, 2):
        watch.on_rescue("home", remotes[server], 5.0)
    # A program that asks the same server again does not restart its wait.
    watch.on_rescue("home", remotes[1], 5.6)
    assert watch.in_vain("home", 5.6) is None, "it may be a pause"
    found = watch.in_vain("home", 5.7)
    assert (found.servers, found.asked_s, found.elsewhere) == (2, 5.0, 0)
    assert watch.in_vain("phone", 5.7) is None
    assert watch.in_vain("home", 15.1) is None
    watch.observe([desk.flow(desk.wifi, 3, down=1)], [desk.wifi], 6.0)
    assert watch.in_vain("home", 6.0) is None


def test_a_server_that_answers_elsewhere_counts_alone(desk):
    watch, remote = Unanswered(), desk.flow(desk.wifi, 1).key.remote
    watch.answered_elsewhere("home", remote)
    watch.on_rescue("home", remote, 5.0)
    before = watch.in_vain("home", 5.7)
    assert not before.counts
    watch.answered_elsewhere("home", remote)
    after = watch.in_vain("home", 5.7)
    assert (after.counts, after.elsewhere) == (True, 1)


def test_what_came_since_clears_a_network_of_rescues_between_two_looks(desk):
    """A slow network under load: first packets wait in its queue, and data trickles in."""
    watch = Unanswered()
    carrying = [desk.flow(desk.wifi, 3, down=500 * k) for k in range(4)]
    watch.observe(carrying[:1], [desk.wifi], 1.0)
    for server in (1, 2):
        watch.on_rescue("home", desk.flow(desk.wifi, server).key.remote, 1.1)
    watch.observe(carrying[1:2], [desk.wifi], 1.3)
    assert watch.in_vain("home", 1.9) is None
    assert watch.carrying.keys() == {"home"}
    # Nothing for a while: it may carry nothing any more.
    for at_s in (1.5, 2.2, 2.4):
        watch.observe(carrying[1:2], [desk.wifi], at_s)
    assert watch.carrying.keys() == set()


def test_only_what_no_box_would_answer_proves_that_a_network_carries(desk):
    watch = Unanswered()
    page = desk.flow(desk.wifi, 1, down=90_000, port=80)
    watch.observe([page, desk.flow(desk.wifi, 2, down=6_000)], [desk.wifi], 1.0)
    assert watch.carrying.keys() == {"home"}
    assert watch.proven == {}
    large = desk.flow(desk.wifi, 3, down=90_000)
    watch.observe([large], [desk.wifi], 1.2)
    assert watch.proven == {"home": {large.key.remote}}
    watch.observe([large], [desk.wifi], 1.4)
    assert watch.proven == {}, "nothing came since"
