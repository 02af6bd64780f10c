"""`cedos status`: networks, flows and problems."""

from collections.abc import Iterator, Sequence

import click

from cedos.api.client import ControlClient
from cedos.api.messages import (
    FlowMessage,
    HostDefaultMessage,
    NetworkMessage,
    OtherDefaultMessage,
    StatusMessage,
    server_text,
)
from cedos.commands.console import render
from cedos.commands.console.manual import SOCKET, Manual, json_option
from cedos.config.directories import directories
from cedos.model import NO_DEFAULT_ROUTE, NetworkLife
from cedos.plain_text import plain, round_figures
from predictors.base import Calibration

_SIGNALS = ("rssi_dbm", "rsrp_dbm", "cqi")
# A delivery rate is a lower bound of the network's rate.
_RATES = {
    "past1_bps": "",
    "past5_bps": "",
    "past10_bps": "",
    "delivery_down_bps": "≥ ",
    "link_bps": "",
}
_STATES = {NetworkLife.CAPTIVE: "log-in", NetworkLife.DEAD: "silent", NetworkLife.SILENT: "silent"}
# The age from which a round trip is shown with its age.
_FRESH_S = 10.0
# The fewest transfers that a sentence about predictions is based on.
_LEAST = 5


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

    First the networks. RTT is the last round-trip time; an old one has its age. RATE is the recent
    download rate: "≥" marks one that did not fill the network, "link" the rate that the radio
    claims. STATE is "log-in" for a captive portal, "silent" for a network without replies, and
    "blocked" for a spent hard budget.

    Then the network of new connections, with the reason, and where connections go of an IP version
    that it lacks, or that the host's own default keeps. Then the flows that have a socket now,
    without the daemon's own queries, and the paths of MPTCP connections. Then the connections that
    `cedos forward` carries through a gateway: OVER has their networks, most bytes first. Then all
    indicators of each network, with ages in brackets; * marks synthetic values. Then stuck
    connections that were closed ([steering] close_stuck). Problems come last.

    What does not fit the terminal's width beside the rest follows below its row.
    """
    status = ControlClient(directories().socket).status()
    render.tell(status, lines(status), as_json=as_json)


def lines(status: StatusMessage) -> Iterator[str]:
    dry = ". Dry run: nothing is changed" if status.dry_run else ""
    made = f"{status.decisions} decision{'s' * (status.decisions != 1)}"
    yield from render.wrap(
        f"cedos {status.version} (process {status.pid}) has run for"
        f" {render.duration(status.uptime_s)}: {made} ({render.objective(status.objective)}){dry}"
    )
    yield ""
    yield from networks(status)
    for network in status.networks:
        if network.lacks == NO_DEFAULT_ROUTE:
            yield from render.wrap(f"{network.name} has no default route, so nothing leads over it")
        if network.leads_to is not None:
            yield from render.wrap(_helper(network))
        yield from render.wrap(_predicted_text(network.name, network.predicted))
    yield ""
    yield from default_lines(status)
    if status.flows:
        yield ""
        columns = ("SERVER", "NETWORK", "AGE", "DOWN", "UP", "FLOW")
        yield from render.table(columns, map(_flow, status.flows))
        if status.other_flows:
            yield f"and {status.other_flows} more, which carried less"
    connections = [flow for flow in status.flows if flow.token is not None]
    if connections:
        yield ""
        yield "Paths of MPTCP connections"
        for connection in connections:
            yield from render.wrap(f"{connection.token:#010x} {connection.flow}", "  ", "  ")
            roles = ("NETWORK", "ROLE", "RTT", "RATE", "PATH")
            yield from render.table(roles, _paths(connection), indent="    ")
    yield from _through_gateways(status)
    if measured := [line for network in status.networks for line in _indicators(network)]:
        yield ""
        yield "Measured"
        yield from measured
    if status.closed:
        yield ""
        for sentence in status.closed:
            yield from render.wrap(render.sentence(sentence), "  ")
    yield from problem_lines(status, before=("",))


def networks(status: StatusMessage) -> list[str]:
    """Return the table of the networks; an interface is shown where it is not the network's name."""
    if not status.networks:
        return ["no network"]
    header = ["NETWORK", "KIND", "STATE", "METERED", "RTT", "RATE", "SIGNAL", "INTERFACE"]
    if all(each.interface == each.name for each in status.networks):
        header.pop()
    return render.table(header, (_network(each)[: len(header)] for each in status.networks))


def default_lines(status: StatusMessage) -> Iterator[str]:
    """Yield the network of new connections and the reason."""
    default = status.default
    way = f"over {default.network}" if default.network else "where this host sends them"
    since = ""
    if default.age_s is not None and default.decision is not None:
        since = f" (for {render.duration(default.age_s)}, decision {default.decision})"
    for version, vpn in default.vpn.items():
        yield from render.wrap(
            f"New IPv{version} connections go through the VPN {vpn}, which cedos leaves alone"
        )
    for version, host in default.host_defaults.items():
        yield from render.wrap(_host_default(version, host))
    left_alone = default.vpn or default.host_defaults
    if default.network or not left_alone:
        others = f"{'Other new' if left_alone else 'New'} connections"
        yield from render.wrap(f"{others} go {way}{since}:")
        yield from render.wrap(render.sentence(default.reason), "  ")
    for version, other in default.others.items():
        yield from render.wrap(_other_default(version, other))


