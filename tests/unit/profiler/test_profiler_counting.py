"""What counts as one transfer, and from where: tunnels, MPTCP, servers here, flows told late."""

from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

from cedos.model import Direction, FlowKey
from cedos.profiler.profiler import Profiler
from cedos.profiler.sizes import SizeHistory

Hello = Callable[[str], bytes]
Web = Any
DOWN, UP = Direction.DOWN, Direction.UP


def test_a_retransmission_tells_nothing_new(web: Web) -> None:
    profiler = Profiler()
    talk = web.talk(profiler)
    packet = talk.packet(UP, web.get.encode())
    assert len(profiler.observe(packet, 1.0)) == 1
    assert profiler.observe(packet, 1.2) == []
    talk.send(b"")
    response = talk.packet(DOWN, web.answer(7).encode())
    assert len(profiler.observe(response, 1.3)) == 1
    assert profiler.observe(response, 1.4) == []
    assert profiler.history.samples(web.server, 80, DOWN) == 1


def test_a_tunnel_counts_as_a_whole(web: Web, hello: Hello) -> None:
    profiler = Profiler()
    talk = web.talk(profiler, replace(web.key, remote_port=3128))
    (told,) = talk.send("CONNECT far.example:443 HTTP/1.1\r\nHost: far.example:443\r\n\r\n")
    assert told.server_name == "far.example"
    assert talk.receive("HTTP/1.1 200 Connected\r\n\r\n") == []
    assert talk.send(hello("far.example"), 300) == []  # that is known
    talk.receive(b"", 90_000)
    talk.close()
    assert profiler.history.estimate("far.example", 3128, DOWN).median_bytes > 90_000


def test_an_upgraded_connection_counts_as_a_whole(web: Web) -> None:
    talk = web.talk()
    talk.send(web.get)
    assert talk.receive("HTTP/1.1 101 Switching Protocols\r\n\r\n", 60_000) == []
    talk.close()
    assert talk.profiler.history.estimate("a.example", 80, DOWN).median_bytes > 60_000


def test_progress_counts_from_the_transfer_not_from_the_connection(web: Web) -> None:
    profiler = Profiler()
    profiler.opened(web.key, 0.9)
    talk = web.talk(profiler)
    talk.send(web.get)
    talk.receive(web.answer(10_000_000), 10_000_000)
    assert talk.progress() == []  # it was told exactly
    talk.send(web.get)
    talk.receive(web.chunked_answer, 0)
    assert talk.progress() == []
    talk.receive(b"", 40_000_000)
    (told,) = talk.progress()
    assert 40_000_000 < told.size.low_bytes < 50_000_000


def test_a_flow_older_than_the_profiler_is_counted_from_where_it_stands(web: Web) -> None:
    profiler = Profiler()
    assert profiler.progressed(web.key, 900_000_000, 5_000, 0.5) == []
    talk = web.talk(profiler)
    (asked,) = talk.send(web.get)
    assert asked.size.median_bytes == 3_000
    assert profiler.progressed(web.key, 900_002_000, 5_100, 1.5) == []
    (told,) = profiler.progressed(web.key, 900_500_000, 5_100, 1.6)
    assert 500_000 <= told.size.low_bytes < 900_000_000


def test_an_mptcp_connection_is_one_whatever_the_subflow(web: Web) -> None:
    profiler = Profiler()
    talk = web.talk(profiler, mptcp=True)
    for _ in range(2):
        talk.send(web.get)
        talk.receive(web.chunked_answer, 50_000)
    again = talk.packet(UP, web.get.encode())
    assert len(profiler.observe(again, 2.0)) == 1
    assert profiler.observe(again._replace(interface="lte0"), 2.1) == []  # reinjected
    talk.close()
    assert profiler.history.samples("a.example", 80, DOWN) == 2
    assert profiler.history.estimate("a.example", 80, DOWN).median_bytes == 50_000


def test_a_fallback_to_tcp_is_not_counted_on(web: Web) -> None:
    profiler = Profiler()
    talk = web.talk(profiler, mptcp=True)
    talk.send(web.get)
    talk.receive(web.chunked_answer, 50_000)
    talk.mptcp = False
    assert len(talk.send(web.get)) == 1
    assert len(talk.receive(web.chunked_answer, 50_000)) == 1
    talk.close()
    assert len(profiler.history) == 3
    assert profiler.history.samples("a.example", 80, DOWN) == 0


def test_a_server_on_this_host_sends_up(web: Web) -> None:
    profiler = Profiler()
    key = FlowKey(ip_address("192.168.43.2"), 8080, ip_address(web.server), 51_000)
    (opened,) = profiler.opened(key, 0.9, incoming=True)
    assert opened.direction is UP
    talk = web.talk(profiler, key)
    (asked,) = talk.receive(web.get)
    assert asked.direction is UP
    (answered,) = talk.send(web.answer(1_000_000), 1_000_000)
    assert (answered.direction, answered.size) == (UP, web.exactly(1_000_000))
    assert profiler.history.samples(web.server, 8080, UP) == 1
    assert len(profiler.history) == 1


def test_an_opening_told_late_changes_nothing(web: Web) -> None:
    profiler = Profiler()
    talk = web.talk(profiler)
    talk.send(web.get)
    assert profiler.opened(web.key, 1.1) == []
    assert profiler.server_name(web.key) == "a.example"
    assert len(profiler.opened(web.key, 100.0)) == 1  # the same ports again: another connection
    assert profiler.server_name(web.key) is None


def test_flows_are_bounded(web: Web) -> None:
    profiler = Profiler(SizeHistory(max_hosts=10), max_flows=20)
    for port in range(1, 500):
        key = replace(web.key, local_port=port, remote_port=port)
        profiler.opened(key, 1.0)
        profiler.closed(replace(key, local_port=port + 1000), 10, 10)
    assert len(profiler) == 20
    assert len(profiler.history) == 10


def test_a_server_called_by_its_address_learns_each_transfer_once(web: Web) -> None:
    profiler = Profiler()
    talk = web.talk(profiler)
    talk.send(web.get.replace("a.example", web.server))
    talk.receive(web.answer(4000), body=4000)
    assert profiler.history.samples(web.server, 80, DOWN) == 1
