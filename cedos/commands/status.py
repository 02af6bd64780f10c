"""`cedos status`: networks, flows and problems."""

import textwrap
from collections.abc import Iterator

import click

from cedos.api.client import ControlClient
from cedos.api.messages import (
    FlowMessage,
    HostDefaultMessage,
    NetworkMessage,
    StatusMessage,
    server_text,
)
from cedos.commands.console import render
from cedos.commands.console.manual import SOCKET, Manual, json_option
from cedos.config.directories import directories
from cedos.doctor import predicted_text
from cedos.model import NO_DEFAULT_ROUTE

_SIGNALS = ("rssi_dbm", "rsrp_dbm", "cqi")
# A delivery rate is a lower bound of the network's rate.
_RATES = {
    "past1_bps": "",
    "past5_bps": "",
    "past10_bps": "",
    "delivery_down_bps": "≥ ",
    "link_bps": "",
}
_LATELY_S = 60.0
"""The lifetime of a report of a portal or a silence."""

_WIDTH = 100
_LEAST = 40


@click.command(
    cls=Manual,
    examples=[
        ("cedos status", "The networks, where new connections go and why, flows, problems."),
        ("cedos status --json | jq -r .default.network", "The network of new connections."),
    ],
    exits=(0, 1, 3, 6),
    files=[SOCKET],
)
@json_option
def command(as_json: bool) -> None:
    """Show networks, the default, living flows and problems.

    First the networks. RTT is the last round-trip time, with its age. RATE is the recent download
    rate: "≥" marks one that did not fill the network, "link" the rate that the radio claims. STATE
    is "log-in" for a captive portal, "silent" for a network without replies, and "blocked" for a
    spent hard budget. Below are all indicators of each network, with ages in brackets; * marks
    synthetic values.

    Then the network of new connections, with the reason. Then the flows that have a socket now,
    without the daemon's own queries, and the paths of MPTCP connections. Then the connections that
    `cedos forward` carries through a gateway: OVER has their networks, most bytes first. Then
    stuck connections that were closed ([steering] close_stuck). Problems come last.
    """
    status = ControlClient(directories().socket).status()
    if as_json:
        render.print_json(status)
    else:
        render.show(lines(status))


def lines(status: StatusMessage, width: int = _WIDTH) -> Iterator[str]:
    """Yield the status; sentences are wrapped at `width`, tables are not."""
    width = max(_LEAST, min(width, _WIDTH))
    dry = ". Dry run: nothing is changed" if status.dry_run else ""
    made = f"{status.decisions} decision{'s' * (status.decisions != 1)}"
    yield (
        f"cedos {status.version} (process {status.pid}) has run for"
        f" {render.duration(status.uptime_s)}: {made} ({render.objective(status.objective)}){dry}"
    )
    yield ""
    if status.networks:
        header = ("NETWORK", "INTERFACE", "KIND", "STATE", "METERED", "RTT", "RATE", "SIGNAL")
        yield from render.table(header, map(_network, status.networks))
        for network in status.networks:
            if network.lacks == NO_DEFAULT_ROUTE:
                yield f"{network.name} has no default route, so nothing leads over it"
        told = (predicted_text(each.name, each.predicted) for each in status.networks)
        yield from filter(None, told)
        for network in status.networks:
            yield from _indicators(network, width)
    else:
        yield "no network"
    yield ""
    default = status.default
    way = f"over {default.network}" if default.network else "as the host would send them"
    since = f" for {render.duration(default.age_s)} now" if default.age_s is not None else ""
    decided = ""
    if default.decision is not None:
        decided = f" (decision {default.decision}). Reason now:"
    for version, vpn in default.vpn.items():
        yield f"New IPv{version} connections go through the VPN {vpn}, which cedos leaves alone"
    for version, host in default.host_defaults.items():
        yield from _wrapped(_host_default(version, host), width, indent="")
    left_alone = default.vpn or default.host_defaults
    if default.network or not left_alone:
        others = f"{'Other new' if left_alone else 'New'} connections"
        yield f"{others} have gone {way}{since}{decided}"
        yield from _wrapped(render.sentence(default.reason), width)
    if status.flows:
        yield ""
        columns = ("FLOW", "SERVER", "STRATEGY", "AGE", "DOWN", "UP")
        yield from render.table(columns, map(_flow, status.flows))
        if status.other_flows:
            yield f"and {status.other_flows} more, which carried less"
    connections = [flow for flow in status.flows if flow.token is not None]
    if connections:
        yield ""
        yield "Paths of MPTCP connections"
        for connection in connections:
            yield f"  {connection.token:#010x} {connection.flow}"
            roles = ("NETWORK", "ROLE", "PATH", "RTT", "RATE")
            yield from render.table(roles, _paths(connection), indent="    ")
    yield from _through_gateways(status)
    if status.closed:
        yield ""
        for sentence in status.closed:
            yield from _wrapped(render.sentence(sentence), width)
    if status.problems:
        yield ""
        yield "Problems"
        for problem in status.problems:
            yield from _wrapped(render.sentence(problem), width)


