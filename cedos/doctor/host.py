"""The doctor's findings about the host: programs, D-Bus services, networks, files and the daemon."""

import errno
import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from cedos.api.client import ControlClient
from cedos.api.lock import running_pid
from cedos.config import Config, unknown_names
from cedos.config.directories import Directories
from cedos.doctor import Files, Finding, FindingState, kernel, limited, missing, ok
from cedos.errors import CedosError, ConfigError, HostError, ModelError, PrivilegeError
from cedos.host.monitor.bus import BusError, SystemBus
from cedos.host.monitor.links import LinkMonitor
from cedos.host.monitor.providers import cellular
from cedos.host.monitor.providers.metered import HostMetered
from cedos.host.steer import default_route
from cedos.host.steer.kernel.linux import LinuxKernel
from cedos.model import NO_DEFAULT_ROUTE, Network
from cedos.storage import budget_file, model_files

_BUS: Final = "org.freedesktop.DBus"
_SERVICES: Final = (
    (
        "systemd-resolved",
        "org.freedesktop.resolve1",
        "which DNS server belongs to which network (/etc/resolv.conf does not say)",
        "systemctl enable --now systemd-resolved",
    ),
    ("UPower", "org.freedesktop.UPower", "the battery's state", "systemctl enable --now upower"),
)


def iptables(path: str | None = None) -> Finding:
    """Check iptables; `path` as in PATH; None: this process's, and the system's folders."""
    topic = "iptables"
    lost = "plain TCP and UDP flows are seen only when they end; no rescue from a dead network"
    program = shutil.which("iptables", path=path) or (
        shutil.which("iptables", path="/usr/sbin:/sbin") if path is None else None
    )
    if program is None:
        return missing(topic, "not installed", lost, "apt install iptables")
    try:
        done = subprocess.run(
            [program, "--version"], check=True, capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.SubprocessError) as error:
        return limited(topic, f"does not run: {error}", lost, "apt install --reinstall iptables")
    return ok(topic, done.stdout.strip())


async def on_the_bus(address: str | None = None) -> list[Finding]:
    """Check the D-Bus services; `address` of the bus, None: the system's."""
    bus = SystemBus(address)
    try:
        answer = await bus.call(_BUS, "/org/freedesktop/DBus", _BUS, "ListNames")
        names = set(answer[0])
    except BusError as error:
        return [
            limited(
                "D-Bus",
                str(error),
                "what systemd-resolved, ModemManager, UPower, logind and NetworkManager know",
                "systemctl start dbus",
            )
        ]
    else:
        return [
            *(
                ok(name, "running") if service in names else limited(name, "not running", lost, how)
                for name, service, lost, how in _SERVICES
            ),
            await modems(bus, names),
        ]
    finally:
        await bus.close()


_OBJECTS: Final = "org.freedesktop.DBus.ObjectManager"
_MODEMS: Final = "ModemManager"


async def modems(bus: SystemBus, names: set[str]) -> Finding:
    lost = "signal strength of cellular modems"
    if cellular.SERVICE not in names:
        return limited(_MODEMS, "not running", lost, "systemctl enable --now ModemManager")
    try:
        body = await bus.call(cellular.SERVICE, cellular.ROOT, _OBJECTS, "GetManagedObjects")
    except BusError as error:
        return limited(_MODEMS, f"does not answer: {error}", lost)
    found = cellular.parse_modems(body[0] if body else None)
    interfaces = ", ".join(sorted(found.by_interface))
    if interfaces:
        return ok(_MODEMS, f"running, with a modem behind {interfaces}")
    return ok(_MODEMS, "running, without a modem")


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
    there = {version for version in (4, 6) if any(one.carries(version) for one in found)}
    shown = ", ".join(_describe_network(one, there) for one in found)
    usable = sum(one.up for one in found)
    if usable < 2:
        why = f"only {usable} usable: {shown}" if shown else "none"
        pathless = [one.name for one in found if one.carrier and one.lacks == NO_DEFAULT_ROUTE]
        if pathless:
            remedy = (
                f"give {' and '.join(pathless)} a default route, by DHCP or in the settings of the"
                " connection"
            )
        return found, [
            limited(topic, why, "nothing to choose between until another one comes", remedy)
        ]
    return found, [ok(topic, shown)]


