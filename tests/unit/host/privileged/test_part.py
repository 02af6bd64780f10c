"""Refusals of the privileged part, also to the daemon: an attacker may control that by then."""

import errno
import gc
import inspect
import random
import socket
import weakref
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import get_type_hints

import pytest
from kit.steer_kernel import MemoryKernel

from cedos.host.privileged import part as module
from cedos.host.privileged import wire
from cedos.host.privileged.part import PrivilegedPart
from cedos.host.privileged.process import answer_request
from cedos.host.steer.journal_records import (
    CONNTRACK_ACCOUNTING,
    FILTER,
    OWN_SOURCES,
    RESCUE,
    ROUTING,
    TCP_RMEM,
    HostRecord,
    SysctlRecord,
    journal_line,
    own_sources,
)
from cedos.host.steer.kernel.interface import FilterPlan, SteeringKernel
from cedos.host.steer.kernel.rescue import RescueKernel, operations
from cedos.host.steer.routing_plan import REFUSING_ROUTE, TABLE_BASE, Preference
from cedos.host.steer.undo import restore
from cedos.kernel import conntrack
from cedos.kernel.netlink import NETLINK_ROUTE, NetlinkMessage
from cedos.kernel.policy_routing import (
    MAIN_TABLE,
    RTN_THROW,
    RTN_UNICAST,
    RTN_UNREACHABLE,
    Route,
    Rule,
)
from cedos.kernel.privileges import EventSocket, PacketSocket
from cedos.model import FlowKey

RULE = Rule(4, Preference.DEFAULT, TABLE_BASE + 3)
ROUTE = Route(TABLE_BASE + 3, ip_network("0.0.0.0/0"), 3, ip_address("192.0.2.1"))
KEY = FlowKey(ip_address("192.0.2.9"), 4000, ip_address("192.0.2.1"), 53, "udp")


class Asked:
    """A part on a kernel in memory; `ask` goes over the wire."""

    def __init__(self, state):
        self.kernel = MemoryKernel()
        self.part = PrivilegedPart(state)
        self.ask("open_journal")

    def ask(self, name, *arguments):
        found = answer_request(self.part, name, wire.plain(arguments))
        assert isinstance(found, list)
        return found

    def refuses(self, name, *arguments):
        before = list(self.kernel.log)
        kind = self.ask(name, *arguments)[0]
        assert self.kernel.log == before or kind == "done"
        return kind == "refused"

    def knows(self, *records):
        for record in records:
            assert self.ask("append_to_journal", journal_line(record))[0] == "done"


@pytest.fixture
def asked(tmp_path, monkeypatch):
    kernel = MemoryKernel()
    monkeypatch.setattr(module, "LinuxKernel", lambda: kernel)
    made = Asked(tmp_path)
    made.kernel = kernel
    yield made
    made.ask("close_journal")


def test_no_argument_of_a_question_has_a_default():
    """The proxy sends what it is given: `remove_wall()` was refused, and a daemon's end undid no wall."""
    defaults = {
        method.__name__
        for interface in (SteeringKernel, RescueKernel)
        for method, _ in operations(interface)
        for each in inspect.signature(method).parameters.values()
        if each.default is not inspect.Parameter.empty
    }
    assert defaults == set()


def test_what_the_journal_does_not_know_is_not_begun(asked):
    assert asked.refuses("add_rules", (RULE,))
    assert asked.refuses("add_routes", (ROUTE,))
    assert asked.refuses("track_flows")
    assert asked.refuses("bar", ("wlan0",))
    assert asked.refuses("raise_wall", ("wlan0",))
    assert asked.refuses("rescue_prepare")
    assert asked.refuses("rescue_adopt", KEY)
    assert asked.refuses("write_sysctl", CONNTRACK_ACCOUNTING, "1")
    asked.knows(
        HostRecord({CONNTRACK_ACCOUNTING: "0"}),
        *(ROUTING, FILTER, RESCUE, SysctlRecord(CONNTRACK_ACCOUNTING, "0", "1")),
    )
    assert asked.ask("add_rules", (RULE,)) == ["done", None]
    assert asked.ask("add_routes", (ROUTE,)) == ["done", None]
    assert asked.ask("bar", ("wlan0",)) == ["done", None]
    assert asked.ask("write_sysctl", CONNTRACK_ACCOUNTING, "1") == ["done", None]
    assert asked.kernel.own == [RULE]


