"""Bandwidth from neighbours (CBSP): what a program's download gets, and what a helper's leaving costs it.

Three helpers, each with an uplink of 4 Mbit/s in 40 ms; all programs really run. Shares are of the sum
of the uplinks, as TCP's payload fills them. The pause is the longest time without data from the instant
at which a helper ends with notice, is killed, walks out of reach, or joins. A helper that drops data
still answers and forwards small packets.
"""

import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from cedos.model import NetworkKind
from emu.bench import told
from emu.places.traces import TCP_GOODPUT_SHARE, Trace
from emu.testbed.access import Access
from emu.testbed.neighbours import LINK, Neighbourhood
from emu.testbed.programs.servers import Servers
from emu.testbed.programs.sharing import Download, SharingHosts
from emu.testbed.services import Service

_HELPERS: Final = 3
_RATE_BPS: Final = 4e6
_REPEATS: Final = 3
_WHOLE: Final = 24_000_000
_PART: Final = 16_000_000
# While each path finds its rate, a first download lacks a second.
_FIRST: Final = 4_000_000
_RECEIPTS_S: Final = 25.0
_DROPS: Final = ("FORWARD", "-o", LINK, "-m", "length", "--length", "300:65535", "-j", "DROP")

Progress = Callable[[str], None]


def run(progress: Progress) -> dict[str, float]:
    """Measure for about seven minutes."""
    figures: dict[str, float] = {}
    with _street() as (there, hosts):
        _begin(hosts)
        figures |= told(progress, _sums(hosts, "three", _HELPERS))
        figures |= told(progress, {"paid_over_received": _paid_over(hosts)})
        for name, leave in (("notice", _ends), ("killed", _is_killed), ("gone", _is_gone)):
            pauses = [_left(there, hosts, leave) for _ in range(_REPEATS)]
            figures |= told(progress, {f"{name}_pause_s": max(pauses)})
        drops = [_dropped(there, hosts) for _ in range(_REPEATS)]
        figures |= told(progress, {"drops_left_least_s": min(drops), "drops_left_s": max(drops)})
        joins = [_joined(there, hosts) for _ in range(_REPEATS)]
        figures |= told(
            progress,
            {
                "join_used_s": max(used_s for used_s, _ in joins),
                "join_pause_s": max(pause_s for _, pause_s in joins),
            },
        )
    with _street(own_bps=_RATE_BPS) as (there, hosts):
        _begin(hosts)
        figures |= told(progress, _sums(hosts, "own_phone", _HELPERS + 1))
    with _street(own_bps=_RATE_BPS) as (there, hosts):
        config = there.directory / "cedos.toml"
        config.write_text("[probes]\ndns = false\n[providers]\nhost = false\nadb = false\n")
        hosts.begin("requestor", "up", "--config", str(config), name="daemon")
        _begin(hosts)
        there.requestor.ip("link", "set", "lte0", "down")
        figures |= told(progress, _sums(hosts, "daemon", _HELPERS))
    return figures


@contextmanager
def _street(own_bps: float | None = None) -> Iterator[tuple[Neighbourhood, SharingHosts]]:
    own = None if own_bps is None else _access(own_bps)
    there = Neighbourhood([_access(_RATE_BPS)] * _HELPERS, own=own)
    with there, Servers(there), SharingHosts(there) as hosts:
        yield there, hosts


def _access(rate_bps: float) -> Access:
    trace = Trace.constant(rate_bps)
    return Access(NetworkKind.CELLULAR, up=trace, down=trace, rtt_s=0.04)


def _begin(hosts: SharingHosts, helpers: int = _HELPERS) -> list[Service]:
    """Begin everything anew; return the helpers."""
    hosts.stop_sharing()
    helping = [hosts.help(number) for number in range(helpers)]
    hosts.request()
    hosts.forward()
    hosts.wait_for_helpers(helpers)
    _end(hosts.download(_FIRST), _FIRST)
    return helping


def _end(download: Download, count: int) -> None:
    """Read the rest; each byte must have come, and none another."""
    code = download.end()
    assert (code, download.received_bytes, download.wrong_bytes) == (0, count, 0)


def _sums(hosts: SharingHosts, name: str, links: int) -> dict[str, float]:
    """Return the rate of downloads over the sum of so many links."""
    shares = []
    for _ in range(_REPEATS):
        began_s = time.monotonic()
        _end(hosts.download(_WHOLE), _WHOLE)
        rate_bps = 8 * _WHOLE / (time.monotonic() - began_s)
        shares.append(rate_bps / (links * _RATE_BPS * TCP_GOODPUT_SHARE))
    return {f"{name}_share": statistics.median(shares), f"{name}_least_share": min(shares)}


def _paid_over(hosts: SharingHosts) -> float:
    """Return the bytes that helpers are paid for over those that programs received until now."""
    time.sleep(_RECEIPTS_S)
    owed = hosts.receipts("requestor")["owed"]
    return sum(int(each["carried_bytes"]) for each in owed) / (_FIRST + _REPEATS * _WHOLE)


Leave = Callable[[Neighbourhood, Service], None]


def _ends(_there: Neighbourhood, helper: Service) -> None:
    os.kill(helper.pid, signal.SIGTERM)


def _is_killed(_there: Neighbourhood, helper: Service) -> None:
    os.kill(helper.pid, signal.SIGKILL)


def _is_gone(there: Neighbourhood, _helper: Service) -> None:
    there.walk_away(0)


def _left(there: Neighbourhood, hosts: SharingHosts, leave: Leave) -> float:
    """Return the longest pause from when a helper leaves."""
    helper = _begin(hosts)[0]
    download = hosts.download(_PART)
    download.read_until(_PART // 4)
    left_s = time.monotonic()
    leave(there, helper)
    _end(download, _PART)
    there.come_back(0)
    return download.longest_pause_s(left_s - 0.1)


def _dropped(there: Neighbourhood, hosts: SharingHosts) -> float:
    """Return the time from when a helper drops data until the requestor has left it."""
    _begin(hosts)
    download = hosts.download(_WHOLE)
    download.read_until(_WHOLE // 4)
    helper = there.helpers[0].namespace
    before = _paths(there)
    helper.run("iptables", "-I", *_DROPS)
    try:
        began_s = time.monotonic()
        # (Its status would be a second late.)
        while _paths(there) == before and time.monotonic() < began_s + 10.0:
            time.sleep(0.02)
        took_s = time.monotonic() - began_s
    finally:
        helper.run("iptables", "-D", *_DROPS)
    _end(download, _WHOLE)
    return took_s


def _paths(there: Neighbourhood) -> int:
    return there.requestor.ip("-4", "addr").count("169.254.")


def _joined(there: Neighbourhood, hosts: SharingHosts) -> tuple[float, float]:
    """Return the time until a third helper carries, and the longest pause from when it begins."""
    _begin(hosts, _HELPERS - 1)
    download = hosts.download(_WHOLE)
    download.read_until(_WHOLE // 8)
    hosts.help(_HELPERS - 1)
    began_s = time.monotonic()
    while _paths(there) < _HELPERS and download.received_bytes < _WHOLE:
        download.read_until(download.received_bytes + 50_000)
    used_s = time.monotonic() - began_s
    _end(download, _WHOLE)
    return used_s, download.longest_pause_s(began_s)
