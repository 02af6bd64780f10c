"""The table of this process's transfers with deadlines, where no daemon keeps one for the host."""

import time
from collections.abc import Mapping
from typing import Final

from cedos.selector.deadlines.host_networks import SeenNetwork
from cedos.selector.deadlines.transfer_table import TableTransfer, TransferTable

_METERED_S: Final = 0.2 / 1e6
"""Seconds that a metered byte is worth: that of the shipped configuration."""


class OwnTable:
    """A `TransferTable` whose networks are those that lead to the servers: interface -> metered."""

    def __init__(self) -> None:
        self.table = TransferTable()

    def told(
        self,
        transfer: TableTransfer,
        used_bytes: Mapping[str, int],
        lasted_s: float,
        networks: Mapping[str, bool],
    ) -> None:
        """How far a transfer has come; plans again. ValueError: there are too many."""
        now = time.monotonic()
        self.table.report(transfer, now)
        self.table.carried(transfer.key, dict(used_bytes), lasted_s, now)
        self.plan(networks)

    def ended(self, key: str, networks: Mapping[str, bool]) -> None:
        """It is here, or given up: those that wait have more than before."""
        self.table.end(key)
        if len(self.table):
            self.plan(networks)

    def plan(self, networks: Mapping[str, bool]) -> None:
        """Decides again, for these networks."""
        seen = [
            SeenNetwork(name, up=True, price_s=_METERED_S if metered else 0.0)
            for name, metered in networks.items()
        ]
        self.table.plan(seen, time.time(), time.monotonic())


OWN_TABLE: Final = OwnTable()
"""All that waits in this process shares it, as it shares the networks."""
