"""Only what lives and is somebody's is listed as a flow."""

import socket
import time
from collections.abc import Callable

from kit.laptop import Installed, Tethered

IPPROTO_MPTCP = 262
ASKING = """
[probes]
target = "gateway"
interval_s = 0.2
idle_interval_s = 0.2
rule = "fixed"
full_interval_s = 0.2
[providers]
host = false
"""


def test_dead_flows_and_own_look_ups_are_not_listed(
    tethered: Tethered, install: Callable[..., Installed]
) -> None:
    laptop, phones = tethered.laptop, tethered.phones
    laptop.ip("link", "set", "lo", "up")
    with phones.entered():
        web = socket.create_server(("192.168.43.1", 80))
    cedos = install(laptop)
    with cedos.up():

        def listed() -> list[str]:
            return [flow.flow for flow in cedos.client.flows()]

        def until(count: int) -> list[str]:
            deadline_s = time.monotonic() + 10
            while len(flows := listed()) != count:
                assert time.monotonic() < deadline_s, flows
                time.sleep(0.05)
            return flows

        with laptop.entered():
            client = socket.create_connection(("192.168.43.1", 80), timeout=5)
            asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            asking.connect(("192.168.43.1", 53))
            serving = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            serving.bind(("192.168.43.2", 4444))
            listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
            listening.bind(("127.0.0.1", 0))
            listening.listen(1)
            local = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
            local.connect(listening.getsockname())
        asking.send(b"?")
        serving.sendto(b"?", ("192.168.43.1", 53))
        flows = until(3)
        assert not any("127.0.0.1" in flow for flow in flows)
        for each in (asking, local, listening):
            each.close()
        assert sorted(flow[:3] for flow in until(2)) == ["tcp", "udp"]
        serving.close()
        until(1)
        client.close()
        web.close()
        until(0)


def test_the_look_ups_of_the_daemon_are_nobodys_flows(
    tethered: Tethered, install: Callable[..., Installed]
) -> None:
    cedos = install(tethered.laptop)
    (cedos.folder / "cedos.toml").write_text(ASKING)
    # Nobody answers: each question stays open until it is given up.
    with tethered.phones.entered():
        silent = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in "wl"]
        for number, each in zip((43, 44), silent, strict=True):
            each.bind((f"192.168.{number}.1", 53))
    with cedos.up():
        silent[0].settimeout(20)
        assert silent[0].recv(512)
        seen = [flow.flow for _ in range(10) for flow in (time.sleep(0.1), cedos.client.flows())[1]]
    assert seen == []
    for each in silent:
        each.close()
