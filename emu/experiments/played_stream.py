"""A stream that is played through a place: simulated, and as one who knows the future would buy it. Pure.

`play` has the same BufferManager as `cedos-get --bitrate`. Networks carry what the traces say, at once; a
path is there as soon as its network carries something (`_CONNECT_S`), and known to be silent after
`_SILENT_S`.

`least_metered_bytes` is exact for rates that are constant within a step: a metered byte is of use as late
as it can come, for then the store has the most room for unmetered ones. Backwards: what must be in store
at the beginning of each step, both networks taken together. Forwards: unmetered bytes as they come,
metered ones only where the next step's need is not there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

from cedos.session.protocol.buffer_manager import BufferManager, BufferSituation


@dataclass(frozen=True, slots=True)
class Playback:
    """A stream of so many seconds at one rate; it is played `delay_s` after it was asked for.

    `piece_s`: it is cut, and of each piece nothing is played before all of it is there.
    """

    bitrate_bps: float
    seconds: float
    delay_s: float = 2.0
    store_bytes: float = 64e6
    piece_s: float = 0.0


def _due(playback: Playback, until_s: float) -> float:
    """Return the bytes that must have come by then."""
    seconds = min(max(until_s - playback.delay_s, 0.0), playback.seconds)
    if playback.piece_s:
        seconds = min(ceil(seconds / playback.piece_s) * playback.piece_s, playback.seconds)
    return playback.bitrate_bps / 8 * seconds


def least_metered_bytes(
    unmetered_bps: Sequence[float],
    metered_bps: Sequence[float],
    playback: Playback,
    step_s: float = 1.0,
) -> float | None:
    """Return the bytes; None if no plan plays it without a stall."""
    steps = len(unmetered_bps)
    whole = playback.bitrate_bps / 8 * playback.seconds
    played = [_due(playback, (n + 1) * step_s) - _due(playback, n * step_s) for n in range(steps)]
    need = [0.0] * (steps + 1)
    for n in reversed(range(steps)):
        come = (unmetered_bps[n] + metered_bps[n]) / 8 * step_s
        need[n] = max(need[n + 1] + played[n] - come, 0.0)
    stored = fetched = metered = 0.0
    for n in range(steps):
        room = playback.store_bytes + played[n] - stored
        free = min(unmetered_bps[n] / 8 * step_s, whole - fetched, max(room, 0.0))
        bought = min(max(need[n + 1] + played[n] - stored - free, 0.0), whole - fetched - free)
        if bought > metered_bps[n] / 8 * step_s + 1.0:
            return None
        fetched += free + bought
        stored += free + bought - played[n]
        metered += bought
    return metered


_STEP_S = 0.1
_CONNECT_S = 0.3
_SILENT_S = 1.0
WINDOW_BYTES = 1 << 18


@dataclass(slots=True)
class Played:
    """The cost of a stream, and its stalls."""

    metered_bytes: float = 0.0
    unmetered_bytes: float = 0.0
    stalls: int = 0
    stalled_s: float = 0.0
    starts: int = 0
    metered_s: float = 0.0  # for so long the metered network was used
    store_bytes: list[float] = field(default_factory=list)  # what was stored, at each second


def play(
    unmetered_bps: Sequence[float],
    metered_bps: Sequence[float],
    playback: Playback,
    rtt_s: float = 0.06,
    manager: BufferManager | None = None,
) -> Played:
    """Rate are of each second; `manager`: with other thresholds than `cedos-get` computes."""
    manager = manager or BufferManager(bitrate_bps=playback.bitrate_bps, window_bytes=WINDOW_BYTES)
    result = Played()
    whole = playback.bitrate_bps / 8 * playback.seconds
    store = unread = fetched = consumed = 0.0
    wifi_s = metered_s = quiet_s = 0.0  # for how long each network carries, or is used
    silent_s = _SILENT_S
    carried = [0.0] * round(1 / _STEP_S)
    standing = started = False
    granted = float(WINDOW_BYTES)
    for n in range(round(len(unmetered_bps) / _STEP_S)):
        second = min(int(n * _STEP_S + 1e-9), len(unmetered_bps) - 1)
        wifi, lte = unmetered_bps[second], metered_bps[second]
        silent_s = 0.0 if wifi else silent_s + _STEP_S
        up = silent_s < _SILENT_S
        wifi_s = wifi_s + _STEP_S if up else 0.0
        buffered = store + unread if fetched < whole else 1e12
        was = manager.filling
        situation = BufferSituation(
            int(buffered),
            wifi_s if up and wifi_s >= _CONNECT_S else None,
            8 * sum(carried),
            lte,
            rtt_s,
            quiet_s,
        )
        filling = manager.metered_wanted(situation)
        result.starts += filling and not was
        metered_s = metered_s + _STEP_S if filling else 0.0
        result.metered_s += _STEP_S if filling else 0.0
        if n % round(1 / _STEP_S) == 0:
            result.store_bytes.append(store + unread)
        if filling and not was:
            started = False
        room = max(granted - fetched, 0.0)
        free = min(wifi / 8 * _STEP_S, room, whole - fetched) if wifi_s >= _CONNECT_S else 0.0
        paid = 0.0
        if filling and metered_s >= _CONNECT_S:
            paid = min(lte / 8 * _STEP_S, room - free, whole - fetched - free)
        if paid and not started:
            manager.on_start(metered_s)
            started = True
        quiet_s = 0.0 if free + paid else quiet_s + _STEP_S
        carried = [*carried[1:], free]
        fetched += free + paid
        unread += free + paid
        result.unmetered_bytes += free
        result.metered_bytes += paid
        if manager.may_read(int(store), int(playback.store_bytes)):
            store, unread = store + unread, 0.0
            granted = max(granted, fetched + manager.window_bytes)
        if n * _STEP_S >= playback.delay_s and consumed < whole:
            wanted = min(playback.bitrate_bps / 8 * _STEP_S, whole - consumed)
            had = min(wanted, store)
            store -= had
            consumed += had
            if had < wanted - 1.0:
                result.stalls += not standing
                result.stalled_s += _STEP_S * (1 - had / wanted)
                standing = True
            else:
                standing = False
    return result
