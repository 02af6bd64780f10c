"""End rescued flows when their translation goes.

A plain TCP flow cannot do without: its packets would leave by the network that it was rescued from,
with an address that no host there knows. An MPTCP connection goes on over its other subflows, at once
if the translated one is ended and does not just fall silent.
"""

from collections import defaultdict

from cedos.kernel.mptcp import DestroySubflow
from cedos.kernel.policy_routing import Rule
from cedos.model import FlowKey
from cedos.steer.kernel.interface import SteeringKernel
from cedos.steer.routing.plan import Preference


def undo_rescue(kernel: SteeringKernel) -> list[str]:
    """Take out what translates, and ends the MPTCP subflows that lived by it; says so in words.

    To be called while the flows' rules still stand: they tell which flows they are. Errors: OSError.
    """
    keys = {
        key
        for seen in kernel.rules()
        if seen.rule and seen.preference == Preference.RESCUE
        if (key := _key(seen.rule)) is not None
    }
    lines = _end_subflows(kernel, keys) if keys else []
    if kernel.rescue.remove():
        lines.append("deleted: the chains CEDOS_LATE and CEDOS_NAT of iptables and their sets")
    return lines


def _key(rule: Rule) -> FlowKey | None:
    source, destination = rule.source, rule.destination
    if source is None or destination is None or rule.source_port is None or rule.port is None:
        return None
    return FlowKey(source.network_address, rule.source_port, destination.network_address, rule.port)


def _end_subflows(kernel: SteeringKernel, keys: set[FlowKey]) -> list[str]:
    paths: defaultdict[int, list[FlowKey]] = defaultdict(list)
    lines = []
    for seen in kernel.sockets():
        if seen.token is not None:
            paths[seen.token].append(seen.key)
        elif seen.key in keys:
            key = seen.key
            lines.append(
                f"loses its network: TCP {key.local} port {key.local_port}"
                f" -> {key.remote} port {key.remote_port}, which was rescued"
            )
    commands = [
        DestroySubflow(token, key)
        for token, subflows in paths.items()
        if not keys.issuperset(subflows)
        for key in keys.intersection(subflows)
    ]
    if commands:
        refused = kernel.steer(commands)
        lines += [str(c) for c, error in zip(commands, refused, strict=True) if error is None]
    return lines
