"""What a tap sees of packets: those with data, of its port, when they passed."""

import socket
import time
from collections.abc import Callable

from emu.experiments.meatballs.exchanges.packet_tap import Tap
from emu.testbed.netns import Namespace

PORT = 7412


def test_packets_with_data_are_seen_once_each_way_when_they_pass(
    make_namespace: Callable[[str], Namespace],
) -> None:
    namespace = make_namespace("tap")
    with namespace.entered():
        listener = socket.create_server(("127.0.0.1", PORT))
        other = socket.create_server(("127.0.0.1", PORT + 1))
    with listener, other, Tap(namespace, PORT) as tap:
        for server in (listener, other):
            with namespace.entered():
                client = socket.create_connection(server.getsockname())
            accepted, _ = server.accept()
            with client, accepted:
                began_s = time.monotonic()
                client.sendall(bytes(321))
                assert len(accepted.recv(321, socket.MSG_WAITALL)) == 321
            if server is listener:
                first_s, until_s = began_s, time.monotonic()
    assert [(each.outgoing, each.payload_bytes) for each in tap.passed] == [
        (True, 321),
        (False, 321),
    ]
    for each in tap.passed:
        assert each.interface == "lo"
        assert first_s - 0.005 <= each.at_s <= until_s + 0.005
