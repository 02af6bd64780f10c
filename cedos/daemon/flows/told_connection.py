"""One connection that a proxy carries through a gateway, as it was last told."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cedos.api.carried import CarriedNews
from cedos.api.messages import CarriedMessage
from cedos.daemon.flows.carried_bytes import CarriedBytes
from cedos.model import Strategy
from cedos.storage.carried_record import CarriedRecord


@dataclass(slots=True)
class ToldConnection:
    """Its totals, and how much of them the history has.

    Attributes:
        moved_at_s: when it was last heard of more bytes.
        booked: what was written of it; None: nothing yet.
        ended_unix_s: when it ended, or was thought to have; 0: it lives.
    """

    gateway: str
    server: str
    port: int
    began_at_s: float
    moved_at_s: float
    carried: CarriedBytes = field(default_factory=CarriedBytes)
    booked: CarriedBytes | None = None
    ended: bool = False
    ended_unix_s: float = 0.0
    decision: int | None = None
    strategy: Strategy | None = None

    def told(self, news: CarriedNews, now_s: float) -> None:
        told = CarriedBytes(news.bytes_down, news.bytes_up, news.bytes_by_network)
        carried = self.carried.at_least(told)
        if carried != self.carried:
            self.carried, self.moved_at_s = carried, now_s
        self.server = news.server  # an address, until its first words had the name
        self.ended, self.ended_unix_s = news.ended, 0.0

    def decided(self, number: int, strategy: Strategy | None) -> None:
        """This decision is in force for it now."""
        self.decision, self.strategy = number, strategy

    def book(self, ended_unix_s: float) -> None:
        """All that it has carried is written now."""
        self.booked, self.ended_unix_s = self.carried, ended_unix_s

    def record(
        self, addresses: tuple[str, ...], ended_unix_s: float, names: Mapping[str, str]
    ) -> CarriedRecord:
        """What is not written yet. `names`: of the networks, by interface."""
        more = self.carried.since(self.booked) if self.booked is not None else self.carried
        return CarriedRecord(
            ended_unix_s=ended_unix_s,
            server=self.server,
            port=self.port,
            gateway=self.gateway,
            addresses=addresses,
            bytes_down=more.down,
            bytes_up=more.up,
            decision=self.decision,
            bytes_by_network=more.by_network(names),
        )

    def message(self, now_s: float, names: Mapping[str, str]) -> CarriedMessage:
        return CarriedMessage(
            server=self.server,
            port=self.port,
            gateway=self.gateway,
            age_s=max(0.0, now_s - self.began_at_s),
            bytes_down=self.carried.down,
            bytes_up=self.carried.up,
            bytes_by_network=self.carried.by_network(names),
            strategy=self.strategy,
            decision=self.decision,
        )
