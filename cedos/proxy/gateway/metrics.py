"""The gateway's figures for Prometheus, over HTTP, on loopback alone."""

from collections.abc import Callable, Iterator
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cedos.errors import HostError
from cedos.proxy.gateway.gateway import GatewayFigures

_PREFIX: Final = "cedos_gateway"
_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class _GatewayCollector(Collector):
    """Reads them when they are asked for."""

    def __init__(self, figures: Callable[[], GatewayFigures]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        figures = self._figures()
        for name, what, value in (
            ("sessions", "Clients' sessions that live.", figures.sessions),
            ("connections", "Connections of clients' programs that live.", figures.connections),
            ("held_bytes", "Bytes kept until a client has acknowledged them, or an origin takes them.",
             figures.held_bytes),
        ):  # fmt: skip
            yield GaugeMetricFamily(f"{_PREFIX}_{name}", what, value)
        for name, what, value in (
            ("sessions_opened", "Sessions that clients opened.", figures.sessions_opened),
            ("connections_opened", "Connections to origins.", figures.connections_opened),
            ("connections_refused", "Connections that were not had.", figures.connections_refused),
        ):  # fmt: skip
            yield CounterMetricFamily(f"{_PREFIX}_{name}", what, value)
        carried = CounterMetricFamily(
            f"{_PREFIX}_carried_bytes",
            "Bytes of programs; up is from clients.",
            labels=["direction"],
        )
        carried.add_metric(["up"], figures.up_bytes)
        carried.add_metric(["down"], figures.down_bytes)
        yield carried


class MetricsServer:
    """`open`, then `close`. HostError: it cannot listen there."""

    def __init__(self, figures: Callable[[], GatewayFigures], address: tuple[str, int]) -> None:
        self._address = address
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_GatewayCollector(figures))
        ProcessCollector(registry=self._registry)
        application = web.Application()
        application.router.add_get("/metrics", self._answer)
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False)

    @property
    def address(self) -> tuple[str, int]:
        """The address at which it listens."""
        host, port = self._runner.addresses[0][:2]
        return host, port

    async def open(self) -> None:
        await self._runner.setup()
        host, port = self._address
        try:
            await web.TCPSite(self._runner, host, port, reuse_address=True).start()
        except OSError as error:
            await self._runner.cleanup()
            raise HostError(
                f"cannot listen at {host} port {port} for metrics: {error.strerror or error}"
            ) from error

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _answer(self, _request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": _TYPE})