def _host_default(version: str, host: HostDefaultMessage) -> str:
    connections = f"New IPv{version} connections"
    if not host.interface:
        return f"{connections} are refused by the host's own routes, which cedos leaves alone"
    return (
        f"{connections} go over {host.interface} ({host.what}), the host's own default, which cedos"
        " leaves alone"
    )


def _network(network: NetworkMessage) -> tuple[str, ...]:
    known = network.indicators
    rtt = known.get("rtt_s")
    seen = next((name for name in _RATES if name in known), None)
    signal = next((name for name in _SIGNALS if name in known), None)
    return (
        network.name,
        network.interface,
        network.kind,
        _state(network),
        "yes" if network.metered else "no",
        f"{render.duration(rtt.value)} ({render.ago(rtt.age_s)})" if rtt else "-",
        (
            _RATES[seen]
            + render.indicator(seen, known[seen].value)
            + (" link" if seen == "link_bps" else "")
        )
        if seen
        else "-",
        render.indicator(signal, known[signal].value) if signal else "-",
    )


def _state(network: NetworkMessage) -> str:
    if not network.up:
        return "down"
    if network.barred:
        return "blocked"
    captive = network.indicators["captive"] if _lately(network, "captive", 1.0) else None
    if captive is not None and captive.active:  # a portal has answered
        return "log-in"
    return "silent" if captive is not None or _lately(network, "available", 0.0) else "up"


def _lately(network: NetworkMessage, name: str, value: float) -> bool:
    known = network.indicators.get(name)
    return known is not None and known.value == value and known.age_s <= _LATELY_S


def _indicators(network: NetworkMessage, width: int) -> Iterator[str]:
    """Yield all indicators of a network with their ages; synthetic ones are marked."""
    notes = [
        f"{render.indicator_name(name)} {render.indicator(name, one.value)}"
        f"{'*' if one.synthetic else ''}"
        f" ({render.ago(one.age_s)})"
        for name in render.in_order(network.indicators)
        if render.worth_telling(name, (one := network.indicators[name]).value)
    ]
    if network.access_point:
        notes.insert(0, f"access point {render.plain(network.access_point)}")
    if notes:
        yield ""
        # Keep each indicator on one line.
        text = "; ".join(each.replace(" ", "\N{NO-BREAK SPACE}") for each in notes)
        for line in textwrap.wrap(
            f"{network.name}: {text}", width, subsequent_indent="  ", break_on_hyphens=False
        ):
            yield line.replace("\N{NO-BREAK SPACE}", " ")


def _wrapped(text: str, width: int, indent: str = "  ") -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )


def _flow(flow: FlowMessage) -> tuple[str, ...]:
    return (
        flow.flow,
        flow.server_name or "-",
        render.strategy(flow.strategy),
        render.duration(flow.age_s),
        *(
            # Connection tracking reports the bytes of UDP only at the end.
            ("-", "-")
            if flow.flow.startswith("udp ")
            else (render.size(flow.bytes_down), render.size(flow.bytes_up))
        ),
    )


def _through_gateways(status: StatusMessage) -> Iterator[str]:
    for gateway in dict.fromkeys(each.gateway for each in status.carried):
        yield ""
        yield f"Through {gateway}"
        rows = [
            (
                server_text(each.server, each.port),
                render.strategy(each.strategy),
                render.duration(each.age_s),
                render.size(each.bytes_down),
                render.size(each.bytes_up),
                render.networks(each.bytes_by_network) or render.UNKNOWN,
            )
            for each in status.carried
            if each.gateway == gateway
        ]
        columns = ("SERVER", "STRATEGY", "AGE", "DOWN", "UP", "OVER")
        yield from render.table(columns, rows, indent="  ")
    if status.other_carried:
        yield f"and {status.other_carried} more, which carried less"


def _paths(connection: FlowMessage) -> Iterator[tuple[str, ...]]:
    for path in connection.subflows:
        yield (
            path.network or "?",
            "backup" if path.backup else "active",
            path.flow,
            render.duration(path.rtt_s),
            render.rate(path.delivery_rate_bps),
        )
