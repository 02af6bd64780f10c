"""What was used since an instant: the odometers by network, the history by server."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from cedos.api.budgets import NetworkUsage, ServerUsage, UsageMessage
from cedos.daemon.budgets.metering import FREE, METERED, RADIO, RADIOS
from cedos.storage.bytes_by_server import bytes_by_server
from cedos.storage.usage import Usage

_MOST_SERVERS = 10


def by_network(usage: Usage, since_unix_s: float) -> UsageMessage:
    """By the odometers alone; to be called where they are counted."""

    def used(key: str) -> float:
        return usage.since([key], since_unix_s)

    names = {
        key.removeprefix(kind)
        for key in usage.totals
        for kind in (METERED, FREE, RADIO)
        if key.startswith(kind)
    }
    networks = [
        NetworkUsage(
            network=name,
            metered_bytes=used(f"{METERED}{name}"),
            free_bytes=used(f"{FREE}{name}"),
            radio_j=used(f"{RADIO}{name}"),
        )
        for name in names
    ]
    begins_s = usage.begins_s()
    return UsageMessage(
        since_unix_s=since_unix_s,
        counted_since_unix_s=begins_s if begins_s and begins_s > since_unix_s else None,
        radio_j=used(RADIOS),
        networks=tuple(sorted(networks, key=lambda each: (-each.metered_bytes, -each.free_bytes))),
    )


def by_server(
    usage: UsageMessage, history: Path, living: Mapping[str, Mapping[str, int]] | None = None
) -> UsageMessage:
    """The same with the servers of its metered networks' bytes; reads the disk.

    `living`: what open connections have carried so far, by server and network; None: nobody knows.
    """
    first_s, servers = bytes_by_server(history, usage.since_unix_s)
    for server, sizes in (living or {}).items():
        known = servers.setdefault(server, {})
        for network, size in sizes.items():
            known[network] = known.get(network, 0) + size
    metered = {each.network for each in usage.networks if each.metered_bytes}

    def weight(carried: dict[str, int]) -> tuple[int, int]:
        return sum(size for name, size in carried.items() if name in metered), sum(carried.values())

    most = sorted(servers.items(), key=lambda each: weight(each[1]), reverse=True)[:_MOST_SERVERS]
    return msgspec.structs.replace(
        usage,
        servers=tuple(ServerUsage(server=name, bytes_by_network=carried) for name, carried in most),
        flows_since_unix_s=first_s if first_s and first_s > usage.since_unix_s else None,
        with_open=living is not None,
    )
