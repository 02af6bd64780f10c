"""`status`, `explain` and `top` against a daemon on a real socket."""

import json
from contextlib import ExitStack

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cedos.api.messages import (
    DecisionMessage,
    DefaultMessage,
    FlowMessage,
    HostDefaultMessage,
    IndicatorMessage,
    NetworkMessage,
    OtherDefaultMessage,
    StatusMessage,
    SubflowMessage,
)
from cedos.commands import explain, status
from cedos.commands.console import render
from cedos.controller.hint import program_text
from cedos.model import (
    NO_DEFAULT_ROUTE,
    CarriedConnection,
    NetworkKind,
    NetworkLife,
    SizeEstimate,
    Strategy,
    StrategyKind,
)

BOTH = Strategy(StrategyKind.MPTCP, ("wlan0", "lte0"))
STATUS = StatusMessage(
    version="1",
    pid=7,
    uptime_s=200.0,
    dry_run=True,
    objective="max-s",
    networks=[
        NetworkMessage(
            name="lte0", interface="usb0", kind=NetworkKind.CELLULAR, metered=True, up=False
        )
    ],
    default=DefaultMessage(network=None, reason="a VPN holds the default route"),
    flows=[
        FlowMessage(
            flow="tcp 192.168.43.2:5 > 198.51.100.1:80",
            token=0xABC,
            strategy=BOTH,
            age_s=3.0,
            bytes_down=2_345_678,
            subflows=[
                SubflowMessage(flow="tcp 192.168.43.2:5 > 198.51.100.1:80", network="wlan0"),
                SubflowMessage(
                    flow="tcp 192.168.44.2:6 > 198.51.100.1:80",
                    network="lte0",
                    backup=True,
                    rtt_s=0.063,
                    delivery_rate_bps=8.1e6,
                ),
            ],
        )
    ],
    problems=["history is degraded: no space left on the disk"],
    decisions=12,
)


def test_status(cedos, control):
    result = cedos("status")
    assert result.exit_code == 0
    assert "wlan0    wifi  up     no       20 ms  " in result.stdout
    assert "New connections go over wlan0:\n  fastest.\n" in result.stdout
    assert "tcp 192.168.43.2:5000 > 198.51.100.1:443" in result.stdout
    assert "Problems" not in result.stdout


def test_status_in_full():
    text = "\n".join(status.lines(STATUS))
    assert "(process 7) has run for 3 min: 12 decisions (objective max-s). Dry run: nothing" in text
    assert (
        "New connections go where this host sends them:\n  a VPN holds the default route.\n" in text
    )
    assert "lte0     cellular  down   yes      -    -     -       usb0" in text
    assert "198.51.100.1:80  wlan0 + lte0 (together)  3.0 s  2.35 MB  -   tcp 192" in text
    assert "0x00000abc tcp 192.168.43.2:5" in text
    assert "lte0     backup  63 ms  8.1 Mbit/s  tcp 192.168.44.2:6 > 198.51.100.1:80" in text
    assert text.endswith("Problems\n  history is degraded: no space left on the disk.")


def test_status_says_what_a_helper_costs_and_has_carried():
    helper = NetworkMessage(
        name="helper-1", interface="wlan0", kind=NetworkKind.HELPER, metered=True,
        up=True, neighbour="bob", leads_to="198.51.100.9", price_per_gb=0.5, carried_bytes=12_300_000,
    )  # fmt: skip
    text = "\n".join(status.lines(replace(STATUS, networks=[helper])))
    assert "helper-1  helper  up     yes      -    -     -       wlan0" in text
    rest = "who leads to 198.51.100.9 alone, for 0.5 a GB; 12.3 MB were carried"
    assert f"helper-1 is bob, a neighbour {rest}" in text.replace("\n  ", " ")
    unknown = replace(helper, neighbour="")
    text = "\n".join(status.lines(replace(STATUS, networks=[unknown])))
    assert f"helper-1 is a neighbour {rest}" in text.replace("\n  ", " ")


