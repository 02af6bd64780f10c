"""What this host can and cannot do (`cedos doctor`). Looks only: nothing is changed."""

import os
from collections.abc import Sequence

from cedos.config import Config
from cedos.config.directories import Directories
from cedos.doctor import mptcp, observation, radios, rescue, services, surroundings
from cedos.doctor.finding import Files, Finding, State

__all__ = ["Finding", "State", "can_run", "examine"]


async def examine(config: Config, where: Directories) -> list[Finding]:
    """Looks at everything that cedos needs or can use.

    Args:
        config: for networks that are to be ignored, and the model.
        where: the daemon's directories.
    """
    files = Files()
    daemon = surroundings.daemon(where)
    runs = daemon.state is State.OK and daemon.found.startswith("running")
    found, about_networks = await surroundings.networks(config)
    findings: list[Finding | None] = [
        *about_networks,
        surroundings.vpn(found),
        daemon,
        observation.capabilities(),
        mptcp.kernel(os.uname().release),
        mptcp.available(files),
        mptcp.path_manager(files, runs),
        mptcp.black_hole(files),
        await mptcp.endpoints(files, runs),
        services.iptables(),
        rescue.translation(),
        rescue.early(files),
        await observation.flows(),
        observation.connection_tracking(files),
        observation.packets(),
        observation.ping(files),
        observation.bpf(files),
        await observation.radio(files),
        *await services.on_the_bus(),
        await radios.phones(),
        radios.portals(config),
        surroundings.model(config),
        surroundings.state(where),
    ]
    return [finding for finding in findings if finding is not None]


def can_run(findings: Sequence[Finding]) -> bool:
    """Whether the daemon could run here, with the privileges that it needs."""
    return not any(finding.fatal for finding in findings)
