"""cedos itself: the daemon, as a user would start it, inside the emulated laptop."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from cedos.api.client import ControlClient
from cedos.errors import CedosError, EmulationError
from cedos.model import NetworkKind
from emu.policies.base import Stage
from emu.testbed.access import INTERFACES
from emu.testbed.phones import SERVER

_START_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 10.0


class Cedos:
    name = "cedos"

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._log = Path()

    def start(self, stage: Stage) -> None:
        directory = stage.directory.resolve()
        config = directory / "cedos.toml"
        config.write_text(configuration(stage))
        self._log = directory / "cedos.log"
        runtime = directory / "run"
        runtime.mkdir()
        environment = os.environ | {
            "CEDOS_STATE_DIR": str(directory),
            "CEDOS_RUNTIME_DIR": str(runtime),
        }
        with self._log.open("wb") as log:
            self._process = stage.laptop.client.popen(
                *(sys.executable, "-m", "cedos", "up", "--config", str(config)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self._await_ready(ControlClient(runtime / "control.sock"))

    def _await_ready(self, client: ControlClient) -> None:
        assert self._process is not None
        deadline_at_s = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline_at_s:
            if self._process.poll() is not None:
                raise EmulationError(f"the daemon ended at its start: {self._log_end()}")
            try:
                if client.status().default.network is not None:
                    return
            except CedosError:
                pass
            time.sleep(0.05)
        raise EmulationError(f"the daemon was not ready in time: {self._log_end()}")

    def stop(self) -> None:
        """Ends the daemon as systemd would; its history stays in the stage's directory."""
        if self._process is None:
            return
        early = self._process.poll()
        if early is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                raise EmulationError(f"the daemon did not end: {self._log_end()}") from None
        if self._process.returncode != 0:
            raise EmulationError(f"the daemon failed: {self._log_end()}")

    def _log_end(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return "\n".join(lines[-15:]) or "it said nothing"


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
            "interval_s": 0.5,
            "idle_interval_s": 0.5,
            "dns": False,
            "portal_url": "",
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
