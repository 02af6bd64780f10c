"""cedos itself: the daemon, as a user would start it, inside the emulated laptop."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from cedos.config import Config
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

    def wrong_settings(self, settings: Mapping[str, object]) -> dict[str, str]:
        """Each key is a section of the daemon's configuration: what is no table would be nobody's."""
        table = f"[policy.{self.name}"
        sections = {field.encode_name: field.type for field in msgspec.structs.fields(Config)}
        found = {}
        for key, value in settings.items():
            homes = [
                f"{table}.{section}]"
                for section, kind in sections.items()
                if key in getattr(kind, "__struct_fields__", ())
            ]
            if key not in sections and homes:
                found[key] = f"{table}] holds no setting {key}; did you mean {' or '.join(homes)}?"
            elif key not in sections or not isinstance(value, dict):
                tables = ", ".join(f"{table}.{each}]" for each in sections)
                found[key] = f"{table}] holds sections of the daemon's configuration: {tables}"
        return found

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
        assert isinstance(values, dict), section  # as `wrong_settings` has seen to
        sections[section] = sections.get(section, {}) | values
    return msgspec.toml.encode(sections).decode()


def with_settings(stage: Stage, section: str, values: Mapping[str, object]) -> Stage:
    """The stage of a variant: what makes it one stands over what the scenario sets."""
    given = stage.settings.get(section)
    merged = {**(given if isinstance(given, dict) else {}), **values}
    return replace(stage, settings={**stage.settings, section: merged})


policy = Cedos
