"""Lead living connections over the host's own default when our rules go."""

from collections import defaultdict
from collections.abc import Sequence

from cedos.kernel.mptcp import SetBackup
from cedos.kernel.policy_routing import MAIN_TABLE, SeenRoute
from cedos.kernel.sock_diag import TcpSocket
from cedos.steer.kernel.interface import SteeringKernel


def hand_over(kernel: SteeringKernel) -> list[str]:
    """Move our living MPTCP connections to the network of the host's own default route.

    To be called while our rules still stand: they tell which network a socket's address belongs to.
    A plain TCP connection cannot be moved; of those whose network is not the host's own default
    the returned words say that they lose their way.
    """
    own = own_defaults(kernel.routes())
    by_token: defaultdict[int, list[TcpSocket]] = defaultdict(list)
    lines = []
    for seen in kernel.sockets():
        if seen.listening or seen.key.remote.version not in own:
            continue
        if seen.token is not None:
            by_token[seen.token].append(seen)
        elif _index(kernel, seen) not in (None, own[seen.key.remote.version]):
            key = seen.key
            lines.append(
                f"loses its network: TCP {key.local} port {key.local_port}"
                f" -> {key.remote} port {key.remote_port}"
            )
    for token, subflows in by_token.items():
        lines += _move(kernel, token, subflows, own)
    return lines


def own_defaults(routes: Sequence[SeenRoute]) -> dict[int, int]:
    """Return IP version -> index of the interface of the host's own default route."""
    best: dict[int, SeenRoute] = {}
    for route in routes:
        if route.table == MAIN_TABLE and route.destination.prefixlen == 0:
            known = best.get(route.version)
            if known is None or route.metric < known.metric:
                best[route.version] = route
    return {version: route.index for version, route in best.items()}


def _index(kernel: SteeringKernel, seen: TcpSocket) -> int | None:
    """Return the interface through which a socket's packets leave, if it is by a default route."""
    route = kernel.lookup(seen.key.remote, seen.key.local)
    return route.index if route is not None and route.destination.prefixlen == 0 else None


def _move(
    kernel: SteeringKernel, token: int, subflows: list[TcpSocket], own: dict[int, int]
) -> list[str]:
    staying = [s for s in subflows if _index(kernel, s) == own[s.key.remote.version]]
    leaving = [s for s in subflows if s not in staying]
    if not staying or not leaving or not kernel.ours_to_steer(token):
        return []
    commands = [SetBackup(token, s.key, False) for s in staying if s.backup]
    commands += [SetBackup(token, s.key, True) for s in leaving if not s.backup]
    return [
        str(command)
        for command, error in zip(commands, kernel.steer(commands), strict=True)
        if error is None
    ]
