"""Report the usage since an instant: the odometers by network, the history by server."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from cedos.api.budgets import NetworkUsage, ServerUsage, UsageMessage
from cedos.budget_kinds import FREE, HELPED, METERED, RADIO, RADIOS
from cedos.model import CarriedConnection
from cedos.storage.usage import Server, Usage, bytes_by_server

_MOST_SERVERS = 10


def by_network(usage: Usage, since_unix_s: float) -> UsageMessage:
    """Return the usage by the odometers alone. The caller counts them first."""

    def use_of(key: str) -> float:
        return usage.sum_since([key], since_unix_s)

    names = {
        key.removeprefix(kind)
        for key in usage.totals
        for kind in (METERED, FREE, HELPED, RADIO)
        if key.startswith(kind)
    }
    networks = [
        NetworkUsage(
            network=name,
            metered_bytes=use_of(f"{METERED}{name}") + use_of(f"{HELPED}{name}"),
            free_bytes=use_of(f"{FREE}{name}"),
            radio_j=use_of(f"{RADIO}{name}"),
        )
        for name in names
    ]
    begins_s = usage.begins_s()
    return UsageMessage(
        since_unix_s=since_unix_s,
        counted_since_unix_s=begins_s if begins_s and begins_s > since_unix_s else None,
        radio_j=use_of(RADIOS),
        networks=tuple(sorted(networks, key=lambda each: (-each.metered_bytes, -each.free_bytes))),
    )


def by_server(
    usage: UsageMessage,
    history: Path,
    living: Mapping[str, Mapping[str, int]] | None = None,
    carried: Iterable[CarriedConnection] = (),
) -> UsageMessage:
    """Return the same with the servers of its metered networks' bytes; read the disk.

    `living`: what open connections have carried so far, by server and network; None: unknown.
    `carried`: those through a gateway that the history does not have.
    """
    first_s, kept, addresses = bytes_by_server(history, usage.since_unix_s)
    servers = {server: Counter(sizes) for server, sizes in kept.items()}
    for name, sizes in (living or {}).items():
        servers.setdefault((name, None), Counter()).update(sizes)
    for each in carried:
        servers.setdefault((each.server, each.gateway), Counter()).update(each.bytes_by_network)
        addresses.setdefault(each.gateway, set()).update(each.addresses)
    _leave_gateways_their_own(servers, addresses)
    metered = {each.network for each in usage.networks if each.metered_bytes}

    def weight(sizes: Mapping[str, int]) -> tuple[int, int]:
        return sum(size for name, size in sizes.items() if name in metered), sum(sizes.values())

    most = sorted(servers.items(), key=lambda each: weight(each[1]), reverse=True)[:_MOST_SERVERS]
    return msgspec.structs.replace(
        usage,
        servers=tuple(
            ServerUsage(server=name, gateway=gateway, bytes_by_network=dict(sizes))
            for (name, gateway), sizes in most
        ),
        flows_since_unix_s=first_s if first_s and first_s > usage.since_unix_s else None,
        with_open=living is not None,
    )


def _leave_gateways_their_own(
    servers: dict[Server, Counter[str]], addresses: Mapping[str, Iterable[str]]
) -> None:
    """Take what gateways carried for others out of their own entries, which get the gateways' names.

    Those with an address in common are one gateway under several names.
    """
    for_others: dict[str, Counter[str]] = {}
    for (_, gateway), sizes in servers.items():
        if gateway is not None:
            for_others.setdefault(gateway, Counter()).update(sizes)
    names: dict[str, str] = {}
    own: dict[str, Counter[str]] = {}
    for gateway, known in addresses.items():
        every = {gateway, *known}
        name = next((names[each] for each in sorted(every) if each in names), gateway)
        names.update(dict.fromkeys(every, name))
        left = own.setdefault(name, Counter())
        for each in every:
            left.update(servers.pop((each, None), {}))
        left.subtract(for_others.get(gateway, {}))
    for name, left in own.items():
        if sizes := +left:  # what is above 0
            servers[name, None] = sizes
