"""`cedos usage`: with a daemon, after one, and what it refuses."""

import json
import time
from ipaddress import IPv4Address

import msgspec
import pytest

from cedos.api.budgets import NetworkUsage, ServerUsage, UsageMessage
from cedos.model import CarriedConnection, FlowKey, FlowRecord, Subflow
from cedos.storage.history import History
from cedos.storage.usage import Usage

LTE = NetworkUsage(network="lte0", metered_bytes=1.2e9, free_bytes=0.0, radio_j=3400.0)
WIFI = NetworkUsage(network="wlan0", metered_bytes=0.0, free_bytes=18e9, radio_j=2100.0)


def test_what_the_daemon_says_is_shown(cedos, control, fake_daemon):
    fake_daemon.usage_since = UsageMessage(
        since_unix_s=1.79e9,
        counted_since_unix_s=1.791e9,
        radio_j=5600.0,
        networks=(LTE, WIFI),
        servers=(
            ServerUsage(server="a\x1b.example", bytes_by_network={"wlan0": 5, "lte0": 10**9}),
        ),
    )
    assert cedos("budget", "set", "data", "4GB", "--until", "2030-12-01").exit_code == 0
    done = cedos("usage")
    assert done.exit_code == 0
    for line in (
        "lte0     1.2 GB",
        "in all   1.2 GB   18 GB",
        'Budget "data": 1 GB of 4 GB used (25 %)',
        ". Its period ends at ",
    ):
        assert line in done.stdout
    assert "1 GB     lte0 1 GB, wlan0 5 B" in done.stdout
    assert "Used since" in done.stdout
    assert ", when counting began (" in done.stdout
    assert "open now are not among them" in done.stdout
    fake_daemon.usage_since = msgspec.structs.replace(
        fake_daemon.usage_since, counted_since_unix_s=None, with_open=True
    )
    done = cedos("usage")
    assert "counting began" not in done.stdout
    assert "not among them" not in done.stdout
    assert "\x1b" not in done.stdout
    shown = json.loads(cedos("usage", "--since", "2026-11-01", "--json").stdout)
    assert shown["networks"][0]["metered_bytes"] == 1.2e9


def test_after_the_daemon_its_files_are_read(cedos, folders):
    state, now_s = folders / "state", time.time()
    odometers = Usage(state / Usage.FILE, "boot")
    for days, metered in ((30, 5e8), (2, 2e6), (1, 1e6)):
        odometers.add("metered/lte0", metered)
        odometers.add("free/wlan0", 7e6)
        odometers.add("radio/lte0", 10.0)
        odometers.add("radios", 12.0)
        odometers.write(now_s - days * 86_400.0)
    odometers.close()
    history = History(state / "history.sqlite")
    for days, server, network, size in (
        (30, "old.example", "lte0", 4 * 10**8),
        (2, "big.example", "wlan0", 6 * 10**6),
        (2, None, "lte0", 2 * 10**6),
        (1, "big.example", "lte0", 500),
    ):
        key = FlowKey(IPv4Address("10.0.0.2"), 5000, IPv4Address("198.51.100.1"), 443)
        history.add_flow(
            FlowRecord(
                (Subflow(key, network, size, 0),), None, None, now_s - days * 86_400.0, server
            )
        )
    history.close()
    done = cedos("usage")
    assert done.exit_code == 0
    # Half of what came between the last two readings came in the last 36 hours.
    metered = json.loads(cedos("usage", "--since", "36h", "--json").stdout)
    assert metered["networks"][0]["network"] == "lte0"
    assert metered["networks"][0]["metered_bytes"] == pytest.approx(5e5, rel=0.01)
    assert metered["servers"] == [
        {"server": "big.example", "bytes_by_network": {"lte0": 500}, "gateway": None}
    ]
    assert "198.51.100.1" in done.stdout, "a server without a name"
    assert done.stdout.index("198.51.100.1") < done.stdout.index("big.example"), "metered first"
    assert "old.example" not in done.stdout
    assert "No daemon answers" in done.stdout
    assert "old.example" in cedos("usage", "--since", "31d").stdout


def test_after_the_daemon_the_gateways_own_row_is_what_is_left(cedos, folders):
    history = History(folders / "state" / "history.sqlite")
    Usage(folders / "state" / Usage.FILE, "boot").close()
    now_s = time.time()
    key = FlowKey(IPv4Address("10.0.0.2"), 5000, IPv4Address("198.51.100.7"), 7010)
    history.add_flow(FlowRecord((Subflow(key, "lte0", 700, 0),), None, None, now_s, None))
    history.add_carried(
        CarriedConnection(
            ended_unix_s=now_s,
            server="github.com",
            port=443,
            gateway="gw.example",
            addresses=("198.51.100.7",),
            bytes_by_network={"lte0": 500},
        )
    )
    history.close()
    used = json.loads(cedos("usage", "--json").stdout)["servers"]
    assert [(each["server"], each["gateway"], each["bytes_by_network"]) for each in used] == [
        ("github.com", "gw.example", {"lte0": 500}),
        ("gw.example", None, {"lte0": 200}),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("yesterday", 'write "7d"'), ("7", 'write "7d"'), ("2199-01-01", "is in the future"),
        ("-7d", 'write "7d"'), ("", 'write "7d"'), ("1970-01-01", "too long ago"),
    ],
)  # fmt: skip
def test_a_beginning_that_is_none_says_what_would_be_right(cedos, folders, text, why):
    refused = cedos("usage", "--since", text)
    assert refused.exit_code == 2
    assert why in refused.stderr


def test_a_host_that_never_counted_says_so(cedos, folders):
    done = cedos("usage")
    assert done.exit_code == 0
    assert "Nothing was counted since" in done.stdout
    assert not done.stderr
    assert not (folders / "state").exists(), "looking makes nothing"
