"""A request that follows its connection at once, as on a LAN, names the server all the same."""

import socket
import threading
from contextlib import suppress

import pytest
from kit.waiting import wait_until

PORT = 8000
NAMES = {f"n{number}.example" for number in range(8)}


def _hold(listening):
    """Take connections and keep them, until the socket is closed."""
    kept = []
    with suppress(OSError):
        while True:
            kept.append(listening.accept()[0])


@pytest.mark.parametrize("how", ["download", "upload"])
def test_a_name_in_the_first_milliseconds_is_known(tethered, install, how):
    installed = install(tethered.laptop)
    config = installed.folder / "cedos.toml"
    config.write_text(config.read_text().replace("[profiler]\nenabled = false\n", ""))
    with tethered.phones.entered():
        listening = socket.create_server(("192.168.43.1", PORT))
    threading.Thread(target=_hold, args=(listening,), daemon=True).start()
    method = {"download": "GET", "upload": "POST"}[how]
    length = "" if how == "download" else "Content-Length: 900000\r\n"
    clients = []
    try:
        with installed.up():
            for name in NAMES:
                with tethered.laptop.entered():
                    client = socket.create_connection(("192.168.43.1", PORT), timeout=10)
                client.sendall(f"{method} / HTTP/1.1\r\nHost: {name}\r\n{length}\r\n".encode())
                clients.append(client)
            wait_until(
                lambda: {flow.server_name for flow in installed.client.flows()} >= NAMES, 10.0
            )
    finally:
        for client in clients:
            client.close()
        listening.close()