def problem_lines(
    status: StatusMessage, *, before: Sequence[str] = (), after: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the problems, if there are any, with lines around them."""
    if status.problems:
        yield from before
        yield "Problems"
        for problem in status.problems:
            yield from render.wrap(render.sentence(problem), "  ")
        yield from after


def _other_default(version: str, other: OtherDefaultMessage) -> str:
    if other.network is None:
        return f"New IPv{version} connections are refused: {render.sentence(other.why)}"
    way = f"New IPv{version} connections go over {other.network}: {render.sentence(other.why)}"
    second = f" Names with both IP versions keep to IPv4, and IPv{version} datagrams are refused."
    return way + (second if other.tcp_alone else "")


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
    old = f" ({render.format_ago(rtt.age_s)})" if rtt and rtt.age_s >= _FRESH_S else ""
    seen = next((name for name in _RATES if name in known), None)
    signal = next((name for name in _SIGNALS if name in known), None)
    return (
        network.name,
        network.kind,
        _state(network),
        "yes" if network.metered else "no",
        f"{render.duration(rtt.value)}{old}" if rtt else render.UNKNOWN,
        (
            _RATES[seen]
            + render.indicator(seen, known[seen].value)
            + (" link" if seen == "link_bps" else "")
        )
        if seen
        else render.UNKNOWN,
        render.indicator(signal, known[signal].value) if signal else render.UNKNOWN,
        network.interface,
    )


def _helper(network: NetworkMessage) -> str:
    who = f"{plain(network.neighbour)}, a neighbour" if network.neighbour else "a neighbour"
    return (
        f"{network.name} is {who} who leads to {network.leads_to} alone, for"
        f" {network.price_per_gb:.4g} a GB; {render.size(network.carried_bytes)} were carried"
    )


def _state(network: NetworkMessage) -> str:
    if not network.up:
        return "down"
    if network.barred:
        return "blocked"
    return _STATES.get(network.life, "up")


def _indicators(network: NetworkMessage) -> list[str]:
    """Return all indicators of a network with their ages; synthetic ones are marked."""
    notes = [
        f"{render.indicator_name(name)} {render.indicator(name, one.value)}"
        f"{'*' if one.synthetic else ''}"
        f" ({render.format_ago(one.age_s)})"
        for name in render.in_order(network.indicators)
        if render.worth_telling(name, (one := network.indicators[name]).value)
    ]
    if network.access_point:
        notes.insert(0, f"access point {plain(network.access_point)}")
    return render.format_list(notes, f"{network.name}: ", "  ") if notes else []


def _flow(flow: FlowMessage) -> tuple[str, ...]:
    return (
        server(flow),
        render.strategy(flow.strategy),
        render.duration(flow.age_s),
        *(
            # Connection tracking reports the bytes of UDP only at the end.
            (render.UNKNOWN, render.UNKNOWN)
            if flow.flow.startswith("udp ")
            else (render.size(flow.bytes_down), render.size(flow.bytes_up))
        ),
        flow.flow,
    )


def server(flow: FlowMessage) -> str:
    """Return a flow's server by its name, else its address, with the port."""
    remote = flow.flow.rpartition(" > ")[2]
    port = remote.rpartition(":")[2]
    return server_text(flow.server_name, int(port)) if flow.server_name else remote


def _through_gateways(status: StatusMessage) -> Iterator[str]:
    for gateway in dict.fromkeys(each.gateway for each in status.carried):
        yield ""
        yield from render.wrap(f"Through {gateway}")
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
        columns = ("SERVER", "NETWORK", "AGE", "DOWN", "UP", "OVER")
        yield from render.table(columns, rows, indent="  ")
    if status.other_carried:
        yield f"and {status.other_carried} more, which carried less"


def _paths(connection: FlowMessage) -> Iterator[tuple[str, ...]]:
    for path in connection.subflows:
        yield (
            path.network or "?",
            "backup" if path.backup else "active",
            render.duration(path.rtt_s),
            render.rate(path.delivery_rate_bps),
            path.flow,
        )


def _predicted_text(name: str, held: Calibration | None) -> str:
    """Compare predictions with transfers in a sentence; empty if there were too few."""
    if held is None or held.n < _LEAST or not held.expected_over_actual_median > 0.0:
        return ""
    # Actual over expected: below 1 the forecasts were longer than the transfers.
    times = 1.0 / held.expected_over_actual_median
    how = "right"
    if not 0.95 <= times < 1.05:
        how = f"{round_figures(max(times, 1.0 / times), 2)} times too {'slow' if times < 1.0 else 'fast'}"
    return f"Forecasts for {name} were {how} lately ({held.n} transfers)"
