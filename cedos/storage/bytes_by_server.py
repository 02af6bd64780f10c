"""How much finished connections have carried with each server, out of the history's file."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

Server = tuple[str, str | None]
"""A name, else an address, and the gateway through which it was reached; None: directly."""

_FIRST = (
    "SELECT min(ended_unix_s), min(id) > 1 FROM flow",
    "SELECT min(ended_unix_s), min(id) > 1 FROM carried",
)
_DIRECT = """
SELECT coalesce(server_name, remote, '') AS server, path.value ->> 'network' AS network,
    sum((path.value ->> 'bytes_down') + (path.value ->> 'bytes_up')) AS carried
FROM flow, json_each(flow.record, '$.subflows') AS path
WHERE ended_unix_s >= ? AND network IS NOT NULL
GROUP BY server, network HAVING carried > 0 ORDER BY carried DESC
"""
_THROUGH_GATEWAYS = """
SELECT server, gateway, network.key, cast(total(network.value) AS INTEGER) AS bytes
FROM carried, json_each(carried.bytes_by_network) AS network
WHERE ended_unix_s >= ?
GROUP BY server, gateway, network.key HAVING bytes > 0 ORDER BY bytes DESC
"""
_ADDRESSES = """
SELECT DISTINCT gateway, address.value FROM carried, json_each(carried.addresses) AS address
"""


class BytesByServer(NamedTuple):
    """What the history says of servers.

    Attributes:
        first_unix_s: connections that ended from then on are all remembered; None: there are none.
        servers: by server and network the bytes. Those of connections through a gateway are among
            its own, too: the session's connections carried them.
        addresses: by gateway, where its sessions' connections led.
    """

    first_unix_s: float | None
    servers: dict[Server, dict[str, int]]
    addresses: dict[str, set[str]]


def bytes_by_server(path: Path, since_unix_s: float) -> BytesByServer:
    """What connections carried that ended since then.

    Reads the disk, beside the daemon that writes it. A file that is not there, or cannot be read, knows
    of none.
    """
    servers: dict[Server, dict[str, int]] = {}
    addresses: dict[str, set[str]] = {}
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=2.0)
        ) as connection:
            first = _first(connection)
            for server, network, carried in connection.execute(_DIRECT, (since_unix_s,)):
                servers.setdefault((server, None), {})[network] = carried
            for server, gateway, network, carried in connection.execute(
                _THROUGH_GATEWAYS, (since_unix_s,)
            ):
                servers.setdefault((server, gateway), {})[network] = carried
            for gateway, address in connection.execute(_ADDRESSES):
                addresses.setdefault(gateway, set()).add(address)
    except sqlite3.Error:
        return BytesByServer(None, {}, {})
    return BytesByServer(first, servers, addresses)


def _first(connection: sqlite3.Connection) -> float | None:
    """From when on nothing was forgotten, in either table; else when the oldest one ended."""
    tables: list[tuple[float | None, int | None]] = [
        connection.execute(sql).fetchone() for sql in _FIRST
    ]
    known = [(first, pruned) for first, pruned in tables if first is not None]
    if forgetful := [first for first, pruned in known if pruned]:
        return max(forgetful)
    return min((first for first, _ in known), default=None)