def test_the_way_back_leads_to_what_the_host_had(asked, tmp_path):
    """Journal a false way back: `cedos restore` then left the host without room for TCP."""
    kernel = asked.kernel
    own, bad = kernel.sysctls[TCP_RMEM], "1 1 1"
    for record in (SysctlRecord(TCP_RMEM, bad, own), HostRecord({TCP_RMEM: bad})):
        assert asked.refuses("append_to_journal", journal_line(record))
    asked.knows(HostRecord({TCP_RMEM: own}), SysctlRecord(TCP_RMEM, own, bad))
    assert asked.ask("write_sysctl", TCP_RMEM, bad) == ["done", None]
    for forgets in ("remove_journal", "put_journal_aside"):
        assert asked.ask(forgets)[0] == "failed"
    asked.knows(SysctlRecord(TCP_RMEM, own, "2 2 2"))  # as it was, though it is not so now
    asked.ask("close_journal")
    assert not restore(tmp_path, kernel=kernel).left
    assert kernel.sysctls[TCP_RMEM] == own
    asked.ask("open_journal")
    assert asked.ask("remove_journal") == ["done", None]


@pytest.mark.parametrize(
    "rule",
    [
        replace(RULE, preference=0), replace(RULE, preference=32_766), replace(RULE, table=255),
        replace(RULE, table=100), replace(RULE, interface="a b"), replace(RULE, interface="a/b"),
        replace(RULE, preference=0, table=None),
    ],
)  # fmt: skip
def test_rules_of_others_stay(asked, rule):
    asked.knows(ROUTING)
    assert asked.refuses("add_rules", (rule,))
    assert asked.refuses("delete_rules", (rule,))


def test_routes_of_others_stay(asked):
    asked.knows(ROUTING)
    for route in (replace(ROUTE, table=MAIN_TABLE), replace(ROUTE, metrics=bytes(600))):
        assert asked.refuses("add_routes", (route,))
        assert asked.refuses("delete_routes", (route,))


def test_routes_with_a_source_are_those_of_networks_and_the_one_that_refuses(asked):
    asked.knows(ROUTING)
    right = REFUSING_ROUTE
    six = Route(ROUTE.table, ip_network("::/0"), 3, source=ip_address("2001:db8::1"))
    four = replace(ROUTE, source=ip_address("192.0.2.9"))
    for route in (
        replace(four, source=ip_address("127.0.0.1")),
        replace(right, source=None),
        replace(right, source=ip_address("2001:db8::1")),
        replace(right, table=ROUTE.table),
        replace(right, index=3),
        replace(right, gateway=ip_address("fe80::1")),
        replace(right, destination=ip_network("2001:db8::/32")),
        replace(right, metrics=bytes(8)),
    ):
        assert asked.refuses("add_routes", (route,))
        assert asked.refuses("delete_routes", (route,))
    for route in (right, six, four, replace(four, destination=ip_network("192.0.2.0/24"))):
        assert asked.ask("add_routes", (route,)) == ["done", None]
        assert asked.ask("delete_routes", (route,)) == ["done", None]