def _describe_network(network: Network, versions: set[int]) -> str:
    """Return a network in words; `versions`: the IP versions that some network has."""
    words = [str(network.kind)]
    words += ["metered"] if network.metered else []
    if network.up:
        words += [f"no IPv{each}" for each in sorted(versions) if not network.carries(each)]
    else:
        words.append(network.lacks if network.carrier else "down")
    return f"{network.name} ({', '.join(words)})"


def find_unknown_names(config: Config, where: Directories, found: list[Network]) -> Finding | None:
    """List names in the configuration and in budgets that no network has; None: there are none."""
    budgets = budget_file.configured_budgets(config, datetime.now(), where.state)
    # `cedos budget` reports a wrong file. Other users may not read the folder.
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
    lost = "their settings apply when they appear"
    return limited("names", "; ".join(strange), lost, "plug them in, or correct the names")


def vpn(found: list[Network]) -> Finding:
    """Check whose the default route is (a VPN's, say), and for rules of other programs."""
    topic = "VPN and foreign rules"
    try:
        kernel = LinuxKernel()
        try:
            foreign = default_route.examine(kernel.rules(), kernel.routes(), kernel.links(), found)
        finally:
            kernel.close()
    except (OSError, HostError) as error:
        return limited(topic, f"cannot be seen: {error}", "VPNs are not noticed")
    if foreign.notes:
        lost = "new connections there are not steered" if foreign.defaults else "some steering"
        return limited(topic, "; ".join(foreign.notes), lost)
    return ok(topic, "none")


def model(config: Config) -> Finding:
    topic = "predictors"
    path = config.predictors.model_path
    try:
        model_files.load(path)
    except ModelError as error:
        return limited(
            topic,
            str(error),
            "decisions by the predictors that come with cedos",
            "set predictors.model, or train one with `cedos-emu train`",
        )
    return ok(topic, str(path) if path else "the ones that come with cedos")


def state(where: Directories) -> Finding:
    topic = "state directory"
    folder = _nearest_folder(where.state)
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
    """Check whether a daemon runs, and whether a killed one left its changes."""
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


def ip_versions(where: Directories) -> list[Finding]:
    """List the IP versions whose connections the running daemon refuses."""
    try:
        others = ControlClient(where.socket).status().default.others
    except CedosError:
        return []
    return [
        limited(f"IPv{each}", f"refused: {one.why}", f"servers that have IPv{each} alone")
        for each, one in others.items()
        if one.network is None
    ]


def _nearest_folder(folder: Path) -> Path:
    """Return the nearest existing folder. A folder that cannot be read counts as existing."""
    while True:
        try:
            folder.stat()
        except (FileNotFoundError, NotADirectoryError):
            folder = folder.parent
        except OSError:
            return folder
        else:
            return folder


async def examine(config: Config, where: Directories) -> list[Finding]:
    files = Files()
    runs_now = daemon(where)
    runs = runs_now.state is FindingState.OK and runs_now.found.startswith("running")
    found, about_networks = await networks(config)
    findings: list[Finding | None] = [
        *about_networks,
        find_unknown_names(config, where, found),
        vpn(found),
        runs_now,
        kernel.capabilities(),
        ok("kernel", os.uname().release),
        kernel.mptcp(files),
        kernel.path_manager(files, runs),
        iptables(),
        kernel.second_wall(),
        kernel.rescue(),
        kernel.early_rescue(files),
        kernel.retransmission(files, runs),
        kernel.connection_tracking(files),
        kernel.bpf(files),
        *await on_the_bus(),
        model(config),
        *(ip_versions(where) if runs else ()),
        state(where),
    ]
    return [finding for finding in findings if finding is not None]


def can_run(findings: Sequence[Finding]) -> bool:
    return not any(finding.fatal for finding in findings)
