"""Screens at the widths of terminals: no line is too long, and no word is broken."""

import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import suppress

import msgspec
import pytest

from cedos.api.budgets import BudgetMessage, NetworkUsage, ServerUsage, UsageMessage
from cedos.api.messages import (
    DecisionMessage,
    DefaultMessage,
    FlowMessage,
    IndicatorMessage,
    NetworkMessage,
    RuleMessage,
    StatusMessage,
    SubflowMessage,
)
from cedos.commands import budget, doctor, explain, rule, status, usage
from cedos.commands.top import FullScreen, cut
from cedos.controller.rule import RuleRequest
from cedos.doctor import limited, ok
from cedos.model import CarriedConnection, NetworkKind, Strategy, StrategyKind
from predictors.base import Calibration

WIDTHS = (40, 60, 80, 120)
WHY = (
    "wlan0: 0.19 s expected for 3 kB, 1.2 times faster than usb0 (0.22 s). The last round trip over wlan0"
    ' took 78 ms, 0.6 s ago. A megabyte over usb0 is almost free (budget "data": 4 GB of 4 GB left)'
)
NAMES = ("a.example", "very-long-name-of-a-server.cdn.example.com", None)


def flow(number):
    key = f"tcp 192.168.43.2:{49_000 + number} > 198.51.100.{number}:443"
    both = Strategy(StrategyKind.MPTCP, ("wlan0", "usb0"))
    return FlowMessage(
        flow=key,
        strategy=both if number % 2 else Strategy(StrategyKind.SINGLE, ("wlan0",)),
        subflows=[SubflowMessage(flow=key, network="wlan0", rtt_s=0.02, delivery_rate_bps=8e6)],
        token=number if number % 2 else None,
        server_name=NAMES[number % len(NAMES)],
        age_s=100.0 + number,
        bytes_down=number * 1_000_000,
        bytes_up=number * 1_000,
        decision=number % 3 + 1,
    )


def network(name, kind):
    known = {"rtt_s": 0.0394, "past5_bps": 10.1e6, "delivery_down_bps": 3e6, "loss": 0.0}
    return NetworkMessage(
        name=name,
        interface=f"enx0242ac1100{len(name):02}",
        kind=kind,
        metered=kind is NetworkKind.CELLULAR,
        up=True,
        access_point="the network of the hotel aa:bb:cc:00:11:22",
        indicators={each: IndicatorMessage(value=v, age_s=21.0) for each, v in known.items()},
        predicted=Calibration(20, 0.5, 0.9, 0.85),
    )


STATUS = StatusMessage(
    version="0.1.0",
    pid=15770,
    uptime_s=200.0,
    dry_run=False,
    objective="budgets",
    networks=[network("wlan0", NetworkKind.WIFI), network("usb0", NetworkKind.CELLULAR)],
    default=DefaultMessage(network="wlan0", reason=WHY, age_s=21.0, decision=1),
    flows=[flow(number) for number in range(1, 13)],
    other_flows=3,
    problems=["wlan0: its DNS does not answer, another network's does. Not used"],
    carried=[
        CarriedConnection(
            server="very-long-name-of-a-server.cdn.example.com", gateway="gw.example", port=443,
            age_s=3.0, bytes_by_network={"wlan0": 2_000_000, "usb0": 30_000}, bytes_down=2_030_000,
        )
    ],
    closed=["tcp 192.168.43.2:5000 > 198.51.100.1:443 was closed after 12 s"],
    reasons={1: WHY, 2: "Your rule 1: never metered. wlan0 is the only network that it allows"},
)  # fmt: skip
BUDGET = BudgetMessage(
    name="data", resource="data", supply=4e9, spent=1.47e9,
    networks=("usb0",), hard=True, begins_unix_s=1_700_000_000.0, ends_unix_s=1_800_000_000.0,
    s_per_unit=1e-7, forecast=3e9, forecast_low=2e9, forecast_high=3.5e9, bought_s=12.0,
    every=None, battery=False, over=False, source="command",
)  # fmt: skip
USAGE = UsageMessage(
    since_unix_s=1_700_000_000.0,
    counted_since_unix_s=1_700_000_000.0,
    networks=(NetworkUsage(network="wlan0", metered_bytes=0, free_bytes=10_100_000, radio_j=5.0),),
    servers=tuple(
        ServerUsage(server=name, gateway="gw.example.org", bytes_by_network={"wlan0": 5, "usb0": 7})
        for name in NAMES
        if name
    ),
    flows_since_unix_s=1_700_000_000.0,
)
RULE = RuleMessage(
    number=1, network=None, why="so",
    rule=RuleRequest(host="very-long-name-of-a-server.cdn.example.com", never=("metered", "wifi")),
    vpn={"4": "tun0"},
)  # fmt: skip


