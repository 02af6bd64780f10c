"""A helper's kernel forwards for one requestor to one gateway; everything else on its way stays shut."""

import asyncio
import contextlib
import errno
import os
import socket
from ipaddress import IPv4Address, ip_interface
from pathlib import Path

import pytest
from kit.namespaces import echo
from kit.waiting import wait_until

from cedos.errors import AlreadyRunningError, HostError, SteeringError
from cedos.host.monitor.events import Change
from cedos.host.monitor.links import LinkMonitor
from cedos.host.steer.kernel import filter_rules
from cedos.host.steer.kernel.forwarding_filter import MOST_CONNECTIONS_OF_ONE, ForwardedRequestor
from cedos.host.steer.sharing.forwarding import Forwarding
from cedos.host.steer.sharing.helper_paths import HelperPaths, is_free
from cedos.host.steer.sharing.kernel import SharingKernel, SharingRole
from cedos.host.steer.sharing.undo import open_journal, restore_sharing, undo_sharing
from cedos.session.io.links import EgressReader

GATEWAY, PORT = IPv4Address("198.51.100.1"), 7009
OTHER = "198.51.100.2"
METADATA = "169.254.169.254"
HELPER, REQUESTOR, STRANGER = "10.77.0.1", "10.77.0.9", "10.77.0.66"
PRINTER = "192.168.5.7"
LIMIT = 1_000_000
PRICE = 500_000


class Neighbours:
    """A helper with an uplink and a network of its own, a requestor and a stranger on its link."""

    def __init__(self, make, directory):
        self.directory = directory
        self.helper, self.requestor, self.stranger, self.server, self.lan = (
            make(name) for name in ("helper", "requestor", "stranger", "server", "lan")
        )
        self.air = make("air")
        self.air.ip("link", "add", "br0", "type", "bridge")
        self.air.ip("link", "set", "br0", "up")
        for host, address in (
            (self.helper, HELPER), (self.requestor, REQUESTOR), (self.stranger, STRANGER)
        ):  # fmt: skip
            name = f"p{address.rpartition('.')[2]}"
            host.ip("link", "add", "wlan0", "type", "veth", "peer", name, "netns", self.air.name)
            host.ip("addr", "add", f"{address}/24", "dev", "wlan0")
            host.ip("link", "set", "wlan0", "up")
            self.air.ip("link", "set", name, "master", "br0", "up")
        self._wire("lte0", "100.70.0", self.server)
        self._wire("eth0", PRINTER.rpartition(".")[0], self.lan, last=7)
        self.helper.ip("route", "add", "default", "via", "100.70.0.1")
        for address in (str(GATEWAY), OTHER, METADATA):
            self.server.ip("addr", "add", f"{address}/32", "dev", "lo")
        # As strict as a distribution may set it.
        for name in ("wlan0", "lte0"):
            self.helper.sysctl(f"net.ipv4.conf.{name}.rp_filter", 1)
        self.sockets = []
        for host in (self.server, self.lan, self.helper):
            self._serve(host, PORT)
        self._serve(self.server, 22)

    def _wire(self, name, subnet, far, last=1):
        self.helper.ip("link", "add", name, "type", "veth", "peer", name, "netns", far.name)
        for where, end in ((self.helper, 2), (far, last)):
            where.ip("addr", "add", f"{subnet}.{end}/24", "dev", name)
            where.ip("link", "set", name, "up")

    def _serve(self, host, port):
        with host.entered():
            listening = socket.create_server(("", port))
        self.sockets.append(listening)
        echo(listening, self.sockets)

    def state(self, of):
        parts = [of.ip("rule"), of.ip("-4", "route", "show", "table", "all"), of.ip("-4", "addr")]
        parts += [of.run("iptables-save").stdout, of.ip("mptcp", "endpoint")]
        parts += [of.ip("mptcp", "limits"), of.ip("neigh", "show", "nud", "permanent")]
        parts.append(of.run("sysctl", "-a", "-r", r"^net\.ipv4\.conf.*forwarding").stdout)
        lines = [line for part in parts for line in part.splitlines()]
        return "\n".join(line for line in lines if not line.startswith("# "))

    def reach(
        self, to, port = PORT, *, host = None, own = None,
        limit_s = 10.0
    ):  # fmt: skip
        """Return the address that the server there sees of a connection; None: there is no answer.

        `limit_s`: a second where none is expected.
        """
        with (host or self.requestor).entered():
            trying = socket.socket()
        with trying, contextlib.suppress(OSError):
            trying.settimeout(limit_s)
            if own is not None:
                trying.bind((str(own), 0))
            trying.connect((to, port))
            trying.sendall(b"who\n")
            return trying.recv(100).decode() or None
        return None

    def wait_until_closed(self):
        """Wait until the server has no connection: then none of their packets is on its way."""
        listed = ("ss", "-Htn", "state", "connected", "sport", "=", f":{PORT}")
        wait_until(lambda: not self.server.run(*listed).stdout)

    def hardware_address(self):
        with self.requestor.entered():
            kernel = SharingKernel()
            try:
                return kernel.link("wlan0").hardware_address
            finally:
                kernel.close()


