"""`cedos rule`: the networks that connections to some hosts may use."""

from collections.abc import Iterator, Sequence

import click

from cedos.api.client import ControlClient
from cedos.api.messages import RuleMessage
from cedos.commands.console import render
from cedos.commands.console.manual import SOCKET, Manual, json_option
from cedos.commands.console.render import echo
from cedos.commands.console.user_rules import addresses
from cedos.config.directories import directories
from cedos.controller.rule import GROUPS, METERED, RuleRequest


class _Group(Manual, click.Group): ...


@click.group(
    cls=_Group,
    invoke_without_command=True,
    examples=[
        ("cedos rule add --host updates.example --never metered", "Never over the phone."),
        ("cedos rule add --host 10.8.0.0/16 --port 22 --only wlan0", "Only over one network."),
        ("cedos rule add --host bank.example --only wifi", "Over any Wi-Fi."),
        ("cedos rule", "The rules and their effects now."),
        ("cedos rule remove 1", "Removes a rule."),
    ],
    exits={0: "", 1: "There is no such rule.", **dict.fromkeys((2, 3, 6), "")},
    files=[SOCKET, ("/var/lib/cedos/rules.json", "The rules; they survive a restart.")],
)
@json_option
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """Show, add and remove your rules: hosts whose connections keep to some networks.

    A connection uses the best network that its rule allows. If none of them is up, the connection
    is refused as unreachable. Living connections stay. A rule for a name includes its subdomains.
    It holds for all addresses that this host's resolvers and its hosts file give for the name. A
    program has such an address only once its route stands. Look-ups inside TLS (DNS over TLS or
    HTTPS) cannot be seen: there the first connection to a new address may go anywhere.

    Rules apply to new TCP and UDP connections of this host while the daemon runs, to all paths of
    MPTCP connections, and to `cedos-get` and `cedos-put`. A socket that a program binds to a
    forbidden network reaches nothing. Connections under a rule bypass the gateway, except with
    `cedos forward --fail closed`.
    """
    if context.invoked_subcommand is not None:
        return
    client = _client()
    rules = client.rules()
    render.tell(rules, lines(rules), as_json=as_json)
    _warn(client)


@command.command(
    "add",
    cls=Manual,
    examples=[("cedos rule add --host updates.example --never metered", "Never over the phone.")],
    exits=(0, 2, 3, 6),
    files=[SOCKET],
)
@click.option("--host", required=True, help="A name, an address or a prefix (198.51.100.0/24).")
@click.option("--port", type=click.IntRange(1, 65535), help="Only this port.")
@click.option(
    "--only",
    multiple=True,
    metavar="NETWORK",
    help="Only over this network, or over any of a kind (wifi, cellular, ethernet); may be repeated.",
)
@click.option(
    "--never",
    multiple=True,
    metavar="NETWORK",
    help=f"Not over this network, over any of a kind, or over any `{METERED}` one; may be repeated.",
)
def add(host: str, port: int | None, only: tuple[str, ...], never: tuple[str, ...]) -> None:
    """Add a rule, or change the one for the same host and port.

    A rule for a port counts before a rule without one, also where that is for fewer hosts.
    """
    if bool(only) == bool(never):
        raise click.UsageError("either --only NETWORK or --never NETWORK is needed")
    host = host.strip().rstrip(".").lower().removeprefix("*.")
    only, never = tuple(map(_network, only)), tuple(map(_network, never))
    try:
        rule = RuleRequest(host=host, port=port, only=only, never=never)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if rule.prefix is None:
        rule = RuleRequest(host=host, port=port, only=only, never=never, addresses=addresses(host))
    client = _client()
    before = next(
        (each.rule for each in client.rules() if (each.rule.host, each.rule.port) == (host, port)),
        None,
    )
    told = client.add_rule(rule)
    render.show(lines([told]))
    if before is not None and before.words != told.rule.words:
        echo(f"It replaces your earlier rule for {host}: {before.words}.", err=True)
    names = [network.name for network in client.networks()]
    for stray in [name for name in (*only, *never) if name not in (*names, *GROUPS)]:
        echo(
            f"There is no network {stray} now. The networks are {', '.join(names) or 'none'};"
            f" {', '.join(GROUPS)} stand for all of their kind.",
            err=True,
        )
    if rule.prefix is None and not rule.addresses:
        echo(f"{host} leads to no address now. The rule holds once it does.", err=True)
    _warn(client)


def _warn(client: ControlClient) -> None:
    for problem in client.status().rule_problems:
        echo(f"Warning: {problem}", err=True)


def _network(word: str) -> str:
    """Return a network's name as it is, and a word for several as rules spell it (`Wi-Fi`: `wifi`)."""
    spelt = word.lower().replace("-", "")
    return spelt if spelt in GROUPS else word


@command.command(
    "remove",
    cls=Manual,
    examples=[("cedos rule remove 1", "Removes the first rule of `cedos rule`.")],
    exits={0: "", 1: "There is no such rule.", **dict.fromkeys((2, 3, 6), "")},
    files=[SOCKET],
)
@click.argument("number", type=click.IntRange(1))
def remove(number: int) -> None:
    """Remove a rule by its number."""
    client = _client()
    client.remove_rule(number)
    echo(f"rule {number} is gone")
    _warn(client)


def lines(rules: Sequence[RuleMessage]) -> Iterator[str]:
    if not rules:
        yield from render.wrap(
            "No rules. `cedos rule add --host updates.example --never metered` would make one."
        )
        return
    yield from render.table(("RULE", "HOST", "PORT", "NETWORKS", "NOW"), map(_row, rules))
    yield from render.wrap("A connection under a rule is refused if none of its networks is up.")


def _row(one: RuleMessage) -> tuple[str, ...]:
    rule = one.rule
    if rule.prefix is None and not rule.addresses:
        now = "no address known yet"
    else:
        refused = [f"IPv{version} refused: {why}" for version, why in one.refused.items()]
        now = "; ".join([one.network, *refused]) if one.network else _describe_refused(one)
    others = [f"IPv{version} through the VPN {name}" for version, name in one.vpn.items()]
    others += [f"IPv{version} as the host itself" for version in one.host_defaults]
    if others:
        now = f"{', '.join(others)}; else {now}"
    # (The daemon's own, while a network wants a log-in, have numbers below 0.)
    number = str(one.number) if one.number > 0 else "log-in"
    return number, rule.host, str(rule.port or "all"), rule.words, now


def _describe_refused(one: RuleMessage) -> str:
    causes = dict.fromkeys(one.refused.values()) or ["no such network is up"]
    return f"refused: {' and '.join(causes)}"


def _client() -> ControlClient:
    return ControlClient(directories().socket)