def test_routes_are_of_the_kinds_that_cedos_has(asked):
    """A local one, say, would have this host take packets to others for its own."""
    asked.knows(ROUTING)
    on_link = replace(ROUTE, gateway=None)
    for kind in range(12):
        route = replace(on_link, type=kind)
        nowhere = replace(route, index=0)
        assert asked.refuses("add_routes", (route,)) == (kind != RTN_UNICAST)
        assert asked.refuses("add_routes", (nowhere,)) == (kind not in {RTN_UNREACHABLE, RTN_THROW})
        for odd in (replace(nowhere, gateway=ROUTE.gateway), replace(nowhere, metrics=bytes(8))):
            assert asked.refuses("add_routes", (odd,))


def test_other_sysctls_stay(asked):
    asked.knows(SysctlRecord(CONNTRACK_ACCOUNTING, "0", "1"))
    assert asked.refuses("write_sysctl", "kernel.core_pattern", "|/tmp/x")
    assert asked.refuses("write_sysctl", "net.ipv4.ip_forward", "1")
    assert asked.refuses("write_sysctl", TCP_RMEM, "1 1 1")
    assert asked.refuses("write_sysctl", CONNTRACK_ACCOUNTING, "2")
    for value in ("1", "7301"):
        assert asked.refuses("write_sysctl", own_sources("wlan0"), value)
    assert asked.ask("write_sysctl", own_sources("wlan0"), OWN_SOURCES) == ["done", None]


@pytest.mark.parametrize(
    "name",
    [
        *("-j ACCEPT", "-j", "--", "a b", 'a"b', "", "x" * 16, "a\nb", "a\n", "*", "+", "wlan+"),
        *("../x", "a/b", "a\0b", "\0", "wlan0\0", "é", "a\tb", "!a", "$(id)", "a;b", "#", "a,b"),
    ],
)
def test_interfaces_are_names(asked, name):
    asked.knows(FILTER, ROUTING)
    assert asked.refuses("bar", (name,))
    assert asked.refuses("repair_filter", FilterPlan(barred=(name,)))
    assert asked.refuses("raise_wall", (name,))


def test_a_host_may_have_hundreds_of_barred_interfaces(asked):
    """Bar one more than 256: the part refused all of them, and no wall stood."""
    asked.knows(FILTER)
    names = tuple(f"usb{number}" for number in range(1000))
    assert asked.ask("bar", names) == ["done", None]
    assert asked.ask("repair_filter", FilterPlan(barred=names)) == ["done", False]
    assert asked.ask("raise_wall", names) == ["done", True]
    assert asked.refuses("bar", names * 10)


@pytest.mark.parametrize("name", ["wlan%0", "wlän0", "-j", "a,b", "#", "$(id)", "ééééééé"])
def test_rules_take_all_names_that_the_kernel_allows(asked, name):
    """A network with such a name kept all others from being followed."""
    asked.knows(ROUTING)
    assert asked.ask("add_rules", (replace(RULE, interface=name),)) == ["done", None]


@pytest.mark.parametrize("name", ["", "x" * 16, "éééééééé", "a b", "a\n", "a\0", "../x", ".."])
def test_rules_take_no_other_names(asked, name):
    asked.knows(ROUTING)
    assert asked.refuses("add_rules", (replace(RULE, interface=name),))


def test_only_what_cedos_listens_to_is_opened(asked):
    assert asked.refuses("open_packets", PacketSocket(b"\x06\0\0\0\xff\xff\0\0", None))
    assert asked.refuses("open_events", EventSocket(9, (1,), 1 << 16))  # NETLINK_AUDIT
    assert asked.refuses("open_events", EventSocket(NETLINK_ROUTE, (1,), 1 << 30))
    found = answer_request(asked.part, "open_events", wire.plain([EventSocket(0, (1,), 1 << 16)]))
    assert isinstance(found, socket.socket)
    found.close()