@pytest.fixture
def there(make_namespace, tmp_path):
    made = Neighbours(make_namespace, tmp_path)
    yield made
    for one in made.sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


class Shared:
    """Both sides of one path, made and undone as their commands do it."""

    def __init__(self, there, limit_bytes=LIMIT):
        self._there = there
        self._journals = []
        with there.requestor.entered():
            self.near = SharingKernel()
            self.paths = HelperPaths(self.near, self._journal("near", SharingRole.REQUEST), "wlan0")
            self.own = self.paths.new_address()
        with there.helper.entered():
            self.kernel = SharingKernel()
            journal = self._journal("far", SharingRole.HELP)
            self.forwarding = Forwarding(self.kernel, journal, "wlan0", limit_bytes=limit_bytes)
            self.admitted = ForwardedRequestor(self.own, there.hardware_address(), GATEWAY, PORT)
            self.forwarding.admit(self.admitted)
        with there.requestor.entered():
            self.path = self.paths.add(IPv4Address(HELPER), GATEWAY, self.own, PRICE)

    def _journal(self, host, role):
        journal = open_journal(self._there.directory / host, role)
        self._journals.append(journal)
        return journal

    def carried(self):
        with self._there.helper.entered():
            return self.forwarding.read_carried()[self.own].bytes

    def die(self):
        for journal in self._journals:
            journal.close()
        self.kernel.close()
        self.near.close()

    def undo(self):
        """Undo the changes of each side, as at its end."""
        sides = (
            (self._there.helper, self.kernel, SharingRole.HELP, self._journals[1]),
            (self._there.requestor, self.near, SharingRole.REQUEST, self._journals[0]),
        )
        for host, kernel, role, journal in sides:
            with host.entered():
                assert not undo_sharing(kernel, role, journal.read()).left
                journal.remove()
        self.die()


@pytest.fixture
def shared(there):
    made = Shared(there)
    yield made
    made.die()


def test_the_requestors_address_leads_by_the_helper_to_the_gateway(there, shared):
    assert there.reach(str(GATEWAY), limit_s=1.0) is None  # it has no network of its own
    assert there.reach(str(GATEWAY), own=shared.own) == "100.70.0.2"  # the helper's
    there.wait_until_closed()
    assert 500 < shared.carried() < 2000


