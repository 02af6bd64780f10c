"""The paper's video live: real TCP over helpers with Mahimahi's links, which really forward.

The server is that of `video.py`, and so is the player, which gets what arrived at the requestor. SWTC and
the lowest round trip first are sessions; kernel MPTCP is what the paper calls Co-MPTCP, as of today.
Each has the same addresses and helpers. The receive window is the requestor's setting for all of its TCP
connections. All subflows of MPTCP share it; a session reads each path at once and keeps what is out of
order itself. Here the ends of a transfer are processes:
`python -m emu.experiments.cbsp.live server|client SETTING`.
"""

import asyncio
import json
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import IPv4Address
from typing import Any, Final

from cedos import session
from cedos.host.steer.sharing.helper_paths import HelperPaths
from cedos.host.steer.sharing.kernel import SharingKernel, SharingRole
from cedos.host.steer.sharing.undo import open_journal
from cedos.model import NetworkKind
from cedos.session.protocol.crypto import KeyPair
from cedos.session.protocol.life import SessionLimits
from emu.experiments.cbsp.video import LOWEST_RTT, SWTC, Player, Setting
from emu.places.traces import Trace
from emu.statistics import trials_figure
from emu.testbed.access import Access
from emu.testbed.neighbours import LINK, Neighbourhood
from emu.testbed.services import accepts
from emu.testbed.wiring import SERVER
from emu.workloads.transfer import IPPROTO_MPTCP

MPTCP: Final = "kernel-mptcp"
SCHEDULERS: Final = (SWTC, LOWEST_RTT, MPTCP)
# A few points of each series that `__main__` simulates; the slowest first.
CASES: Final = {
    **{f"50, {kb} kB": Setting(delta_kbps=50, window_bytes=1e3 * kb) for kb in (8, 32, 128)},
    **{f"250, {share} %": Setting(delta_kbps=250, loss=share / 100) for share in (1, 3, 5)},
    **{f"50, {ms} ms": Setting(delta_kbps=50, period_s=ms / 1000) for ms in (250, 350, 400)},
    **{f"{delta}": Setting(delta_kbps=delta) for delta in (50, 250, 300)},
}
_AT_ONCE: Final = 6
_PORT, _KEY = 7300, bytes(range(32))
_START_S, _LIMIT_S = 20.0, 240.0
# When how much had come, from the request on.
Came = list[tuple[float, int]]
# Until all subflows have joined, or all paths are there.
_JOINED_S: Final = 2.0


def figures(repeats: int) -> dict[str, Any]:
    """Play the video under each scheduler in turns; several cases at once, as each has its links."""
    with ProcessPoolExecutor(_AT_ONCE) as pool:
        cases = pool.map(_case, CASES.values(), [repeats] * len(CASES))
        return {"cases": dict(zip(CASES, cases, strict=True))}


def _case(setting: Setting, repeats: int) -> dict[str, Any]:
    players: dict[str, list[Player]] = {each: [] for each in SCHEDULERS}
    with _street(setting) as there:
        for _ in range(repeats):
            for scheduler, played in players.items():
                played.append(_played(there, setting, scheduler))
    return {
        scheduler: {
            **trials_figure("pci", [each.pci for each in played], 4),
            **trials_figure("startup_s", [each.started_s or _LIMIT_S for each in played], 4),
        }
        for scheduler, played in players.items()
    }


@contextmanager
def _street(setting: Setting) -> Iterator[Neighbourhood]:
    """Yield helpers of these rates, each of which forwards for an address of the requestor."""
    links = [
        Access(
            NetworkKind.CELLULAR, up=Trace.constant(2e6), down=Trace.constant(rate_bps),
            rtt_s=setting.rtt_s, queue_packets=setting.queue_packets,
        )
        for rate_bps in setting.rates_bps()
    ]  # fmt: skip
    links[-1] = replace(links[-1], loss=setting.loss)
    with Neighbourhood(links) as there:
        # Half of a buffer is the window that TCP announces.
        buffer = 2 * round(setting.window_bytes)
        there.requestor.sysctl("net.ipv4.tcp_rmem", f"4096 {buffer} {buffer}")
        (near_end,) = json.loads(there.requestor.ip("-j", "link", "show", LINK))
        for number, helper in enumerate(there.helpers):
            own = str(_own(number))
            helper.namespace.ip("route", "add", own, "dev", LINK)
            # The requestor answers no ARP for it: its rules lead to the server alone.
            neighbour = ("lladdr", near_end["address"], "dev", LINK)
            helper.namespace.ip("neighbour", "add", own, *neighbour)
            helper.namespace.sysctl("net.ipv4.ip_forward", 1)
            nat = ("POSTROUTING", "!", "-o", LINK, "-j", "MASQUERADE")
            helper.namespace.run("iptables", "-t", "nat", "-A", *nat)
        with there.requestor.entered():
            kernel = SharingKernel()
            journal = open_journal(there.directory, SharingRole.REQUEST)
            paths = HelperPaths(kernel, journal, LINK)
            for number, helper in enumerate(there.helpers):
                near, far = IPv4Address(helper.address), IPv4Address(SERVER)
                paths.add(near, far, _own(number))
        there.requestor.ip("mptcp", "limits", "set", "subflows", "8")
        for number in range(len(there.helpers)):
            own = str(_own(number))
            there.requestor.ip("mptcp", "endpoint", "add", own, "dev", LINK, "subflow")
        try:
            yield there
        finally:
            journal.close()
            kernel.close()


