"""cedos itself: the daemon, as a user would start it, inside the emulated laptop."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from cedos.model import NetworkKind
from emu.policies.base import Stage
from emu.testbed.access import INTERFACES
from emu.testbed.phones import SERVER
from emu.testbed.programs.daemon import Daemon
from emu.testbed.programs.servers import PORTAL_URL

_START_TIMEOUT_S = 10.0


class Cedos:
    name = "cedos"

    def __init__(self) -> None:
        self._daemon: Daemon | None = None

    def start(self, stage: Stage) -> None:
        directory = stage.directory.resolve()
        self._daemon = Daemon(
            stage.laptop.client, directory, configuration(stage), own_session=True
        )
        self._daemon.start()
        self._daemon.wait_for(
            lambda client: client.status().default.network is not None, _START_TIMEOUT_S
        )

    def stop(self) -> None:
        if self._daemon is not None:
            self._daemon.stop()


def configuration(stage: Stage) -> str:
    """The daemon's configuration for a stage: its networks, its indicators, the server to ping.

    The scenario's `[policy.cedos]` table overrides it, key by key within each section.
    """
    networks = stage.place.networks
    sections: dict[str, Any] = {
        "networks": {
            INTERFACES[NetworkKind(name)]: {"kind": name, "metered": name == "cellular"}
            for name in networks
        },
        "probes": {
            "target": SERVER,
            "dns": False,
            "portal_url": PORTAL_URL,
        },
        "providers": {
            "host": False,
            "started_at_s": stage.replay_at_s,
            "series": {
                INTERFACES[NetworkKind(name)]: str(network.series_path.absolute())
                for name, network in networks.items()
                if network.series_path is not None
            },
            "offset_s": {
                INTERFACES[NetworkKind(name)]: stage.offset_s % network.down.period_s
                for name, network in networks.items()
                if network.series_path is not None
            },
        },
        "log": {"level": "info", "format": "json"},
    }
    for section, values in stage.settings.items():
        if isinstance(values, dict):
            sections[section] = sections.get(section, {}) | values
    return msgspec.toml.encode(sections).decode()


def with_settings(stage: Stage, section: str, values: Mapping[str, object]) -> Stage:
    """The stage of a variant: what makes it one stands over what the scenario sets."""
    given = stage.settings.get(section)
    merged = {**(given if isinstance(given, dict) else {}), **values}
    return replace(stage, settings={**stage.settings, section: merged})


policy = Cedos
