"""cedos itself, the daemon with its shipped settings inside the emulated laptop, and its variants.

The testbed tells the daemon only which interfaces there are, which of them is metered and whom to ping.
All that the daemon knows of the place's rates comes from its own pings, flows and counters.
"""

import random
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from cedos.config import Config
from cedos.config.sections import PredictorsConfig
from cedos.errors import ConfigError
from cedos.model import NetworkKind
from emu.policies import Stage
from emu.testbed.access import INTERFACES
from emu.testbed.phones import SERVER, use_kernel_path_manager
from emu.testbed.programs.daemon import Daemon
from emu.testbed.programs.gateway import Gatewayed
from emu.testbed.programs.servers import PORTAL_URL

_START_TIMEOUT_S = 10.0
_DRAW_S = 2.0
# The daemon chooses the networks of new connections, and leaves living ones where they are.
_ONLY_STARTS = {"mptcp": False, "rescue": False}
# The preference of a rule that leads to the main table before the daemon's rules apply.
_BEFORE_THE_DAEMONS = "300"


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
        """Refuse keys that are no sections of the daemon's configuration, and names of files.

        A scenario may come from a stranger, and the daemon runs as root.
        """
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
            elif named := sorted(_files_of(sections[key]) & value.keys()):
                found[key] = f"{table}.{key}] {named[0]}: a scenario names no file of this host"
                if key == "predictors":
                    found[key] += "; --predictors does"
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


def _files_of(section: Any) -> set[str]:
    """Return the settings of a section that name files."""
    hints = get_type_hints(section) if isinstance(section, type) else {}
    found = {name for name, hint in hints.items() if Path in (hint, *get_args(hint))}
    return found | ({"model"} if section is PredictorsConfig else set())


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


class CedosStart(Cedos):
    """cedos that chooses the network of each new connection and never moves or rescues one.

    Compared with `cedos` it shows the worth of second paths, of moves and of rescued first packets.
    """

    name = "cedos-start"

    def start(self, stage: Stage) -> None:
        super().start(with_settings(stage, "steering", _ONLY_STARTS))


class CedosTold(Cedos):
    """cedos told each network's rate of the second before: an upper bound that no real host reaches.

    A place's series of indicators hold, for each second that has passed, the rate that the network would
    have carried. A real host knows that rate only of a network that something saturates.
    """

    name = "cedos-told"
    title = "cedos, told the rates"

    def start(self, stage: Stage) -> None:
        told: dict[str, Any] = {"series": {}, "started_at_s": {}}
        for kind, network in stage.place.networks.items():
            if network.series_path is not None:
                interface = INTERFACES[NetworkKind(kind)]
                told["series"][interface] = str(network.series_path.absolute())
                offset_s = stage.offset_s % network.down.period_s
                told["started_at_s"][interface] = stage.replay_at_s - offset_s
        super().start(with_settings(stage, "providers", told))


class CedosGateway(Cedos):
    """cedos with a gateway: all connections of unmodified programs share one session that survives.

    Programs reach the local proxy through the usual environment variables.
    """

    name = "cedos-gateway"
    title = "cedos with a gateway"
    simulated = Cedos.simulated
    gateway = True  # the simulator's programs use it, too

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()

    def start(self, stage: Stage) -> None:
        super().start(stage)
        directory = stage.directory.resolve()
        gateway = Gatewayed(stage.laptop, directory, {"CEDOS_RUNTIME_DIR": str(directory / "run")})
        self._stack.enter_context(gateway)
        stage.variables.update(gateway.environment)

    def stop(self) -> None:
        self._stack.close()
        super().stop()


class RandomNetwork(Cedos):
    """The network of new connections drawn every two seconds, whatever the daemon would choose.

    What transfers then take, with what the daemon knew when they began, teaches predictors without the
    bias of a policy's choices: each network gets half of everything (`cedos-emu observed`).
    """

    name = "random-network"

    def __init__(self) -> None:
        super().__init__()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, stage: Stage) -> None:
        laptop = stage.laptop
        use_kernel_path_manager(laptop)
        super().start(with_settings(stage, "steering", _ONLY_STARTS))
        # Once the daemon steers: one that finds the rule at its start leaves the default to the host.
        laptop.client.ip("rule", "add", "pref", _BEFORE_THE_DAEMONS, "iif", "lo", "lookup", "main")
        # Of another seed, or an instant would show the same network in every run.
        draw = random.Random(f"{stage.seed}/{stage.place.name}/{stage.offset_s}")

        def prefer() -> None:
            while not self._over.is_set():
                laptop.prefer(draw.choice(sorted(INTERFACES.values())))
                self._over.wait(_DRAW_S)

        self._thread = threading.Thread(target=prefer, name="random network")
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        super().stop()