def test_answers_are_for_look_ups_of_this_host(asked):
    here = replace(KEY, local=ip_address("127.0.0.1"))
    assert asked.refuses("answer_lookup", KEY, b"x")  # nobody's address
    link = replace(KEY, local=ip_address("fe80::1:2:3"), remote=ip_address("fe80::1"))
    assert asked.refuses("answer_lookup", link, b"x")
    assert asked.refuses("answer_lookup", replace(here, remote_port=80), b"x")
    assert asked.refuses("answer_lookup", replace(here, protocol="tcp"), b"x")
    assert asked.refuses("answer_lookup", here, bytes(5000))


def test_time_outs_are_of_first_packets(asked):
    for timeout_s in (0.0, -1.0, 1e9, float("nan")):
        assert asked.refuses("rescue_set_first_timeouts", ((KEY.local, timeout_s),))


def test_garbage_in_circles_goes_when_memory_is_given_back(asked):
    """Left by what reads netlink: 4 MB an hour, in a process with few objects and so seldom a look."""

    class Circle:
        pass

    one = Circle()
    one.itself = one
    there = weakref.ref(one)
    gc.disable()
    try:
        del one
        assert there() is not None
        assert asked.ask("give_back")[0] == "done"
        assert there() is None
    finally:
        gc.enable()


def test_a_full_table_of_connections_is_not_told(asked, monkeypatch):
    """An answer of 262,144 flows was too long: all later ones were garbage, those of walls too."""
    there = 1_000

    class Played:
        def __init__(self, _protocol):
            pass

        def dump(self, _kind, _body, keeps):
            entries = (NetlinkMessage(conntrack.GET - 1, 0, 0, bytes(400)) for _ in range(there))
            return [each for each in entries if keeps(each)]

        def close(self):
            pass

    monkeypatch.setattr(module, "Requester", Played)
    assert asked.ask("tracked_flows") == ["done", []]  # none of them is a UDP flow
    there = module.MOST_TRACKED + 1
    kind, (number, _) = asked.ask("tracked_flows")
    assert (kind, number) == ("refused", errno.EMSGSIZE)


def test_the_journal_takes_records_alone(asked, tmp_path):
    asked.ask("append_to_journal", b'{"undo":"sysctl","key":"kernel.core_pattern","before":"|x"}\n')
    asked.ask("append_to_journal", b"rubbish\n" * 10)
    assert asked.ask("read_journal") == ["done", [[], [], False]]
    assert not (tmp_path / "journal.jsonl").exists()


@pytest.mark.parametrize("name", ["__init__", "_kernel", "nothing", "", None, 7, ["bar"]])
def test_what_there_is_not_is_refused(asked, name):
    assert answer_request(asked.part, name, [])[0] == "refused"


def test_it_goes_on_whatever_it_is_asked(asked):
    chance = random.Random(16)
    names = [name for name in vars(PrivilegedPart) if not name.startswith("open_")]
    values = [None, 0, -1, 2**70, "", "wlan0", b"x", True, [], [[]], 1e400]
    values += [wire.plain(each) for each in (RULE, ROUTE, KEY, (RULE,), (ROUTE,), FilterPlan())]
    for _ in range(1000):
        given = chance.choices(values, k=chance.randrange(4))
        found = answer_request(asked.part, chance.choice(names), given)
        if isinstance(found, socket.socket):
            found.close()
    assert asked.kernel.own == []
    assert set(asked.kernel.log) <= {"packet filter: remove"} | {
        line
        for line in asked.kernel.log
        if any(word in line for word in ("delete", "rescue", "filter", "close"))
    }


def test_an_operation_with_more_than_a_flow_to_name_has_a_check_of_its_own():
    """Marked operations are passed on as they are, so that a new one with a plan must be checked."""
    for interface, prefix in ((SteeringKernel, ""), (RescueKernel, "rescue_")):
        for operation, _ in operations(interface):
            method = vars(PrivilegedPart)[f"{prefix}{operation.__name__}"]
            if hasattr(method, "__wrapped__"):
                hints = get_type_hints(operation)
                hints.pop("return")
                assert set(hints.values()) <= {int, bool, FlowKey}, operation.__name__