def carried(server="github.com", gateway="gw.example", **more):
    usual = {
        "port": 443,
        "age_s": 3.0,
        "bytes_down": 2_345_678,
        "bytes_up": 1000,
        "bytes_by_network": {"wlan0": 346_678, "lte0": 2_000_000},
    }
    return CarriedConnection(server=server, gateway=gateway, **usual | more)


def test_status_shows_what_goes_through_gateways():
    told = replace(
        STATUS,
        carried=[
            carried(strategy=BOTH, decision=5),
            carried("a.example", "other.example", bytes_by_network={}),
            carried("2001:db8::1", port=22),
        ],
        other_carried=7,
    )
    shown = list(status.lines(told))
    begins = shown.index("Through gw.example")
    assert shown[begins - 1 : begins + 10] == [
        "",
        "Through gw.example",
        "  SERVER            NETWORK                  AGE    DOWN     UP    OVER",
        "  github.com:443    wlan0 + lte0 (together)  3.0 s  2.35 MB  1 kB  lte0 2 MB, wlan0 347 kB",
        "  [2001:db8::1]:22  -                        3.0 s  2.35 MB  1 kB  lte0 2 MB, wlan0 347 kB",
        "",
        "Through other.example",
        "  SERVER         NETWORK  AGE    DOWN     UP    OVER",
        "  a.example:443  -        3.0 s  2.35 MB  1 kB  -",
        "and 7 more, which carried less",
        "",
    ]
    assert shown[begins + 10] == "Problems"
    assert msgspec.json.decode(msgspec.json.encode(told), type=StatusMessage) == told


def test_what_strangers_named_moves_no_cursor(cedos, control, fake_daemon):
    hostile = "a\x1b[2Jb\rc\n\x9b31md\u202e"
    told = replace(STATUS, carried=[carried(hostile, hostile, bytes_by_network={hostile: 1})])

    fake_daemon.told = told
    for shown in (cedos("status").stdout, cedos("top", "--count", "1").stdout):
        assert "a\ufffd[2Jb\ufffdc\ufffd\ufffd31md\ufffd" in shown
        assert not set(shown) & set("\x1b\r\x9b\u202e")


def test_status_tells_all_indicators_and_who_wants_a_log_in():
    def indicator(value, age_s, *, drawn=False):
        return IndicatorMessage(value=value, age_s=age_s, synthetic=drawn)

    many = {f"x{number}_bps": indicator(1e6, 1.0) for number in range(9)}
    answered = replace(indicator(1.0, 12.0), active=True)
    home = NetworkMessage(
        name="wlan0",
        interface="wlan0",
        kind=NetworkKind.WIFI,
        metered=False,
        up=True,
        access_point="home\x1b[2J aa:bb:cc:00:11:22",
        life=NetworkLife.CAPTIVE,
        indicators={
            "captive": answered,
            "rssi_dbm": indicator(-61.0, 0.4, drawn=True),
            "loss": indicator(0.02, 3.0),
            **many,
        },
    )
    lines = list(status.lines(replace(STATUS, networks=[home])))
    assert "wlan0    wifi  log-in" in lines[3]
    begins = lines.index("Measured") + 1
    told = lines[begins : begins + 4]
    assert told[0].startswith(
        "  wlan0: access point home\ufffd[2J aa:bb:cc:00:11:22; log-in needed yes (12 s ago);"
    )
    assert any("RSSI -61 dBm* (just now)" in line for line in told)
    assert all(len(line) <= 100 for line in told)
    # What is in doubt is used, and therefore up.
    for life, state in (
        (NetworkLife.DEAD, "silent"),
        (NetworkLife.SILENT, "silent"),
        (NetworkLife.UNKNOWN, "up"),
        (NetworkLife.ALIVE, "up"),
    ):
        shown = replace(home, life=life)
        lines = list(status.lines(replace(STATUS, networks=[shown])))
        assert f"wlan0    wifi  {state}" in lines[3]


