"""How much finished connections have carried with each server, out of the history's file."""

import sqlite3
from contextlib import closing
from pathlib import Path

_FIRST = "SELECT min(ended_unix_s) FROM flow"
_BYTES = """
SELECT coalesce(server_name, remote, '') AS server, path.value ->> 'network' AS network,
    sum((path.value ->> 'bytes_down') + (path.value ->> 'bytes_up')) AS carried
FROM flow, json_each(flow.record, '$.subflows') AS path
WHERE ended_unix_s >= ? AND network IS NOT NULL
GROUP BY server, network HAVING carried > 0 ORDER BY carried DESC
"""


def bytes_by_server(
    path: Path, since_unix_s: float
) -> tuple[float | None, dict[str, dict[str, int]]]:
    """When the oldest connection that is remembered ended, and by server and network the bytes.

    Reads the disk, beside the daemon that writes it. A file that is not there, or cannot be read, knows
    of none.
    """
    servers: dict[str, dict[str, int]] = {}
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=2.0)
        ) as connection:
            (first,) = connection.execute(_FIRST).fetchone()
            for server, network, carried in connection.execute(_BYTES, (since_unix_s,)):
                servers.setdefault(server, {})[network] = carried
    except sqlite3.Error:
        return None, {}
    return first, servers