def _own(number: int) -> IPv4Address:
    return IPv4Address(f"169.254.1.{number + 1}")


def _played(there: Neighbourhood, setting: Setting, scheduler: str) -> Player:
    """Carry the video once; return its player."""
    size = round(setting.video_bps / 8 * setting.video_s)
    window = round(setting.window_bytes)
    chunks = (setting.chunk_bytes, setting.chunk_period_s())
    told = json.dumps([scheduler, window, size, *chunks])
    line = (sys.executable, "-m", "emu.experiments.cbsp.live")
    server = there.server.popen(*line, "server", told)
    try:
        until_s = time.monotonic() + _START_S
        while not accepts(there.server, SERVER, _PORT) and time.monotonic() < until_s:
            time.sleep(0.1)
        came = json.loads(there.requestor.run(*line, "client", told, timeout_s=_LIMIT_S).stdout)
    finally:
        server.kill()
        server.wait()
    player = Player(setting.video_bps, size, setting.threshold_bytes)
    for at_s, count in came:
        player.on_bytes(count, at_s)
    player.advance(came[-1][0] + 2 * setting.video_s)
    return player


# The ends.


class _Pacer:
    """The server's clock: it sends a chunk in each period, and catches up where a write took longer."""

    def __init__(self, size: int, chunk: int, period_s: float) -> None:
        self._left, self._chunk, self._period_s = size, chunk, period_s
        self._at_s = time.monotonic()

    def __iter__(self) -> Iterator[tuple[float, bytes]]:
        while self._left:
            count = min(self._chunk, self._left)
            self._left -= count
            yield max(0.0, self._at_s - time.monotonic()), bytes(count)
            self._at_s += self._period_s


def _serve_mptcp(*video: Any) -> None:
    # The socket listens to the end: other subflows join there.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((SERVER, _PORT))
        listening.listen()
        connection, _ = listening.accept()
        # `accepts` only looks whether it listens.
        while not connection.recv(1):
            connection, _ = listening.accept()
        # The subflows join after the request.
        time.sleep(_JOINED_S)
        for rest_s, data in _Pacer(*video):
            time.sleep(rest_s)
            connection.sendall(data)
        connection.recv(1)  # until the client has all


def _take_mptcp(size: int) -> Came:
    came, count = list[tuple[float, int]](), 0
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP) as connection:
        connection.bind((str(_own(0)), 0))
        connection.connect((SERVER, _PORT))
        connection.sendall(b".")
        began_s = time.monotonic() + _JOINED_S
        while count < size and (data := connection.recv(1 << 16)):
            count += len(data)
            came.append((time.monotonic() - began_s, count))
    return came


async def _serve_session(scheduler: str, *video: Any) -> None:
    listener = await session.listen((SERVER, _PORT), key=KeyPair(_KEY), scheduler=scheduler)
    end = await listener.accept()
    await end.read_exactly(1)
    for rest_s, data in _Pacer(*video):
        await asyncio.sleep(rest_s)
        await end.write(data)
    await asyncio.sleep(_LIMIT_S)  # it is ended once the client has all


async def _take_session(scheduler: str, window: int, size: int) -> Came:
    came, count = list[tuple[float, int]](), 0
    public = KeyPair(_KEY).public
    limits = SessionLimits(stream_window=window)
    end = await session.connect(
        (SERVER, _PORT), server_key=public, scheduler=scheduler, limits=limits
    )
    await asyncio.sleep(_JOINED_S)
    await end.write(b".")
    began_s = time.monotonic()
    while count < size and (piece := await end.read()):
        count += len(piece)
        came.append((time.monotonic() - began_s, count))
    return came


def _end(side: str, scheduler: str, window: int, *video: Any) -> None:
    mptcp = scheduler == MPTCP
    if side == "client":
        size = video[0]
        came = _take_mptcp(size) if mptcp else asyncio.run(_take_session(scheduler, window, size))
        sys.stdout.write(json.dumps(came))
    elif mptcp:
        _serve_mptcp(*video)
    else:
        asyncio.run(_serve_session(scheduler, *video))


if __name__ == "__main__":
    _end(sys.argv[1], *json.loads(sys.argv[2]))
