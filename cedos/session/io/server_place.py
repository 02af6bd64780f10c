"""One machine that a server is at."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from cedos.session.io.connect_attempts import Endpoint


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """`named`: as it was given; `endpoints` may be empty until its name was looked up.

    `resolve` looks the name up again, None where it is an address.
    """

    named: Endpoint
    endpoints: Sequence[Endpoint]
    resolve: Callable[[], Awaitable[Sequence[Endpoint]]] | None