def test_explain(cedos, control):
    result = cedos("explain", "www.example.org")
    assert result.exit_code == 0
    assert "Decision 7, " in result.stdout
    assert "Why: shortest." in result.stdout
    assert "Download of about 3 kB (1 B to 9 kB), from earlier transfers\n" in result.stdout
    assert "* wlan0     500 ms     250 ms to 1.0 s  2 J     0 B      0.5" in result.stdout
    assert "wlan0    RTT        20 ms  2 s  probed" in result.stdout
    assert json.loads(cedos("explain", "--json").stdout)["number"] == 7


def test_explain_names_the_neighbours_of_a_decision():
    helper = NetworkMessage(
        name="helper-1", interface="wlan0", kind=NetworkKind.HELPER, metered=True, up=True,
        neighbour="bob",
    )  # fmt: skip
    other = replace(helper, name="helper-2", neighbour="carol")
    considered = [Strategy(StrategyKind.MPTCP, ("wlan0", "helper-1"))]
    assert list(explain.neighbours(considered, [helper, other])) == ["  helper-1 is bob now."]


def test_who_asks_for_a_connection_through_a_gateway_is_told_what_was_decided(make_decision):
    message = DecisionMessage.of(make_decision(7), gateway="gw.example")
    assert message.gateway == "gw.example"
    unnamed = replace(message.transfer, flow=None, server_name=None)
    for each in (message, replace(message, transfer=unnamed)):
        told = list(explain.lines(each, 0.0, "github.com"))
        text = " ".join(line.strip() for line in told)
        assert (
            "github.com is reached through gw.example. This was decided for all small data of the"
            " session with it. Download of"
        ) in text
        assert max(map(len, told)) <= 100
        assert "Nothing was decided about" not in text


def test_who_follows_the_default_is_told_so(make_decision):
    """A page of 2 MB was explained by a download of 3 kB, and nobody said why."""
    message = DecisionMessage.of(make_decision(7))
    follows = "Nothing was decided about 39958 alone: it went where all new connections went."
    default = replace(message, transfer=replace(message.transfer, flow=None, server_name=None))

    def says(decision, asked):
        return f"  {follows}" in list(explain.lines(decision, 0.0, asked))

    assert says(default, "39958")
    assert not says(default, None)
    assert not says(default, "7"), "the number of a decision"
    assert not says(message, "39958")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"), (0.0, "0 ms"), (0.0234, "23.4 ms"), (0.9999, "1.0 s"), (9.94, "9.9 s"),
        (42.0, "42 s"), (180.0, "3 min"), (7200.0, "2 h"), (400_000.0, "5 d"),
    ],
)  # fmt: skip
def test_durations(seconds, text):
    assert render.duration(seconds) == text


def test_top(cedos, control):
    result = cedos("top", "--interval", "0.05", "--count", "3")
    assert result.exit_code == 0
    assert result.stdout.count("New connections go over wlan0:\n") == 3
    assert "\x1b" not in result.stdout


def test_top_outlives_the_daemon(cedos, fake_daemon, serve, folders, monkeypatch):
    looks = []
    with ExitStack() as stack:
        stack.enter_context(serve(fake_daemon, folders / "run" / "control.sock"))

        def wait(_s):
            looks.append(1)
            stack.close()

        monkeypatch.setattr("cedos.commands.top.time.sleep", wait)
        result = cedos("top", "--count", "2")
    assert "New connections go over wlan0:" in result.stdout
    assert "no daemon answers" in result.stdout
    assert (result.exit_code, looks) == (0, [1])