async def test_the_daemons_monitor_sees_a_network_with_a_price(there, shared):
    with there.requestor.entered():
        async with LinkMonitor() as monitor:
            events = monitor.events()
            (known,) = monitor.helpers()
            assert (known.name, known.interface, known.up) == ("helper-1", "wlan0", True)
            assert known.addresses == (ip_interface(f"{shared.own}/32"),)
            assert (known.leads_to, known.gateways) == (GATEWAY, (IPv4Address(HELPER),))
            assert known.money_per_mb == pytest.approx(PRICE / 1e9)
            for own in monitor.networks():
                assert shared.own not in {each.ip for each in own.addresses}
            # It leaves, comes back, and is gone; each time the kernel says so.
            async with asyncio.timeout(10):
                for change in (False, True):
                    shared.paths.prefer(shared.own, change)
                    seen = await anext(events)
                    assert (seen.network.up, seen.network.money_per_mb) == (
                        *(change, known.money_per_mb),
                    )
                shared.paths.remove(shared.own)
                while (seen := await anext(events)).change is not Change.LOST:
                    pass
            assert (seen.network.name, monitor.helpers()) == ("helper-1", [])


@pytest.mark.parametrize(
    ("to", "port"),
    [
        (str(GATEWAY), 22), (OTHER, PORT), (METADATA, PORT), (PRINTER, PORT), ("127.0.0.1", PORT),
        (HELPER, PORT), ("100.70.0.2", PORT), ("192.168.5.2", PORT), (STRANGER, PORT),
    ],
)  # fmt: skip
def test_it_leads_nowhere_else(there, shared, to, port):
    """A hostile requestor routes everything by the helper, whatever its own rules say."""
    there.requestor.ip("rule", "add", "pref", "10", "from", str(shared.own), "lookup", "99")
    there.requestor.ip("route", "add", "default", "via", HELPER, "dev", "wlan0", "table", "99")
    if to == "127.0.0.1":  # which it sends out as any other
        there.requestor.ip("rule", "add", "pref", "1", "lookup", "local")
        there.requestor.ip("rule", "add", "pref", "0", "to", "127.0.0.1", "lookup", "99")
        there.requestor.ip("rule", "del", "pref", "0", "lookup", "local")
        there.requestor.sysctl("net.ipv4.conf.all.route_localnet", 1)
    assert there.reach(to, port, own=shared.own, limit_s=1.0) is None
    assert there.reach(str(GATEWAY), own=shared.own) == "100.70.0.2"


@pytest.mark.parametrize("taken", [METADATA, "169.254.5.5", "169.254.6.6", "100.70.0.1"])
def test_a_requestor_takes_no_address_that_the_helper_s_packets_reach(there, shared, taken):
    """Packets of the helper to a provider's metadata service, or a printer, went to the requestor."""
    there.helper.ip("route", "add", "169.254.5.0/24", "dev", "eth0")
    there.lan.ip("addr", "add", "169.254.5.5/32", "dev", "lo")
    there.stranger.ip("addr", "add", "169.254.6.6/32", "dev", "wlan0")
    there.helper.ip("route", "add", "169.254.6.0/24", "dev", "wlan0")
    there.helper.run("ping", "-c", "1", "-W", "10", "169.254.6.6")
    before = there.reach(taken, host=there.helper)
    hostile = ForwardedRequestor(IPv4Address(taken), there.hardware_address(), GATEWAY, PORT)
    with there.helper.entered(), pytest.raises(SteeringError, match="another"):
        shared.forwarding.admit(hostile)
    assert there.reach(taken, host=there.helper) == before
    assert there.reach(str(GATEWAY), own=shared.own) == "100.70.0.2"


def test_its_other_addresses_and_other_hosts_are_not_forwarded(there, shared):
    for host in (there.requestor, there.stranger):
        host.ip("route", "add", "default", "via", HELPER)
        for to in (str(GATEWAY), METADATA, PRINTER):
            assert there.reach(to, host=host, limit_s=1.0) is None
    assert there.reach(str(GATEWAY), own=shared.own) == "100.70.0.2"


