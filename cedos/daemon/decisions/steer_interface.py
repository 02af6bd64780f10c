"""The daemon's interface to steering; a test gives a double."""

from collections.abc import Awaitable, Collection, Mapping
from typing import Protocol

import structlog

from cedos.errors import CedosError
from cedos.model import Strategy
from cedos.steer.routing.host_default import HostDefault

_log = structlog.get_logger(__name__)

Place = tuple[str, int | None]
"""A destination: a prefix and a port; None: all ports."""


class Steer(Protocol):
    """The hands on the kernel (`cedos.steer.steering.Steering`). Errors: SteeringError."""

    @property
    def host_defaults(self) -> Mapping[int, HostDefault]:
        """Return by IP version the host's own default, where that is left alone."""

    async def set_default(self, network_name: str, others: Mapping[int, str] | None = None) -> None:
        """Send new connections over this network; `others`: for the IP versions that it lacks."""

    async def set_destination(
        self, prefix: str, port: int | None, network_name: str | None
    ) -> None:
        """Send new connections to a destination over this network; None: like all others.

        `cedos.steer.routing.plan.NOWHERE`: they are refused.
        """

    async def set_ruled(self, wanted: Mapping[Place, str | None]) -> None:
        """Send new connections to places under a user's rules over these networks, or nowhere."""

    async def set_mark(self, mark: int, network_name: str | None) -> None:
        """Send new connections that carry a mark over this network; None: like all others."""

    async def steer_connection(self, token: int, strategy: Strategy) -> None:
        """Move a living MPTCP connection."""

    async def without_spares(self, network_names: Collection[str]) -> None:
        """Keep no spare subflow of living MPTCP connections over these networks."""

    async def release(self, token: int, network_name: str) -> None:
        """Have what is under way over this network sent again over the connection's others."""


async def carried_out(action: Awaitable[None]) -> bool:
    """Await a request to steering; return whether it succeeded.

    The kernel changes under our hands (a connection ends, a link goes), and the next look is never
    far away: a refusal is logged, no more.
    """
    try:
        await action
    except CedosError as error:
        _log.warning("steering failed", why=str(error))
        return False
    return True
