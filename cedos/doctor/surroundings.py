"""The networks of this host, the files of cedos, and whether a daemon runs or has left something."""

import errno
import os
import shutil
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from cedos.api.client import ControlClient
from cedos.api.lock import running_pid
from cedos.config import Config
from cedos.config.directories import Directories
from cedos.config.unknown_names import unknown_names
from cedos.doctor import predicted_text
from cedos.doctor.finding import Finding, limited, missing, ok
from cedos.errors import CedosError, ConfigError, HostError, ModelError, PrivilegeError
from cedos.model import Network
from cedos.monitor.bus import SystemBus
from cedos.monitor.networks.links import LinkMonitor
from cedos.monitor.providers.metered import HostMetered
from cedos.steer.kernel.linux import LinuxKernel
from cedos.steer.routing import tunnels
from cedos.storage import budget_file, predictor_file

_ENOUGH_BYTES: Final = 50_000_000


async def networks(config: Config) -> tuple[list[Network], list[Finding]]:
    topic = "networks"
    remedy = "connect a second one: Wi-Fi, and a phone tethered by USB, say"
    bus = SystemBus() if config.providers.host else None
    try:
        async with LinkMonitor(config.network_overrides(), metered=HostMetered(bus)) as links:
            found = links.networks()
    except HostError as error:
        return [], [missing(topic, str(error), "everything", "", fatal=True)]
    finally:
        if bus is not None:
            await bus.close()
    shown = ", ".join(
        f"{one.name} ({one.kind}{', metered' if one.metered else ''}{'' if one.up else ', down'})"
        for one in found
    )
    usable = sum(one.up for one in found)
    if usable < 2:
        why = f"only {usable} usable: {shown}" if shown else "none"
        return found, [
            limited(topic, why, "nothing to choose between until another one comes", remedy)
        ]
    return found, [ok(topic, shown)]


def named(config: Config, where: Directories, found: list[Network]) -> Finding | None:
    """Names in the configuration and in budgets that no network has; None where all are there."""
    budgets = budget_file.configured(config, datetime.now(), where.state)
    # `cedos budget` says what is wrong with it; others may not look into its folder.
    with suppress(ConfigError, PrivilegeError):
        budgets |= budget_file.read(where.state / budget_file.FILE)
    strange = unknown_names(
        config,
        budgets.values(),
        interfaces=[network.interface for network in found],
        networks=[network.name for network in found],
    )
    if not strange:
        return None
    lost = "what is said of them counts once they come"
    return limited("names", "; ".join(strange), lost, "plug them in, or correct the names")


def vpn(found: list[Network]) -> Finding:
    """Whether a VPN has the default, or somebody's rules get in the way."""
    topic = "VPN and foreign rules"
    try:
        kernel = LinuxKernel()
        try:
            foreign = tunnels.examine(
                kernel.rules(), kernel.routes(), kernel.links(), {one.index for one in found}
            )
        finally:
            kernel.close()
    except (OSError, HostError) as error:
        return limited(topic, f"cannot be seen: {error}", "VPNs are not noticed")
    if foreign.notes:
        lost = "new connections there are not steered" if foreign.tunnelled else "some steering"
        return limited(topic, "; ".join(foreign.notes), lost)
    return ok(topic, "none")


def model(config: Config) -> Finding:
    topic = "predictors"
    path = config.predictors.model_path
    try:
        predictor_file.load(path)
    except ModelError as error:
        return limited(
            topic,
            str(error),
            "decisions by a rule of thumb instead of predictions",
            "set predictors.model, or train one with `cedos-emu train`",
        )
    return ok(topic, str(path) if path else "the ones that come with cedos")


def state(where: Directories) -> Finding:
    topic = "state directory"
    folder = _nearest(where.state)
    if not os.access(folder, os.W_OK | os.X_OK):
        return limited(
            topic,
            f"{where.state} is not writable for this user",
            "`cedos up` cannot be run by this user",
            "run it as root or by the systemd unit, or set CEDOS_STATE_DIR",
        )
    if not folder.is_dir():
        why = os.strerror(errno.ENOTDIR)
        return missing(topic, f"{folder}: {why}", "the journal, so steering", fatal=True)
    free = shutil.disk_usage(folder).free
    if free < _ENOUGH_BYTES:
        return limited(
            topic,
            f"{where.state}: {free / 1e6:.0f} MB free",
            "history, once the disk is full",
            "make room",
        )
    return ok(topic, f"{where.state}, {free / 1e9:.1f} GB free")


def daemon(where: Directories) -> Finding:
    """Whether a daemon runs, or a dead one has left its changes."""
    topic = "daemon"
    if (pid := running_pid(where.pid_file)) is not None:
        return ok(topic, f"running (process {pid})")
    journal = where.state / "journal.jsonl"
    try:
        left = journal.lstat().st_size > 0
    except OSError:
        left = False
    if left:
        return limited(
            topic,
            "not running; one that was killed left changes behind",
            "this host's networking is not as it was",
            "cedos restore",
        )
    return ok(topic, "not running")


def predictions(where: Directories) -> Finding | None:
    """How well the running daemon predicted this host's networks; None where that is not known."""
    try:
        networks = ControlClient(where.socket).networks()
    except CedosError:
        return None
    told = filter(None, (predicted_text.sentence(each.name, each.predicted) for each in networks))
    found = ". ".join(told)
    return ok("predictions", found) if found else None


def _nearest(folder: Path) -> Path:
    """The folder itself, or where it would be made; one that cannot be looked into counts as there."""
    while True:
        try:
            folder.stat()
        except (FileNotFoundError, NotADirectoryError):
            folder = folder.parent
        except OSError:
            return folder
        else:
            return folder
