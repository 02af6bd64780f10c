"""cedos itself: the daemon with its shipped settings, inside the emulated laptop.

The testbed tells the daemon only which interfaces there are, which of them is metered and whom to ping.
All that the daemon knows of the place's rates comes from its own pings, flows and counters.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from cedos.config import Config
from cedos.errors import ConfigError
from cedos.model import NetworkKind
from emu.policies.base import Stage
from emu.testbed.access import INTERFACES
from emu.testbed.phones import SERVER
from emu.testbed.programs.daemon import Daemon
from emu.testbed.programs.servers import PORTAL_URL

_START_TIMEOUT_S = 10.0


class Cedos:
    name = "cedos"
    title = "cedos"

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
        """Refuse keys that are no sections of the daemon's configuration."""
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

    def simulated(self, settings: Mapping[str, object]) -> Config:
        """Return the configuration of the simulator's daemon; ConfigError: it cannot be used."""
        sections: dict[str, Any] = {"probes": {"target": SERVER, "dns": False}}
        try:
            return msgspec.convert(
                _merged(sections | {"providers": {"host": False}}, settings), Config
            )
        except msgspec.ValidationError as error:
            raise ConfigError(f"[policy.{self.name}]: {error}") from None

    def stop(self) -> None:
        if self._daemon is not None:
            self._daemon.stop()


def configuration(stage: Stage) -> str:
    """Return the daemon's configuration for a stage: its networks and the server to ping.

    The scenario's `[policy.NAME]` table overrides it, key by key within each section.
    """
    sections: dict[str, Any] = {
        "networks": {
            INTERFACES[NetworkKind(name)]: {"kind": name, "metered": name == "cellular"}
            for name in stage.place.networks
        },
        "probes": {"target": SERVER, "dns": False, "portal_url": PORTAL_URL},
        "providers": {"host": False},
        "log": {"level": "info", "format": "json"},
    }
    return msgspec.toml.encode(_merged(sections, stage.settings)).decode()


def _merged(sections: dict[str, Any], settings: Mapping[str, object]) -> dict[str, Any]:
    """Return the sections with a scenario's settings, key by key."""
    for section, values in settings.items():
        assert isinstance(values, dict), section  # `wrong_settings` has refused all others
        sections[section] = sections.get(section, {}) | values
    return sections


def with_settings(stage: Stage, section: str, values: Mapping[str, object]) -> Stage:
    """Return the stage of a variant, whose own settings override those of the scenario."""
    given = stage.settings.get(section)
    merged = {**(given if isinstance(given, dict) else {}), **values}
    return replace(stage, settings={**stage.settings, section: merged})


policy = Cedos
