"""Replays a place to the emulated laptop from a given instant."""

from collections.abc import Mapping

from cedos.model import NetworkKind
from emu.places.places import Place
from emu.testbed.access import Access
from emu.testbed.phones import Laptop


def replay(
    laptop: Laptop,
    place: Place,
    start_s: float,
    *,
    length_s: float | None = None,
    rtts_s: Mapping[str, float | None] | None = None,
) -> float:
    """Attaches both networks of a place, replayed from `start_s` (which wraps), for what is attached.

    Only `length_s` is replayed (see `Trace.rotated`); base RTTs are the place's own where `rtts_s` (by
    `wifi` and `cellular`) gives no other.

    Returns:
        the monotonic instant at which the replay stood at `start_s`: the later one of the two, which
        begin within some hundredths of a second.
    """
    accesses = []
    for name, network in place.networks.items():
        given_s = (rtts_s or {}).get(name)
        rtt_s = network.rtt_s if given_s is None else given_s
        access = Access(NetworkKind(name), up=network.up, down=network.down, rtt_s=rtt_s)
        accesses.append(access.rotated(start_s, length_s))
    laptop.attach(*accesses)
    return max(link.started_at_s for link in laptop.links.values())
