"""The emulated laptop with two tethered phones.

    client {wlan0, lte0} -- wire -- phone (wifi, cellular) -- emulated link -- provider with NAT -- server

The client, the providers and the server are namespaces that live as long as the laptop. Emulated links,
with the phones at the client's side, can be attached, detached and replaced at any time. The client's
interfaces stay, and have no carrier while no phone is there.

A *wire* is a veth pair: one end is the client's interface, the other one lies in the phone's namespace.
While there is no phone, that end waits in the server's namespace, down.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from cedos.errors import EmulationError, PrivilegeError
from cedos.model import NetworkKind
from emu.places.places import Place
from emu.testbed import netns, stale, wiring
from emu.testbed.access import ADDRESSES, INTERFACES, LTE, WLAN, Access
from emu.testbed.mahimahi import MahimahiLink, launch
from emu.testbed.netns import Namespace
from emu.testbed.services import Started
from emu.testbed.wiring import SERVER


class ExitOnSignals:
    """Handlers of SIGTERM and SIGHUP while a laptop exists: they raise SystemExit.

    So the `with` blocks clean up, as after Ctrl-C. Only the main thread sets the handlers, and only if
    the program has set none.
    """

    _users = 0
    _signals = (signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self._active = False

    def begin(self) -> None:
        # Python allows signal handlers only in the main thread.
        if threading.current_thread() is not threading.main_thread():
            return
        self._active = True
        ExitOnSignals._users += 1
        for number in self._signals:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _exit)

    def end(self) -> None:
        """Restore the handlers if no other laptop exists; a second call does nothing."""
        if not self._active:
            return
        self._active = False
        ExitOnSignals._users -= 1
        for number in self._signals if ExitOnSignals._users == 0 else ():
            if signal.getsignal(number) is _exit:
                signal.signal(number, signal.SIG_DFL)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back signals that would end the program while the block runs; they act after it."""
    wanted = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


__all__ = ["LTE", "SERVER", "WLAN", "Access", "Laptop"]


_TRY_NAMESPACES = ("unshare", "--net", "--mount", "ip", "link", "set", "lo", "up")


def _require_namespaces() -> None:
    """Refuse a host that cannot emulate a network: PrivilegeError or EmulationError."""
    if os.geteuid() != 0:
        raise PrivilegeError("the testbed makes network namespaces: run it as root")
    if shutil.which("mm-link") is None:
        raise EmulationError("Mahimahi is missing (no mm-link): ./run installs it on Debian 12")
    tried = subprocess.run(_TRY_NAMESPACES, capture_output=True, text=True, timeout=10, check=False)
    if tried.returncode != 0:
        raise PrivilegeError(
            f"this machine allows no network namespaces ({tried.stderr.strip()}): run it on a host"
            " of your own, in a virtual machine, or in a container started with --privileged"
        )


@dataclass(slots=True)
class _Network:
    """The provider's namespace of one network, and the link and phone that are attached now.

    `phone`: the phone's namespace as an open file, which keeps it alive while the wire is in it.
    """

    isp: Namespace
    access: Access | None = None
    link: MahimahiLink | None = None
    directory: Path | None = None
    phone: int | None = None


