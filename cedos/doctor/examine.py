"""All findings of the doctor, in the order of its report."""

import os
from collections.abc import Sequence

from cedos.config import Config
from cedos.config.directories import Directories
from cedos.doctor import barring, mptcp, observation, radios, rescue, services, surroundings
from cedos.doctor.finding import Files, Finding, FindingState


async def examine(config: Config, where: Directories) -> list[Finding]:
    files = Files()
    daemon = surroundings.daemon(where)
    runs = daemon.state is FindingState.OK and daemon.found.startswith("running")
    found, about_networks = await surroundings.networks(config)
    findings: list[Finding | None] = [
        *about_networks,
        surroundings.named(config, where, found),
        surroundings.vpn(found),
        daemon,
        observation.capabilities(),
        mptcp.kernel(os.uname().release),
        mptcp.available(files),
        mptcp.path_manager(files, runs),
        mptcp.black_hole(files),
        await mptcp.endpoints(files, runs),
        services.iptables(),
        barring.second_wall(),
        rescue.translation(),
        rescue.early(files),
        rescue.retransmission(files, runs),
        await observation.flows(),
        observation.connection_tracking(files),
        observation.packets(),
        observation.lookups(files, config),
        observation.ping(files),
        observation.bpf(files),
        await observation.radio(files),
        *await services.on_the_bus(),
        await radios.phones(),
        radios.portals(config),
        surroundings.model(config),
        surroundings.predictions(where) if runs else None,
        surroundings.state(where),
    ]
    return [finding for finding in findings if finding is not None]


def can_run(findings: Sequence[Finding]) -> bool:
    return not any(finding.fatal for finding in findings)