FINDINGS = [
    ok("look-ups", "answered over another network where a resolver says nothing for 0.3 s"),
    limited("retransmission after an outage", WHY, "the time of an outage again", "apt install it"),
]


@pytest.fixture
def screens(make_decision):
    decision = msgspec.structs.replace(DecisionMessage.of(make_decision(1)), reason=WHY)
    return {
        "status": lambda: status.lines(STATUS),
        "explain": lambda: explain.lines(decision, 1e9, "a.example"),
        "prices": lambda: explain.prices([BUDGET], 1.7e9),
        "budget": lambda: budget.lines([BUDGET], 1.7e9),
        "no budget": lambda: budget.lines([], 1.7e9),
        "usage": lambda: usage.lines(USAGE, [BUDGET], 1.7e9),
        "rules": lambda: rule.lines([RULE]),
        "no rules": lambda: rule.lines([]),
        "doctor": lambda: iter(
            "\n".join(doctor._line(each, 30, coloured=False) for each in FINDINGS).splitlines()
        ),
        "top": lambda: iter(viewed().lines()),
    }


def viewed():
    view = FullScreen()
    for at_s in (1.0, 2.0):
        view.take(STATUS, at_s)
    return view


@pytest.mark.parametrize("width", WIDTHS)
def test_every_screen_fits_the_terminal(screens, width, monkeypatch):
    wide = {name: " ".join(" ".join(lines()).split()) for name, lines in screens.items()}
    monkeypatch.setenv("COLUMNS", str(width))
    for name, lines in screens.items():
        shown = list(lines())
        words = set(wide[name].replace(";", " ").split())
        for line in shown:
            # Only a word that is longer than the terminal may be cut by it.
            assert len(line) <= width or len(line.split()) == 1, (name, line)
            for word in line.replace(";", " ").split():
                assert word in words or name == "top" or word in ALONE, (name, word)


ALONE = {"FLOW", "PATH", "OVER", "PRICE", "SAVED", "METERED", "COST", "NOW", "INTERFACE", "SIGNAL"}
"""Headers that are repeated beside their values, where a table does not fit."""


def test_top_has_problems_first_then_networks_then_the_busiest_flow():
    busy = msgspec.structs.replace(STATUS.flows[4], bytes_down=9_000_000)
    view = viewed()
    later = [busy if each.flow == busy.flow else each for each in STATUS.flows]
    view.take(msgspec.structs.replace(STATUS, flows=later), 4.0)
    lines = view.lines()
    assert lines[0] == "Problems"
    assert lines[1].strip() == f"{STATUS.problems[0]}."
    networks = next(n for n, line in enumerate(lines) if line.startswith("NETWORK "))
    assert [line.split()[0] for line in lines[networks + 1 : networks + 3]] == ["wlan0", "usb0"]
    flows = next(n for n, line in enumerate(lines) if line.startswith("SERVER "))
    # 4 MB within two seconds; the reason is that of its own decision.
    assert lines[flows + 1].split()[:1] == [status.server(busy)]
    assert "16 Mbit/s" in lines[flows + 1]
    assert not any("reachable" in line or "lowest RTT" in line for line in lines), "no indicators"


@pytest.mark.parametrize("text", ["wlan0", "日本語のネットワーク", "a日b", ""])
def test_a_line_is_cut_by_what_it_takes_on_a_terminal(text):
    assert cut(text, 100) == text
    assert len(cut(text, 5)) <= 5
    assert cut("日本語", 5) == "日本"


def test_top_fits_the_terminal_and_leaves_it_as_it_was(folders, control, fake_daemon):
    fake_daemon.told = STATUS
    ours, theirs = pty.openpty()
    shown = b""
    with subprocess.Popen(
        [sys.executable, "-m", "cedos.commands.cedos", "top", "--interval", "0.05"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "COLUMNS": "80", "LINES": "24"},
    ) as process:
        os.close(theirs)
        try:
            while shown.count(b"\x1b[H") < 3:
                shown += os.read(ours, 4096)
            process.send_signal(signal.SIGINT)
            with suppress(OSError):  # the other end is closed
                while more := os.read(ours, 4096):
                    shown += more
            assert process.wait(20) == 0
        finally:
            process.kill()
            os.close(ours)
    assert shown.startswith(b"\x1b[?1049h")
    assert b"\x1b[?1049l" in shown
    first = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode().split("\x1b[H")[1]).splitlines()
    assert first[0] == "Problems"
    assert any("SERVER" in line for line in first), "a flow is in sight on a small terminal"
    assert first[-1].endswith(" more lines")
    assert len(first) == 24
    assert max(map(len, first)) <= 80