def test_a_neighbour_cannot_send_with_the_requestors_address(there, shared):
    there.stranger.ip("addr", "add", f"{shared.own}/32", "dev", "wlan0")
    there.stranger.ip("route", "add", str(GATEWAY), "via", HELPER, "dev", "wlan0")
    before = shared.carried()
    # Answers go to the requestor's own hardware, whatever is said of the address by ARP.
    there.stranger.run("ping", "-c", "1", "-W", "1", "-I", str(shared.own), HELPER, check=False)
    assert there.reach(str(GATEWAY), host=there.stranger, own=shared.own, limit_s=1.0) is None
    assert shared.carried() == before
    assert there.reach(str(GATEWAY), own=shared.own) == "100.70.0.2"


def test_the_kernel_stops_what_exceeds_the_limit(there, shared):
    with there.requestor.entered():
        sending = socket.create_connection((str(GATEWAY), PORT), 5, (str(shared.own), 0))
    with sending, pytest.raises(OSError, match=r"reset|timed out"):
        _send_and_receive(sending, 20 * LIMIT)
    assert LIMIT - 100_000 < shared.carried() <= LIMIT
    assert there.reach(str(GATEWAY), own=shared.own, limit_s=1.0) is None
    # Nor does it help to come again.
    with there.helper.entered():
        shared.forwarding.admit(shared.admitted)
    assert there.reach(str(GATEWAY), own=shared.own, limit_s=1.0) is None


