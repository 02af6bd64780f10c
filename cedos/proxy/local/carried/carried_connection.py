"""One connection of a program as it is carried: for whom, how much, and over which networks."""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from cedos.api.carried import CarriedNews
from cedos.model import Label
from cedos.proxy.streams.stream import LARGE, SMALL, SMALL_BYTES

_MOST_TEXT: Final = 253


class CarriedStream(Protocol):
    """What is read of a stream or an association (`ProxiedStream`, `ProxiedAssociation`)."""

    @property
    def server(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def received_bytes(self) -> int: ...

    @property
    def sent_bytes(self) -> int: ...

    @property
    def lossy(self) -> bool: ...

    @property
    def gone(self) -> bool: ...


class CarriedConnection:
    """Of a stream, as it was when it was last looked at; one that has ended is let go.

    `decided`: the number of the daemon's last decision about a label in the session that carries it.
    `name`: of the address that the program asked for, until its first words have another one.
    """

    def __init__(
        self,
        number: int,
        stream: CarriedStream,
        began_s: float,
        decided: Callable[[Label], int | None],
        name: str | None,
    ) -> None:
        self._number, self._began_s = number, began_s
        self._stream: CarriedStream | None = stream
        self._decided = decided
        self._decision: int | None = None
        self._asked_for, self._port = stream.server, stream.port
        self._server = name or stream.server
        self._down_bytes = self._up_bytes = 0
        self._by_network: dict[str, int] = {}
        self._down_left = self._up_left = 0  # of which it is not known over which networks
        self._told: tuple[int, int, bool] | None = None

    @property
    def ended(self) -> bool:
        return self._stream is None

    @property
    def changed(self) -> bool:
        """Whether it is another than was told."""
        return self._told != (self._down_bytes, self._up_bytes, self.ended)

    def told(self, news: CarriedNews) -> None:
        self._told = news.bytes_down, news.bytes_up, news.ended

    def look(self, down: Mapping[str, int], up: Mapping[str, int]) -> None:
        """What its session has carried since the last time, by network; its own went likewise."""
        stream = self._stream
        if stream is None:
            return
        self._down_left += stream.received_bytes - self._down_bytes
        self._up_left += stream.sent_bytes - self._up_bytes
        self._down_bytes, self._up_bytes = stream.received_bytes, stream.sent_bytes
        if stream.server != self._asked_for:
            self._server = stream.server
        if sum(down.values()):
            self._share(self._down_left, down)
            self._down_left = 0
        # What was handed in has not gone yet.
        gone = min(self._up_left, sum(up.values()))
        self._share(gone, up)
        self._up_left = 0 if stream.lossy else self._up_left - gone
        large = max(self._down_bytes, self._up_bytes) > SMALL_BYTES
        self._decision = self._decided(LARGE if large else SMALL) or self._decision
        if stream.gone:
            self._stream = None

    def news(self, now_s: float) -> CarriedNews:
        return CarriedNews(
            number=self._number,
            server=self._server[:_MOST_TEXT],
            port=self._port,
            age_s=max(0.0, now_s - self._began_s),
            bytes_down=self._down_bytes,
            bytes_up=self._up_bytes,
            bytes_by_network=dict(self._by_network),
            decision=self._decision,
            ended=self.ended,
        )

    def _share(self, size_bytes: int, carried: Mapping[str, int]) -> None:
        left, rest = size_bytes, sum(carried.values())
        for network, count in carried.items():
            share = left * count // rest if rest else 0
            left, rest = left - share, rest - count
            if share:
                self._by_network[network] = self._by_network.get(network, 0) + share
