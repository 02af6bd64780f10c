"""A table that strangers fill: bounded, and fair between them."""

from ipaddress import ip_address

from cedos.host.monitor.flow_monitor import FairTable
from cedos.model import FlowKey

OWN = ip_address("10.0.0.2")


def flow(remote, port):
    return FlowKey(OWN, port, ip_address(remote), 443)


def test_one_sender_drives_out_its_own():
    table = FairTable(320)
    others = [flow(f"203.0.113.{number}", 1) for number in range(1, 101)]
    for key in others:
        table.put(key, 0)
    gone = [table.put(flow("198.51.100.1", port), port) for port in range(1, 10_000)]
    assert len(table) <= 320
    # It shares a 32nd of the table with three of a hundred others, more or less.
    assert sum(key in table for key in others) > 75
    assert gone[-1].remote == ip_address("198.51.100.1")