def test_status_tells_what_the_host_keeps_and_what_a_network_lacks():
    default = DefaultMessage(
        network="wlan0",
        reason="wlan0 is the only usable network",
        host_defaults={"4": HostDefaultMessage(interface="br0", what="bridge")},
        others={
            "6": OtherDefaultMessage(network="lte0", why="wlan0 has no IPv6", tcp_alone=True),
            "4": OtherDefaultMessage(network=None, why="wlan0 has no IPv4"),
        },
    )
    shown = " ".join(" ".join(status.lines(replace(STATUS, default=default))).split())
    assert "New IPv4 connections go over br0 (bridge), the host's own default" in shown
    assert "Other new connections go over wlan0" in shown
    assert "New IPv6 connections go over lte0: wlan0 has no IPv6. Names with both" in shown
    assert "New IPv4 connections are refused: wlan0 has no IPv4." in shown
    kept = DefaultMessage(
        network=None,
        reason="The host's own default stays",
        host_defaults={"4": HostDefaultMessage(interface="", what="a default route of the host")},
    )
    shown = " ".join(" ".join(status.lines(replace(STATUS, default=kept))).split())
    assert "New IPv4 connections are refused by the host's own routes" in shown
    assert "New connections go" not in shown


def test_status_names_a_network_without_a_default_route():
    wwan = NetworkMessage(
        name="wwan0",
        interface="wwan0",
        kind=NetworkKind.CELLULAR,
        metered=True,
        up=False,
        lacks=NO_DEFAULT_ROUTE,
    )
    shown = list(status.lines(replace(STATUS, networks=[wwan])))
    assert "wwan0 has no default route, so nothing leads over it" in shown
    plugged_out = replace(wwan, lacks="no carrier")
    shown = list(status.lines(replace(STATUS, networks=[plugged_out])))
    assert not any("has no default route" in line for line in shown)


@pytest.mark.parametrize(
    ("seconds", "age", "ago"),
    [
        (0.0034, "under 1 s", "just now"),
        (1.4, "1 s", "1 s ago"),
        (9.96, "10 s", "10 s ago"),
        (180.0, "3 min", "3 min ago"),
    ],
)
def test_ages_are_told_as_exactly_as_anybody_wants(seconds, age, ago):
    assert (render.age(seconds), render.format_ago(seconds)) == (age, ago)


def test_explain_a_prohibitive_cost(make_decision):
    message = DecisionMessage.of(make_decision(1))
    dear = replace(message.evaluations[0], cost=None, strategy=BOTH)
    message = replace(message, evaluations=[dear, *message.evaluations])
    rows = [line for line in explain.lines(message, 0.0) if " 2 J " in line]
    assert rows[0].startswith("  * wlan0 ")
    assert rows[1].endswith("-")


@given(st.floats(0, 1e15))
def test_units_are_those_that_a_person_would_choose(value):
    for text in (render.size(value), render.rate(value)):
        shown, unit = text.split(" ")
        assert float(shown) < 1000 or unit in {"TB", "Gbit/s"}
    shown, unit = render.duration(value).split(" ")
    assert float(shown) < {"ms": 1000, "s": 100, "min": 100, "h": 48, "d": 1e11}[unit]


def test_strategies_and_sizes():
    kinds = {
        Strategy(StrategyKind.SINGLE, ("a",)): "a",
        Strategy(StrategyKind.REDUNDANT, ("a", "b")): "a + b (sent twice)",
        Strategy(StrategyKind.DEFER, ()): "later",
        None: "-",
    }
    assert [render.strategy(one) for one in kinds] == list(kinds.values())
    assert render.estimate(SizeEstimate(5, 5, 5, "content-length")) == "5 B, as its header says"


def test_a_program_s_decision_names_the_program_and_what_a_deadline_makes_of_costs(make_decision):
    """`Server curl` was said, and `what is surely in time costs as if it took so long`."""
    message = DecisionMessage.of(make_decision(1))
    transfer = replace(
        message.transfer, deadline_s=300.0, server_name=program_text("curl"), flow=None
    )
    told = list(explain.lines(replace(message, transfer=transfer), 0.0, "ex.example"))
    assert "  For all connections of the program curl" in told
    assert not any(line.startswith("  Server") for line in told)
    assert (
        "  Wanted within 5 min. A time that is surely within counts as 5 min; one that may be late counts"
        " as"
    ) in told
