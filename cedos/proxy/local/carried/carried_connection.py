"""One connection of a program as it is carried: for whom, how much, and over which networks."""

from collections.abc import Callable, Mapping

from cedos.api.carried import CarriedNews
from cedos.model import Label
from cedos.proxy.streams.stream import LARGE, SMALL, SMALL_BYTES, ProxiedStream

_MOST_TEXT = 253


class CarriedConnection:
    """Of a stream, as long as somebody is to hear of it.

    `decided`: the number of the daemon's last decision about a label in the session that carries it.
    """

    def __init__(
        self,
        number: int,
        stream: ProxiedStream,
        began_s: float,
        decided: Callable[[Label], int | None],
    ) -> None:
        self._number, self._stream, self._began_s = number, stream, began_s
        self._decided = decided
        self._decision: int | None = None
        self._by_network: dict[str, int] = {}
        self._down_bytes = self._up_bytes = 0  # of which it is known over which networks
        self._told: tuple[int, bool] | None = None

    @property
    def ended(self) -> bool:
        return self._stream.over or self._stream.broken is not None

    @property
    def changed(self) -> bool:
        """Whether it is another than was told."""
        moved = self._stream.received_bytes + self._stream.sent_bytes
        return self._told != (moved, self.ended)

    def told(self, news: CarriedNews) -> None:
        self._told = news.bytes_down + news.bytes_up, news.ended

    def came_over(self, down: Mapping[str, int], up: Mapping[str, int]) -> None:
        """What its session has carried since the last time, by network; its own went likewise."""
        stream = self._stream
        if any(down.values()):
            self._share(stream.received_bytes - self._down_bytes, down)
            self._down_bytes = stream.received_bytes
        if any(up.values()):
            self._share(stream.sent_bytes - self._up_bytes, up)
            self._up_bytes = stream.sent_bytes

    def news(self, now_s: float) -> CarriedNews:
        stream = self._stream
        large = max(stream.received_bytes, stream.sent_bytes) > SMALL_BYTES
        if not self.ended:
            # Of one that has ended the last one counts that was made while it lived.
            self._decision = self._decided(LARGE if large else SMALL)
        return CarriedNews(
            number=self._number,
            server=stream.server[:_MOST_TEXT],
            port=stream.port,
            age_s=max(0.0, now_s - self._began_s),
            bytes_down=stream.received_bytes,
            bytes_up=stream.sent_bytes,
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
