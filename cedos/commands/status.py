"""`cedos status`: everything at a glance."""

import textwrap
from collections.abc import Iterator

import click

from cedos.api.client import ControlClient
from cedos.api.messages import FlowMessage, NetworkMessage, StatusMessage
from cedos.commands.console import render
from cedos.commands.console.manual import SOCKET, Manual, json_option
from cedos.config.directories import directories

_SIGNALS = ("rssi_dbm", "rsrp_dbm", "cqi")
# Of what was delivered it is known that the network can do at least that.
_RATES = {
    "past1_bps": "",
    "past5_bps": "",
    "past10_bps": "",
    "delivery_down_bps": "≥ ",
    "link_bps": "",
}
_LOG_IN_S = 60.0
"""So long a network that wanted a log-in is taken to want one still."""

_WIDTH = 100


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
    """Shows what the daemon sees, does and has trouble with.

    First the networks, each with its round-trip time and how old that measurement is, the rate
    lately seen on it (after "≥" one that nothing has filled, which may do more; or, marked with
    "link", the radio's own), and its signal. A network in the state "log-in" lets nothing through
    before somebody has logged in; nothing is led to one that is "barred", as a hard budget is
    spent, and programs are kept off it, unless the problems at the end say that they cannot be.
    Below, all indicators of each network with their ages (those marked * were drawn, not measured),
    and the access point of Wi-Fi. Then the network of new connections with the reason, the living
    flows with their strategy (but those that the daemon itself looks at networks with), MPTCP
    connections with their paths, and what is degraded or in the way.
    """
    status = ControlClient(directories().socket).status()
    if as_json:
        render.print_json(status)
    else:
        click.echo("\n".join(lines(status)))


def lines(status: StatusMessage) -> Iterator[str]:
    dry = ", dry run: nothing is changed" if status.dry_run else ""
    yield (
        f"cedos {status.version}, process {status.pid}, up {render.duration(status.uptime_s)},"
        f" objective {status.objective}, {status.decisions} decisions{dry}"
    )
    yield ""
    if status.networks:
        header = ("NETWORK", "INTERFACE", "KIND", "STATE", "METERED", "RTT", "RATE", "SIGNAL")
        yield from render.table(header, map(_network, status.networks))
        yield from filter(None, map(predictions, status.networks))
        for network in status.networks:
            yield from _indicators(network)
    else:
        yield "no network"
    yield ""
    default = status.default
    since = f" for {render.duration(default.age_s)}" if default.age_s is not None else ""
    number = f" (decision {default.decision})" if default.decision is not None else ""
    yield f"Default: {default.network or 'left to the host'}{since}: {default.reason}{number}"
    if status.flows:
        yield ""
        columns = ("FLOW", "SERVER", "STRATEGY", "AGE", "DOWN", "UP")
        yield from render.table(columns, map(_flow, status.flows))
    connections = [flow for flow in status.flows if flow.token is not None]
    if connections:
        yield ""
        yield "MPTCP connections"
        for connection in connections:
            yield f"  {connection.token:#010x} {connection.flow}"
            roles = ("NETWORK", "ROLE", "PATH", "RTT", "RATE")
            yield from render.table(roles, _paths(connection), indent="    ")
    if status.problems:
        yield ""
        yield "Problems"
        for problem in status.problems:
            yield f"  {problem}"


def predictions(network: NetworkMessage) -> str | None:
    """How well a network's transfers were predicted, in one line."""
    held = network.predicted
    if held is None:
        return None
    return (
        f"{network.name}: transfers were expected to take {held.expected_over_actual_median:.2g} x what"
        f" they took; {held.coverage90:.0%} of {held.n} inside the 90 % interval"
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
        f"{render.duration(rtt.value)} ({render.duration(rtt.age_s)} ago)" if rtt else "-",
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
        return "barred"
    captive = network.indicators.get("captive")
    wants = captive is not None and captive.value == 1.0 and captive.age_s <= _LOG_IN_S
    return "log-in" if wants else "up"


def _indicators(network: NetworkMessage) -> Iterator[str]:
    """All indicators of a network, each with its age; synthetic ones are marked."""
    notes = [
        f"{name} {render.indicator(name, one.value)}{'*' if one.synthetic else ''}"
        f" ({render.duration(one.age_s)})"
        for name, one in sorted(network.indicators.items())
    ]
    if network.access_point:
        notes.insert(0, f"access point {render.plain(network.access_point)}")
    if notes:
        yield ""
        # Each one stays on its line.
        text = ", ".join(each.replace(" ", "\N{NO-BREAK SPACE}") for each in notes)
        for line in textwrap.wrap(
            f"{network.name}: {text}", _WIDTH, subsequent_indent="  ", break_on_hyphens=False
        ):
            yield line.replace("\N{NO-BREAK SPACE}", " ")


def _flow(flow: FlowMessage) -> tuple[str, ...]:
    return (
        flow.flow,
        flow.server_name or "-",
        render.strategy(flow.strategy),
        render.duration(flow.age_s),
        *(
            # UDP is counted by connection tracking, which tells at the end.
            ("-", "-")
            if flow.flow.startswith("udp ")
            else (render.size(flow.bytes_down), render.size(flow.bytes_up))
        ),
    )


def _paths(connection: FlowMessage) -> Iterator[tuple[str, ...]]:
    for path in connection.subflows:
        yield (
            path.network or "?",
            "backup" if path.backup else "active",
            path.flow,
            render.duration(path.rtt_s),
            render.rate(path.delivery_rate_bps),
        )
