"""Whether a stream that can wait until a deadline may use metered networks now (Cedos, III-C, III-D)."""

import secrets
import time
from collections.abc import Mapping

from cedos.model import Direction
from cedos.selector.deadlines.transfer_table import TableTransfer
from cedos.session.sockets.own_table import OWN_TABLE


class DeadlineGate:
    """One stream's row in the table of this process, from when it is told to wait.

    Networks that cost nothing are open to every stream; who may use a metered one is decided for all that
    wait in this process together. `open`: whether this one may.
    """

    CHECK_S = 0.5

    def __init__(self, server: str, deadline_s: float, expected_bytes: int) -> None:
        self._key = secrets.token_hex(16)
        self._server, self._expected = server, expected_bytes
        self._deadline_unix_s = time.time() + deadline_s
        self._used: dict[str, int] | None = None
        self._told_s = time.monotonic()
        self._networks: Mapping[str, bool] = {}
        self._closed = False
        self.open = True

    def update(
        self, received_bytes: int, by_network: Mapping[str, int], networks: Mapping[str, bool]
    ) -> bool:
        """Decides again; whether it comes out otherwise than before. `networks`: is each metered?"""
        before, self._networks = self.open, networks
        if received_bytes >= self._expected:
            self.close()
            self.open = False
            return before
        now = time.monotonic()
        known = by_network if self._used is None else self._used
        used = {name: count - known.get(name, 0) for name, count in by_network.items()}
        self._used, lasted_s, self._told_s = dict(by_network), now - self._told_s, now
        transfer = TableTransfer(
            self._key,
            0,
            "stream",
            self._server,
            Direction.DOWN,
            self._expected,
            received_bytes,
            self._deadline_unix_s,
        )
        try:
            OWN_TABLE.told(transfer, used, lasted_s, networks)
        except ValueError:  # too many: it goes as if it could not wait
            self.open = True
        else:
            served = OWN_TABLE.table.served(self._key)
            self.open = any(networks.get(name, False) for name in served)
        return self.open is not before

    def close(self) -> None:
        """It waits no more."""
        if not self._closed:
            self._closed = True
            OWN_TABLE.ended(self._key, self._networks)