class Laptop(Started):
    """A laptop, its networks and one server; everything is gone when the `with` block ends.

    Use it from one thread, and not from inside a running event loop (`asyncio.to_thread` helps):
    starting links blocks for a tenth of a second.

    Args:
        accesses: networks to attach at the start; at most one of each kind.
        source_rules: add policy rules, by which packets of a socket that is bound to an interface, or
            to its address, leave through it (tables 101 and 102).
        nice: priority of the emulation's processes (-10 helps on a busy host).

    Attributes:
        client: the namespace with `wlan0` (192.168.43.2/24) and `lte0` (192.168.44.2/24), each with
            a default route through .1 at metric 100 and 200.
        server: the namespace of 198.51.100.1, and .2 to .9.
        directory: for files that are removed together with the laptop.
    """

    def __init__(
        self,
        *accesses: Access,
        source_rules: bool = False,
        nice: int = 0,
    ) -> None:
        self._accesses = accesses
        self._source_rules = source_rules
        self._nice = nice
        self._networks: dict[NetworkKind, _Network] = {}
        self._instance: stale.Instance | None = None
        self._guard = ExitOnSignals()
        self._starts = 0

    @property
    def links(self) -> Mapping[NetworkKind, MahimahiLink]:
        """The links that are attached now; a replay began at `links[kind].started_at_s`."""
        return {kind: net.link for kind, net in self._networks.items() if net.link is not None}

    @property
    def accesses(self) -> Mapping[NetworkKind, Access]:
        return {kind: net.access for kind, net in self._networks.items() if net.access is not None}

    @property
    def instance(self) -> stale.Instance:
        """The registration; EmulationError outside the `with` block."""
        if self._instance is None:
            raise EmulationError("the emulated laptop is not there: use it in a `with` block")
        return self._instance

    @property
    def token(self) -> str:
        """The common part of the names of its namespaces, as in `cedos-TOKEN-client`."""
        return self.instance.token

    @property
    def directory(self) -> Path:
        return self.instance.directory

    def _start(self) -> None:
        _require_namespaces()
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise EmulationError("an emulated laptop blocks: use it through asyncio.to_thread")
        # Remove what a killed run left; from here on signals end the program through `close`.
        stale.remove_stale()
        self._guard.begin()
        with uninterrupted():
            self._instance = stale.Instance()
        self._build()
        self.attach(*self._accesses)

    def close(self) -> None:
        """End all links and processes inside, and remove what was made; a second call does nothing."""
        if self._instance is None:
            self._guard.end()
            return
        with uninterrupted():
            # Clear this object first, so that a second call does nothing; then end links, phones and
            # namespaces in this order.
            links = list(self.links.values())
            phones = [net.phone for net in self._networks.values() if net.phone is not None]
            instance, self._instance = self._instance, None
            self._networks.clear()
            try:
                for link in links:
                    link.stop()
                for phone in phones:
                    os.close(phone)
                instance.close()
                for link in links:
                    link.wait()
            finally:
                self._guard.end()

    def attach(self, *accesses: Access) -> None:
        """Attach networks in place of those of the same kinds; all of them start at the same time.

        A replaced network ends at once, and packets on their way there are lost. The client's interface
        loses its carrier until the new network is there.

        EmulationError: a link did not start; all of `accesses` are then detached.
        """
        kinds = [access.kind for access in accesses]
        if len(set(kinds)) != len(kinds):
            raise ValueError("one network of each kind")
        # Remember the links that are replaced, to wait for their end after the new ones serve.
        before = [net.link for kind in kinds if (net := self._networks.get(kind)) and net.link]
        try:
            for kind in kinds:
                self._stop(kind)
            for access in accesses:
                self._launch(access)
            # Prepare all links, then start them side by side.
            links = [self.links[kind] for kind in kinds]
            for link in links:
                link.prepare()
            # Begin all replays at once: their traces were recorded at the same time.
            for link in links:
                link.start()
            for link in links:
                link.finish()
            for kind in kinds:
                self._tether(kind)
        except BaseException:
            self.detach(*kinds)
            raise
        finally:
            for link in before:
                link.wait()

    def detach(self, *kinds: NetworkKind | str) -> None:
        """Detach networks: their interfaces lose the carrier. Those not attached are ignored."""
        stopped = [self._stop(NetworkKind(kind)) for kind in kinds]
        for kind in kinds:
            self._rewire(NetworkKind(kind), None)
        for link in stopped:
            if link is not None:
                link.wait()

    def alive(self) -> bool:
        return all(link.alive() for link in self.links.values())

    def prefer(self, interface: str | None) -> None:
        """Make `wlan0` or `lte0` the default route before all others; None: as at the start."""
        wiring.prefer(self.client, interface)

    def received_bytes(self, interface: str) -> int:
        """Return the bytes that the client's interface has received since it exists, headers included."""
        (link,) = json.loads(self.client.ip("-s", "-j", "link", "show", interface))
        return int(link["stats64"]["rx"]["bytes"])

    def _build(self) -> None:
        self.client = self.instance.namespace("client")
        self.server = self.instance.namespace("server")
        wiring.set_up_hosts(self.client, self.server)

    def _launch(self, access: Access) -> None:
        """Start an emulated link, without a phone yet; make its provider and its wire the first time."""
        kind = access.kind
        # A provider is made once, and stays while its links are replaced.
        if kind not in self._networks:
            isp = self.instance.namespace(f"{kind}-isp")
            wiring.set_up_provider(kind, isp, self.server)
            self._networks[kind] = _Network(isp)
        wiring.set_up_wire(kind, self.client, self.server, self._source_rules)
        net = self._networks[kind]
        self._starts += 1
        # Each start has a folder of its own for the link's logs.
        net.directory = self.directory / f"{kind}-{self._starts}"
        net.directory.mkdir(mode=0o755)
        net.link = launch(access, net.isp, wiring.subnet(kind), net.directory, self._nice)
        net.access = access
        self.instance.add_session(net.link.pid)

    def _tether(self, kind: NetworkKind) -> None:
        """Move the wire of a network into its phone, and make the phone the client's gateway."""
        link = self.links[kind]
        try:
            phone = os.open(f"/proc/{link.phone_pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            link.check()
            raise
        self._rewire(kind, phone)
        wiring.connect_phone(kind, phone, self.client)

    def _rewire(self, kind: NetworkKind, phone: int | None) -> None:
        """Move the far end of the wire into a phone's namespace, or back to the server's.

        `phone`: an open file of the namespace; None: no phone. The phone that the wire leaves may have
        ended: the open file has kept its namespace.
        """
        net = self._networks.get(kind)
        if net is None or net.phone == phone:
            return
        # Move the wire from its present namespace into the next one; without a phone that is the
        # server's.
        before, net.phone = net.phone, phone
        with self.server.path.open("rb") as server:
            waiting = server.fileno()
            wiring.move_wire(
                kind, waiting if before is None else before, waiting if phone is None else phone
            )
        if before is not None:
            os.close(before)

    def _stop(self, kind: NetworkKind) -> MahimahiLink | None:
        """End a link without waiting for its processes.

        The provider forgets its connections, and refuses packets that still come for them.
        """
        net = self._networks.get(kind)
        if net is None or net.link is None:
            return None
        link, net.link, net.access = net.link, None, None
        link.stop()
        self.instance.remove_session(link.pid)
        if net.directory is not None:
            shutil.rmtree(net.directory, ignore_errors=True)
        # Let the provider's NAT forget old connections, so that it refuses their packets.
        with net.isp.entered():
            netns.forget_connections()
        return link


def replay(
    laptop: Laptop,
    place: Place,
    # The second of the traces at which the replay begins; at their end they begin again.
    start_s: float,
    *,
    length_s: float | None = None,  # replay only so many seconds (see `Trace.rotated`); None: all
    # Base round trips for `wifi` and `cellular`, s; one that is missing is the place's own.
    rtts_s: Mapping[str, float | None] | None = None,
) -> float:
    """Attach both networks of a place, in place of those that are attached.

    Returns:
        The monotonic instant at which the replay began at `start_s`. The two networks begin within some
        hundredths of a second; this is the later one.
    """
    accesses = []
    for name, network in place.networks.items():
        given_s = (rtts_s or {}).get(name)
        rtt_s = network.rtt_s if given_s is None else given_s
        access = Access(NetworkKind(name), up=network.up, down=network.down, rtt_s=rtt_s)
        accesses.append(access.rotated(start_s, length_s))
    laptop.attach(*accesses)
    return max(link.started_at_s for link in laptop.links.values())


class Silence:
    """The silence of a network that is up: its provider drops all packets, in both directions.

    `back_only`: the provider drops only packets towards the client.
    """

    def __init__(self, laptop: Laptop, interface: str, *, back_only: bool = False) -> None:
        kind = next(kind for kind, name in INTERFACES.items() if name == interface)
        self._isp = Namespace(laptop.instance.namespace_name(f"{kind}-isp"))
        self._rule = ("PREROUTING", *(("-i", "up0") if back_only else ()), "-j", "DROP")
        self._on = False

    def set(self, on: bool) -> None:
        if on != self._on:
            self._isp.run("iptables", "-w", "-t", "raw", "-A" if on else "-D", *self._rule)
            self._on = on

    @contextmanager
    def when_told(self) -> Iterator[Callable[[], None]]:
        """Yield a function that begins the silence. The silence ends with the block."""
        try:
            yield partial(self.set, True)
        finally:
            self.set(False)


_MOST_SUBFLOWS = "4"


def use_kernel_path_manager(laptop: Laptop) -> None:
    """Give the client an MPTCP endpoint for each network, so that the kernel opens a subflow over each.

    The laptop needs `source_rules`, or a second subflow would leave through the first network.
    """
    for namespace in (laptop.client, laptop.server):
        namespace.ip("mptcp", "limits", "set", "subflows", _MOST_SUBFLOWS, "add_addr_accepted", "0")
    for kind in (NetworkKind.WIFI, NetworkKind.CELLULAR):
        laptop.client.ip(
            "mptcp", "endpoint", "add", ADDRESSES[kind], "dev", INTERFACES[kind], "subflow"
        )
