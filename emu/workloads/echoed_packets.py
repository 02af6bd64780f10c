"""Packets that come back, by UDP, plain or through a SOCKS 5 proxy: the first of each socket, and many.

`python -m emu.workloads.echoed_packets WHAT HOST ...`: `echo` sends back what comes; `first` takes a
new socket for each of so many packets, and prints the seconds of each; `rate` keeps a few under way for
some seconds, and prints how many came back, and how many did not.
"""

import argparse
import json
import os
import socket
import time
from contextlib import suppress
from typing import Final

from emu.workloads.call import associated

PORT: Final = 7018
# A size that passes any tunnel in one piece, as QUIC's packets do.
PACKET_BYTES: Final = 1_200

_UNDER_WAY: Final = 64
_LOST_S: Final = 1.0
_PAUSE_S: Final = 0.05
_BUFFER_BYTES: Final = 1 << 20
_LARGEST: Final = 65_535


class EchoedSocket:
    """A socket to the echo; `socks`: the proxy's port on loopback, 0 for none."""

    def __init__(self, host: str, socks: int) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        self._socket.settimeout(_LOST_S)
        self._to, self._head = (host, PORT), b""
        self._control: socket.socket | None = None
        if socks:
            self._control, self._to, self._head = associated(socks, host, PORT)

    def send(self, data: bytes) -> None:
        self._socket.sendto(self._head + data, self._to)

    def wait(self) -> bool:
        """Return whether one has come, in time."""
        with suppress(TimeoutError):
            return len(self._socket.recv(_LARGEST)) > 0
        return False

    def close(self) -> None:
        self._socket.close()
        if self._control is not None:
            self._control.close()


def first_s(host: str, count: int, socks: int) -> list[float]:
    """Return the first answer's seconds of new sockets in turn; an absent answer counts as the wait."""
    took = []
    for _ in range(count):
        one = EchoedSocket(host, socks)
        began_s = time.monotonic()
        one.send(b"first")
        one.wait()
        took.append(time.monotonic() - began_s)
        one.close()
        time.sleep(_PAUSE_S)
    return took


def rate(host: str, seconds: float, socks: int) -> dict[str, float]:
    """Return the rate at which packets come back while some are always under way."""
    one = EchoedSocket(host, socks)
    data = bytes(PACKET_BYTES)
    one.send(data)
    one.wait()
    came = lost = 0
    began_s = time.monotonic()
    for _ in range(_UNDER_WAY):
        one.send(data)
    while time.monotonic() < began_s + seconds:
        if one.wait():
            came += 1
            one.send(data)
        else:
            lost += _UNDER_WAY
            for _ in range(_UNDER_WAY):
                one.send(data)
    took_s = time.monotonic() - began_s
    one.close()
    return {"came": came, "lost": lost, "seconds": took_s}


def _echo(host: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        one.bind((host, PORT))
        print("ready", flush=True)
        while True:
            data, sender = one.recvfrom(_LARGEST)
            one.sendto(data, sender)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["echo", "first", "rate"])
    parser.add_argument("host")
    parser.add_argument("much", type=float, nargs="?", default=1.0, help="sockets, or seconds")
    parser.add_argument("--socks", type=int, default=0)
    parser.add_argument("--user", type=int, default=None, help="who it counts as, by number")
    asked = parser.parse_args()
    if asked.user is not None:
        os.setreuid(asked.user, -1)
    if asked.what == "echo":
        _echo(asked.host)
    elif asked.what == "first":
        print(json.dumps(first_s(asked.host, int(asked.much), asked.socks)))
    else:
        print(json.dumps(rate(asked.host, asked.much, asked.socks)))


if __name__ == "__main__":
    main()