def test_a_requestor_s_connections_leave_room_in_the_helper_s_table(there, shared):
    """Each SYN of a requestor was an entry among the connections of the helper itself."""
    refused = ("-p", "tcp", "--dport", str(PORT), "--syn", "-j", "DROP")
    with there.requestor.entered(), contextlib.ExitStack() as kept:
        living = socket.create_connection((str(GATEWAY), PORT), 5, (str(shared.own), 0))
        kept.enter_context(living)
        there.server.run("iptables", "-I", "INPUT", *refused)
        for _ in range(2 * MOST_CONNECTIONS_OF_ONE):
            one = kept.enter_context(socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
            one.bind((str(shared.own), 0))
            one.connect_ex((str(GATEWAY), PORT))
        with there.helper.entered():
            count = Path("/proc/sys/net/netfilter/nf_conntrack_count").read_text()
        assert MOST_CONNECTIONS_OF_ONE <= int(count) <= MOST_CONNECTIONS_OF_ONE + 10
        living.sendall(b"who\n")
        assert living.recv(100) == b"100.70.0.2"


def _send_and_receive(sending, count):
    sending.settimeout(3)
    while count > 0:
        count -= sending.send(os.urandom(50_000))
        sending.recv(50_000)


def test_quota_and_counter_go_on_while_others_come_and_go(there, shared):
    there.reach(str(GATEWAY), own=shared.own)
    there.wait_until_closed()
    before = shared.carried()
    other = ForwardedRequestor(IPv4Address("169.254.9.9"), bytes(6), GATEWAY, PORT)
    with there.helper.entered():
        shared.forwarding.admit(other)
        assert shared.carried() == before > 0
        shared.forwarding.dismiss(other.address)
        assert shared.carried() == before
        assert list(shared.forwarding.read_carried()) == [shared.own]
        assert "169.254.9.9" not in there.state(there.helper)


def test_a_dismissed_requestor_is_cut_off_at_once(there, shared):
    with answered(there, shared, 10) as living:
        living.settimeout(1)
        with there.helper.entered():
            shared.forwarding.dismiss(shared.own)
        living.sendall(b"who\n")
        with pytest.raises(TimeoutError):
            living.recv(100)
    assert there.reach(str(GATEWAY), own=shared.own, limit_s=1.0) is None


def test_no_connection_of_other_programs_goes_by_a_helper(there, shared):
    """Call any server the gateway: MPTCP connections to it had a subflow by the helper, in clear."""
    assert str(shared.own) in there.state(there.requestor)
    assert not there.requestor.ip("mptcp", "endpoint")
    with there.requestor.entered():
        shared.paths.remove(shared.own)
    assert str(shared.own) not in there.state(there.requestor)


def test_a_deprecated_address_keeps_its_connections_and_is_told_to_sessions(there, shared):
    with there.requestor.entered(), contextlib.closing(EgressReader()) as reader:
        living = socket.create_connection((str(GATEWAY), PORT), 5, (str(shared.own), 0))
        with living:
            for preferred in (False, True):
                shared.paths.prefer(shared.own, preferred)
                (egress,) = reader.egresses(GATEWAY)
                assert egress.leaving is not preferred
                assert ("deprecated" in there.requestor.ip("-4", "addr")) is not preferred
                living.sendall(b"who\n")
                assert living.recv(100) == b"100.70.0.2"
        shared.paths.prefer(IPv4Address("169.254.3.3"), False)  # none of ours
    assert "169.254.3.3" not in there.state(there.requestor)


def test_both_sides_leave_nothing(there):
    hosts = (there.helper, there.requestor)
    before = [there.state(host) for host in hosts]
    shared = Shared(there)
    assert [there.state(host) for host in hosts] != before
    shared.undo()
    assert [there.state(host) for host in hosts] == before


def test_what_a_killed_side_left_is_undone_by_its_journal(there):
    hosts = {
        "far": (there.helper, SharingRole.HELP),
        "near": (there.requestor, SharingRole.REQUEST),
    }
    before = {name: there.state(host) for name, (host, _) in hosts.items()}
    shared = Shared(there)
    for name, (host, role) in hosts.items():
        with host.entered(), pytest.raises(AlreadyRunningError):
            restore_sharing(there.directory / name, role)
    shared.die()  # as kill -9 does: the kernel's state stays, the locks go
    for name, (host, role) in hosts.items():
        with host.entered():
            told = restore_sharing(there.directory / name, role, dry_run=True)
            done = restore_sharing(there.directory / name, role)
            assert told.done == done.done != ()
            assert not done.left
            assert restore_sharing(there.directory / name, role).done == ()
        assert there.state(host) == before[name]


def test_what_another_interface_of_that_name_forwards_stays(there):
    """A phone that is plugged in anew, say; `restore` ended what another program forwards there."""
    shared = Shared(there)
    shared.die()
    there.helper.ip("link", "del", "wlan0")
    there.helper.ip("link", "add", "wlan0", "type", "bridge")
    there.helper.sysctl("net.ipv4.conf.wlan0.forwarding", 1)
    folder = there.directory / "far"
    with there.requestor.entered():
        done = restore_sharing(folder, SharingRole.HELP)
        assert ["another network namespace" in each for each in done.left] == [True]
    with there.helper.entered():
        assert not restore_sharing(folder, SharingRole.HELP).left
    assert there.helper.sysctl("net.ipv4.conf.wlan0.forwarding") == "1"
    assert there.helper.sysctl("net.ipv4.conf.lte0.forwarding") == "0"


def strangers(there, count=50):
    """Return how many of a stranger's datagrams are forwarded to the helper's other networks."""

    def heard():
        hosts = there.server, there.lan
        counted = [host.run("cat", "/proc/net/snmp").stdout.split("\nUdp: ")[2] for host in hosts]
        return sum(int(each.split()[1]) for each in counted)  # to a port of no socket

    before = heard()
    with there.stranger.entered(), socket.socket(type=socket.SOCK_DGRAM) as sending:
        for to in (OTHER, PRINTER) * count:
            with contextlib.suppress(OSError):  # the answer to an earlier one
                sending.sendto(b"x" * 1000, (to, 5000))
    return heard() - before


FLUSHES = {
    "rules of the filter": "iptables -F",
    "the filter": "iptables -F; iptables -X; iptables -t nat -F; iptables -t nat -X",
    "a chain of the filter": "iptables -F CEDOSHARE_FWD",
    "policy rules": "ip rule flush; ip rule add pref 32766 lookup main",
    "the shared interface's name": "ip link set wlan0 name wlp3s0",
    "the uplink's name": "ip link set lte0 name wwp7",
    "the shared interface": "ip link del wlan0",
}


@pytest.mark.parametrize("changed", FLUSHES)
def test_nothing_is_forwarded_once_others_change_what_bounds_it(there, changed):
    """A stranger on the link had everything forwarded, without limit and for good."""
    there.stranger.ip("route", "add", "default", "via", HELPER)
    shared = Shared(there)
    assert strangers(there) == 0
    with there.helper.entered():
        shared.forwarding.check()
    there.helper.run("sh", "-c", FLUSHES[changed])
    assert strangers(there) == 0  # even until that is noticed
    with there.helper.entered(), pytest.raises(SteeringError, match="changed"):
        shared.forwarding.check()
    assert "forwarding = 1" not in there.state(there.helper)
    assert there.reach(str(GATEWAY), own=shared.own, limit_s=1.0) is None
    shared.undo()
    assert "CEDOSHARE" not in there.state(there.helper)


@pytest.mark.parametrize("renamed", ["wlan0", "lte0"])
@pytest.mark.parametrize("end", ["undone", "restored"])
def test_what_a_renamed_interface_forwards_is_undone(there, renamed, end):
    """Rename it: the helper forwarded on for good, and `restore` found nothing left."""
    there.stranger.ip("route", "add", "default", "via", HELPER)
    before = there.state(there.helper)
    shared = Shared(there)
    there.helper.ip("link", "set", renamed, "name", "other7")
    if end == "undone":
        shared.undo()
    else:
        shared.die()
        with there.helper.entered():
            assert not restore_sharing(there.directory / "far", SharingRole.HELP).left
    assert there.helper.sysctl("net.ipv4.conf.other7.forwarding") == "0"
    assert strangers(there) == 0
    there.helper.ip("link", "set", "other7", "name", renamed)
    assert sorted(there.state(there.helper).splitlines()) == sorted(before.splitlines())


def test_what_cannot_be_ended_stays_bounded(there, monkeypatch):
    """The filter went though the interfaces forwarded on."""

    def refused(_kernel, interface, _on):
        raise OSError(errno.EROFS, "the file system is read-only", interface)

    there.stranger.ip("route", "add", "default", "via", HELPER)
    shared = Shared(there)
    shared.die()
    folder = there.directory / "far"
    with there.helper.entered():
        with monkeypatch.context() as broken:
            broken.setattr(SharingKernel, "forward", refused)
            assert len(restore_sharing(folder, SharingRole.HELP).left) == 2
        assert strangers(there) == 0
        assert not restore_sharing(folder, SharingRole.HELP).left


def test_a_flushed_requestor_s_connections_end_at_a_router(router):
    """Undo what a flush has left: the address translation went on for them."""
    shared = Shared(router)
    with answered(router, shared, 1) as living:
        for program in ("iptables", "ip6tables"):
            router.helper.run("sh", "-c", f"{program} -F; {program} -X")
            for act in ("-D POSTROUTING -j", "-F", "-X"):
                router.helper.run(program, "-t", "nat", *act.split(), "CEDOSHARE_NAT")
        router.helper.run("ip6tables", "-t", "nat", "-X")
        with router.helper.entered():
            undo_sharing(shared.kernel, SharingRole.HELP, shared._journals[1].read())
        living.sendall(b"who\n")
        with pytest.raises(TimeoutError):
            living.recv(100)
    shared.undo()


def test_a_journals_folder_is_no_link(there):
    """The service's user led root's `cedos restore` so to any folder, where it removed and made files."""
    elsewhere, state = there.directory / "elsewhere", there.directory / "state"
    for folder in (elsewhere, state):
        folder.mkdir()
    os.chown(state, 61_000, 61_000)
    (elsewhere / "journal.jsonl").write_text("root's\n")
    (state / "share-help").symlink_to(elsewhere)
    with there.helper.entered():
        done = restore_sharing(state, SharingRole.HELP)
        with pytest.raises(SteeringError):
            open_journal(state, SharingRole.HELP)
    assert "share-help" in done.left[0]
    assert [each.name for each in elsewhere.iterdir()] == ["journal.jsonl"]


def test_forwarding_of_the_host_itself_stays(there):
    """A router stays one, and what it forwards besides goes on."""
    there.helper.sysctl("net.ipv4.ip_forward", 1)
    there.stranger.ip("route", "add", "default", "via", HELPER)
    there.server.ip("route", "add", "10.77.0.0/24", "via", "100.70.0.2")
    shared = Shared(there)
    assert there.reach(OTHER, host=there.stranger) == STRANGER
    assert there.reach(OTHER, own=shared.own, limit_s=1.0) is None
    shared.undo()
    assert there.helper.sysctl("net.ipv4.conf.wlan0.forwarding") == "1"


@pytest.fixture
def router(there):
    """Return the street whose helper was a router before it helps."""
    there.helper.sysctl("net.ipv4.ip_forward", 1)
    there.helper.ip("route", "add", "169.254.0.0/16", "dev", "wlan0")  # as zeroconf has it
    there.helper.run(
        "iptables", "-t", "nat", "-A", "POSTROUTING", "-o", "docker0", "-j", "MASQUERADE"
    )
    return there


def answered(there, shared, limit_s):
    """Return a connection of the requestor, by way of the helper, that the gateway has answered."""
    with there.requestor.entered():
        living = socket.create_connection((str(GATEWAY), PORT), 5, (str(shared.own), 0))
    living.settimeout(limit_s)
    living.sendall(b"who\n")
    assert living.recv(100)
    return living


@pytest.mark.parametrize("end", ["dismissed", "undone"])
def test_a_router_forwards_no_connection_of_a_requestor_that_was_left(router, end):
    """The requestor's connections went on behind the address translation, without limit or receipt."""
    shared = Shared(router)
    with answered(router, shared, 1) as living:
        if end == "dismissed":
            with router.helper.entered():
                shared.forwarding.dismiss(shared.own)
        else:
            with router.helper.entered():
                undo_sharing(shared.kernel, SharingRole.HELP, shared._journals[1].read())
        living.sendall(b"who\n")
        with pytest.raises(TimeoutError):
            living.recv(100)
    shared.undo()


def test_the_daemon_s_wall_stands_before_what_is_forwarded(there):
    """A daemon that runs before has its chains first; a network that it bars later is barred here too."""
    with there.helper.entered():
        filter_rules.bar([])
    shared = Shared(there)
    with answered(there, shared, 2) as living:
        with there.helper.entered():
            filter_rules.bar(["lte0"])
        before = shared.carried()
        with contextlib.suppress(OSError):
            living.sendall(b"who\n")
            assert not living.recv(100)
    assert there.reach(str(GATEWAY), own=shared.own, limit_s=1.0) is None
    assert shared.carried() == before
    shared.undo()


def test_without_an_uplink_there_is_nothing_to_share(there):
    there.helper.ip("route", "del", "default")
    with there.helper.entered():
        kernel = SharingKernel()
        journal = open_journal(there.directory, SharingRole.HELP)
        with contextlib.closing(kernel), contextlib.closing(journal):
            with pytest.raises(HostError, match="no default route"):
                Forwarding(kernel, journal, "wlan0", limit_bytes=LIMIT)
            with pytest.raises(HostError, match="does not exist"):
                Forwarding(kernel, journal, "wlan7", limit_bytes=LIMIT)
        assert not (there.directory / "share-help" / "journal.jsonl").exists()


def test_an_address_that_a_host_of_the_link_has_is_not_taken(there):
    there.stranger.ip("addr", "add", "169.254.7.7/16", "dev", "wlan0")
    with there.requestor.entered():
        kernel = SharingKernel()
        with contextlib.closing(kernel):
            link = kernel.link("wlan0")
            assert not is_free(link, IPv4Address("169.254.7.7"))
            assert is_free(link, IPv4Address("169.254.7.8"))
