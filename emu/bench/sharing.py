"""Bandwidth from neighbours (CBSP): what a program's download gets, and what a helper's leaving costs it.

Three helpers, each with an uplink of 4 Mbit/s in 40 ms; all programs really run. Shares are of the sum
of the uplinks, as TCP's payload fills them. The pause is the longest time without data in the seconds
from when a helper ends with notice, is killed, walks out of reach, or joins; the quiet one is the longest
of downloads in which none does: CUBIC fills each drop-tail queue every few seconds, and a packet that it
loses arrives two round trips later, with that queue in them. The same with BBR at the gateway. A helper
that drops data still answers and forwards small packets.
"""

import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

from cedos.model import NetworkKind
from emu.bench import told
from emu.places.traces import TCP_GOODPUT_SHARE, Trace
from emu.testbed.access import Access
from emu.testbed.counters import processor_s
from emu.testbed.neighbours import LINK, Neighbourhood
from emu.testbed.programs.gateway import Download, SharingHosts
from emu.testbed.programs.servers import Servers
from emu.testbed.services import Service

_HELPERS: Final = 3
_RATE_BPS: Final = 4e6
_REPEATS: Final = 3
_WHOLE: Final = 24_000_000
_PART: Final = 16_000_000
# While each path finds its rate, a first download lacks a second.
_FIRST: Final = 4_000_000
_RECEIPTS_S: Final = 25.0
# What comes of a helper's leaving or joining comes within this time: a path is left for good after 1.8 s.
_EVENT_S: Final = 2.0
_FAST_BPS: Final = 50e6
_FAST: Final = 60_000_000
_DROPS: Final = ("FORWARD", "-o", LINK, "-m", "length", "--length", "300:65535", "-j", "DROP")

Progress = Callable[[str], None]


def run(progress: Progress) -> dict[str, float]:
    """Measure for about twelve minutes."""
    figures: dict[str, float] = {}
    with _street() as (there, hosts):
        _begin(hosts)
        figures |= told(progress, _sums(hosts, "three", _HELPERS))
        figures |= told(progress, {"paid_over_received": _paid_over(hosts)})
        drops = [_dropped(there, hosts) for _ in range(_REPEATS)]
        figures |= told(progress, {"drops_left_s": max(drops)})
        ways: dict[str, Leave] = {"notice": _ends, "killed": _is_killed, "gone": _is_gone}
        figures |= _pauses(progress, there, hosts, ways, "")
        there.server.sysctl("net.ipv4.tcp_congestion_control", "bbr")
        figures |= _pauses(progress, there, hosts, {"notice": _ends}, "bbr_")
    with _street(1, rate_bps=_FAST_BPS) as (there, hosts):
        figures |= told(progress, _processor(there, hosts))
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
def _street(
    helpers: int = _HELPERS, *, rate_bps: float = _RATE_BPS, own_bps: float | None = None
) -> Iterator[tuple[Neighbourhood, SharingHosts]]:
    own = None if own_bps is None else _access(own_bps)
    there = Neighbourhood([_access(rate_bps)] * helpers, own=own)
    with there, Servers(there), SharingHosts(there) as hosts:
        yield there, hosts


def _access(rate_bps: float) -> Access:
    trace = Trace.constant(rate_bps)
    return Access(NetworkKind.CELLULAR, up=trace, down=trace, rtt_s=0.04)


def _begin(hosts: SharingHosts, helpers: int = _HELPERS, *, rate: str = "4Mbit") -> list[Service]:
    """Begin everything anew; return the helpers."""
    hosts.stop_sharing()
    helping = [hosts.help(number, rate=rate) for number in range(helpers)]
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
    return {f"{name}_share": statistics.median(shares)}


def _paid_over(hosts: SharingHosts) -> float:
    """Return the bytes that helpers are paid for over those that programs received until now."""
    time.sleep(_RECEIPTS_S)
    owed = hosts.receipts("requestor")["owed"]
    return sum(int(each["carried_bytes"]) for each in owed) / (_FIRST + _REPEATS * _WHOLE)


Leave = Callable[[Neighbourhood, Service], None]


def _pauses(
    progress: Progress,
    there: Neighbourhood,
    hosts: SharingHosts,
    ways: Mapping[str, Leave],
    name: str,
) -> dict[str, float]:
    """Return the longest pauses when a helper leaves or joins, and when none does."""
    figures: dict[str, float] = {}
    for way, leave in ways.items():
        pauses = [_left(there, hosts, leave) for _ in range(_REPEATS)]
        figures |= told(progress, {f"{name}{way}_pause_s": max(pauses)})
    joins = [_joined(there, hosts) for _ in range(_REPEATS)]
    figures |= told(progress, {f"{name}join_pause_s": max(joins)})
    _begin(hosts)
    quiet = [_quiet(hosts) for _ in range(_REPEATS)]
    return figures | told(progress, {f"{name}quiet_pause_s": max(quiet)})


def _quiet(hosts: SharingHosts) -> float:
    download = hosts.download(_PART)
    download.read_until(_PART // 4)
    began_s = time.monotonic()
    _end(download, _PART)
    return download.longest_pause_s(began_s)


def _processor(there: Neighbourhood, hosts: SharingHosts) -> dict[str, float]:
    """Return the share of a core that a helper's program takes while its kernel forwards."""
    (helper,) = _begin(hosts, 1, rate="50Mbit")
    download = hosts.download(_FAST)
    download.read_until(_FAST // 6)
    before_s, began_s = processor_s(helper.pid), time.monotonic()
    _end(download, _FAST)
    took_s = time.monotonic() - began_s
    return {"helper_core_share": (processor_s(helper.pid) - before_s) / took_s}


def _ends(_there: Neighbourhood, helper: Service) -> None:
    os.kill(helper.pid, signal.SIGTERM)


def _is_killed(_there: Neighbourhood, helper: Service) -> None:
    os.kill(helper.pid, signal.SIGKILL)


def _is_gone(there: Neighbourhood, _helper: Service) -> None:
    there.walk_away(0)


def _left(there: Neighbourhood, hosts: SharingHosts, leave: Leave) -> float:
    """Return the longest pause in the time after a helper leaves."""
    helper = _begin(hosts)[0]
    download = hosts.download(_PART)
    download.read_until(_PART // 4)
    left_s = time.monotonic()
    leave(there, helper)
    _end(download, _PART)
    there.come_back(0)
    return download.longest_pause_s(left_s - 0.1, left_s + _EVENT_S)


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


def _joined(there: Neighbourhood, hosts: SharingHosts) -> float:
    """Return the longest pause in the time after a third helper carries."""
    _begin(hosts, _HELPERS - 1)
    download = hosts.download(_WHOLE)
    download.read_until(_WHOLE // 8)
    # (It takes a second to start, in which the download goes on.)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(hosts.help, _HELPERS - 1)
        while _paths(there) < _HELPERS and download.received_bytes < _WHOLE:
            download.read_until(download.received_bytes + 50_000)
        used_s = time.monotonic()
        _end(download, _WHOLE)
        joining.result()
    return download.longest_pause_s(used_s - 0.1, used_s + _EVENT_S)
