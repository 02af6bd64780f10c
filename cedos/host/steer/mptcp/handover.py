"""Take the path manager over at the start, and hand living connections back at the end.

When our rules go, living connections continue over the host's own default.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from cedos.errors import HostError
from cedos.host.steer.journal.records import CONNECTIONS, Append, change_sysctl
from cedos.host.steer.kernel.interface import SteeringKernel
from cedos.kernel.mptcp import SetBackup
from cedos.kernel.policy_routing import MAIN_TABLE, SeenRoute
from cedos.kernel.sock_diag import TcpSocket
from cedos.kernel.sysctl import MPTCP_ENABLED, MPTCP_PATH_MANAGER, MPTCP_PM_TYPE


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
        if route.table == MAIN_TABLE and route.destination.prefixlen == 0 and route.index:
            known = best.get(route.version)
            if known is None or route.rank < known.rank:
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


# The sysctls of the path manager, the newer name first. A kernel with both keeps them equal.
_PATH_MANAGERS: Final = ((MPTCP_PATH_MANAGER, "userspace"), (MPTCP_PM_TYPE, "1"))


def take_path_manager(kernel: SteeringKernel, append: Append) -> None:
    """Take the path manager over. HostError: impossible, or another program has it."""
    lost = "Living connections cannot be moved; new ones are still steered"
    enabled = kernel.read_sysctl(MPTCP_ENABLED)
    if enabled is None:
        raise HostError(f"this kernel has no MPTCP. {lost}")
    if enabled == "0":
        raise HostError(f"MPTCP is disabled (`sysctl {MPTCP_ENABLED}=1` enables it). {lost}")
    for key, after in _PATH_MANAGERS:
        before = kernel.read_sysctl(key)
        if before is None:
            continue
        if before == after:
            raise HostError(
                f"another program (mptcpd?) manages the paths of MPTCP connections: {key} is {before}"
                f" already. {lost}. If there is no such program, run `sysctl {key}="
                f"{'kernel' if after == 'userspace' else 0}`"
            )
        append(CONNECTIONS)
        if not change_sysctl(kernel, append, key, after):
            raise HostError(f"the disk of the journal takes nothing. {lost}")
        return
    raise HostError(f"this kernel's MPTCP paths cannot be managed by a program. {lost}")
