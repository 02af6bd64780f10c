"""What the daemon asks of steering, so that it can be tested without a kernel."""

from typing import Protocol

from cedos.model import Strategy


class Steer(Protocol):
    """The hands on the kernel (`cedos.steer.steering.Steering`). Errors: SteeringError."""

    async def set_default(self, network_name: str) -> None:
        """Sends new connections over this network."""

    async def set_destination(
        self, prefix: str, port: int | None, network_name: str | None
    ) -> None:
        """Sends new connections to a destination over this network; None: like all others."""

    async def set_mark(self, mark: int, network_name: str | None) -> None:
        """Sends new connections that carry a mark over this network; None: like all others."""

    async def steer_connection(self, token: int, strategy: Strategy) -> None:
        """Moves a living MPTCP connection."""
