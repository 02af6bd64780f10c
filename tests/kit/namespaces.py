"""Parts that tests in namespaces share: a server that echoes, a tunnel, a disk that is soon full."""

import contextlib
import fcntl
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from emu.testbed.netns import Namespace


def echo(listening: socket.socket, kept: list[socket.socket]) -> None:
    """Answer `who` with the client's address, and all else with itself; keep each connection."""

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, peer = listening.accept()
                kept.append(connection)
                threading.Thread(target=answer, args=(connection, peer[0]), daemon=True).start()

    def answer(connection: socket.socket, peer: str) -> None:
        with contextlib.suppress(OSError), connection:
            while data := connection.recv(1 << 16):
                connection.sendall(peer.encode() if data == b"who\n" else data)

    threading.Thread(target=accept, daemon=True).start()


def tun(namespace: Namespace, name: str) -> int:
    """Make a tunnel without a packet's header before it; return its descriptor."""
    with namespace.entered():
        tunnel = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(tunnel, 0x400454CA, struct.pack("16sH22x", name.encode(), 0x1001))
    return tunnel


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Give a folder a disk of one megabyte."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
