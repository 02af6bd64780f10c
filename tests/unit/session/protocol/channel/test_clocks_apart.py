"""Ends whose clocks have nothing to do with each other, or jump: nothing of a handshake is a date."""

import pytest

from cedos.session.protocol.channel import Channel, resume, set_up
from cedos.session.protocol.handshake.outcome import ConnectionKind
from cedos.session.protocol.handshake.set_up import SetUpOptions
from tests.unit.session.conftest import Hosts


@pytest.mark.parametrize("apart_s", [-3e9, -3600.0, 3600.0, 3e9])
def test_who_has_another_time_sets_up_and_comes_back(hosts: Hosts, apart_s: float) -> None:
    here_s = hosts.now + apart_s

    def talk(client: Channel) -> None:
        server = hosts.accept()
        for _ in range(6):
            for message in client.outgoing():
                server.receive(message, hosts.now)
            for message in server.outgoing():
                client.receive(message, here_s)
        assert client.confirmed
        assert server.confirmed
        assert server.opened is not None
        credentials = server.opened.credentials
        hosts.book.flows[credentials.flow_id] = credentials

    client = set_up(
        hosts.client, hosts.server.public, SetUpOptions(3600), random=hosts.random, now=here_s
    )
    talk(client)
    assert client.opened is not None
    for jump_s in (0.0, 4e8, -8e8):
        here_s += jump_s
        credentials = client.opened.credentials
        talk(
            resume(
                hosts.client, credentials, ConnectionKind.RESUME, random=hosts.random, now=here_s
            )
        )
