"""The commands of a host that shares: `cedos share register`, `help` and `request`."""

import asyncio
import re
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from typing import Final

import click

from cedos import logs
from cedos.api.client import ControlClient
from cedos.api.messages import NetworkMessage
from cedos.apps.sharing import own_identity
from cedos.apps.sharing.help_driver import HelpDriver, read_charge
from cedos.apps.sharing.own_identity import SharingClock, read_identity
from cedos.apps.sharing.protocol.helper import HelperTerms, Uplink
from cedos.apps.sharing.protocol.messages import Endpoint
from cedos.apps.sharing.protocol.requestor import RequestorWish
from cedos.apps.sharing.request_driver import MoneyBudgets, RequestDriver
from cedos.apps.sharing.side_driver import Side
from cedos.apps.sharing.store import SharingStore
from cedos.commands.console.manual import BIT_RATE, SIZE, STATE, Manual, Parsed
from cedos.commands.console.render import echo
from cedos.config.directories import directories
from cedos.errors import AlreadyRunningError, CedosError, HostError, SharingError
from cedos.host.steer.journal import Journal
from cedos.host.steer.kernel.interface import refusals
from cedos.host.steer.sharing.forwarding import Forwarding
from cedos.host.steer.sharing.helper_paths import HelperPaths
from cedos.host.steer.sharing.kernel import SharingKernel, SharingRole
from cedos.host.steer.sharing.undo import open_journal, undo_sharing
from cedos.kernel import privileges
from cedos.kernel.policy_routing import SHARING_PROTOCOL
from cedos.kernel.service_manager import call_at_end
from cedos.logs import BoundLogger, get_logger
from cedos.model import NetworkKind
from cedos.proxy.local import joined_gateway
from cedos.proxy.local.gateway_link import GatewayLink
from cedos.proxy.local.joined_gateway import JoinedGateway
from cedos.selector.sharing import NetworkType
from cedos.session.io.links import NetworkIdentifier, user_overrides
from cedos.storage.sharing_status import STATUS_FILES, read_status

_MILLIONTHS: Final = 1_000_000
# More than an attempt to reach the gateway takes, so that its failure is what is told.
_PATIENCE_S: Final = 12.0
_DAEMON_S: Final = 2.0
_TYPES: Final = {
    NetworkKind.WIFI: NetworkType.WIFI,
    NetworkKind.ETHERNET: NetworkType.ETHERNET,
    NetworkKind.CELLULAR: NetworkType.LTE,
}
_log: Final[BoundLogger] = get_logger()
_link_option = click.option(
    "--link", metavar="INTERFACE",
    help="The interface that the neighbours are on.  [default: the only one that is no uplink]",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Money:
    """An amount in millionths of a currency, such as EUR."""

    millionths: int
    currency: str


def _money(text: str) -> Money:
    match = re.fullmatch(r"(\d+(?:\.\d{1,6})?) ?([A-Z]{3})", text)
    if match is None or float(match[1]) > 1e6:
        raise ValueError(f"{text!r} is not an amount such as 2EUR or 0.50EUR")
    return Money(round(float(match[1]) * _MILLIONTHS), match[2])


_MONEY: Final = Parsed("amount", _money)


def _price(text: str) -> Money:
    amount, slash, unit = text.rpartition("/")
    if not slash or unit != "GB":
        raise ValueError(f"{text!r} is not a price such as 0.50EUR/GB")
    return _money(amount)


_PRICE: Final = Parsed("price", _price)


def _share(text: str) -> float:
    match = re.fullmatch(r"(\d{1,3})%", text)
    if match is None or int(match[1]) > 100:
        raise ValueError(f"{text!r} is not a share such as 40%")
    return int(match[1]) / 100


_PERCENT: Final = Parsed("share", _share)


@click.command(
    "register", cls=Manual,
    examples=[("sudo cedos share register", "Once a month, over any network.")],
    exits=(0, 1, 2, 3),
)  # fmt: skip
@click.option("--name", help="What neighbours see.  [default: the host's name]")
def register(name: str | None) -> None:
    """Have the joined gateway certify this host, so that neighbours trust it."""
    # The sides read the key and the certificate of the user that they run as, and that is root.
    privileges.require("cedos share register")
    logs.configure("error", "console")
    joined = _join_gateway()
    expires_s = asyncio.run(_register(joined, name or own_identity.own_name()))
    days = (expires_s - time.time()) / 86_400
    echo(f"Registered at {joined} for {days:.0f} days.")


async def _register(joined: JoinedGateway, name: str) -> float:
    link = GatewayLink(joined, patience_s=_PATIENCE_S)
    now_s = SharingClock().now_s()
    facts = await link.ask_share(own_identity.facts_question(), _PATIENCE_S)
    question = own_identity.certificate_question(facts, joined.client.public, name, now_s)
    given = await link.ask_share(question, _PATIENCE_S)
    return own_identity.keep_certificate(given, facts, now_s)


@click.command(
    "request", cls=Manual,
    examples=[("sudo cedos share request --rate 8Mbit --budget 2EUR", "Until Ctrl-C.")],
    exits=(0, 1, 2, 3, 4, 5), files=[STATE],
)  # fmt: skip
@click.option("--rate", type=BIT_RATE, required=True, help="The rate wanted from all helpers.")
@click.option("--budget", type=_MONEY, help="The most to spend, such as 2EUR.")
@click.option("--most-price", type=_PRICE, help="Dearer helpers are not taken, such as 1EUR/GB.")
@_link_option
def request(
    rate: float,
    budget: Money | None,
    most_price: Money | None,
    link: str | None,
) -> None:
    """Use the networks of neighbours until Ctrl-C, and pay for what the gateway counts."""
    currencies = {each.currency for each in (budget, most_price) if each is not None}
    if len(currencies) > 1:
        raise click.UsageError("--budget and --most-price have different currencies")
    with _side(SharingRole.REQUEST) as (kernel, journal):
        shared = link or _only_link(kernel)
        identity, trust = read_identity(SharingClock().now_s())
        budgets = MoneyBudgets(ControlClient(directories().socket, _DAEMON_S).budgets)
        wish = RequestorWish(
            int(rate),
            currency=next(iter(currencies), "EUR"),
            most_price=most_price.millionths if most_price else None,
            budget=budget.millionths if budget else None,
            own_network=bool(kernel.default_routes()),
        )
        paths = HelperPaths(kernel, journal, shared)

        async def run(link: GatewayLink, store: SharingStore, status: Path) -> None:
            side = Side(identity, trust, shared, link.ask_share, store, status)
            asking = asyncio.get_running_loop().create_task(budgets.follow())
            try:
                await RequestDriver(side, wish, paths, lambda: budgets.spent).run()
            finally:
                asking.cancel()

        asyncio.run(_until_signal(SharingRole.REQUEST, run))


@click.command(
    "help", cls=Manual,
    examples=[
        ("sudo cedos share help --price 0.50EUR/GB --limit 500MB --battery 40%", "Until Ctrl-C.")
    ],
    exits=(0, 1, 2, 3, 4, 5), files=[STATE],
)  # fmt: skip
@click.option("--price", type=_PRICE, required=True, help="Such as 0.50EUR/GB.")
@click.option(
    "--limit", type=SIZE, required=True, metavar="SIZE",
    help="The most for all neighbours together, both directions; the kernel stops what exceeds it.",
)  # fmt: skip
@click.option(
    "--battery", type=_PERCENT, default="20%", show_default=True, help="Stop below this charge."
)
@click.option(
    "--rate", type=BIT_RATE, help="The rate that this host's network has, if it is known."
)
@click.option(
    "--uplink", metavar="INTERFACE", help="The network to share.  [default: the default route's]"
)
@_link_option
def help_(
    price: Money, limit: int, battery: float, rate: float | None, uplink: str | None,
    link: str | None,
) -> None:  # fmt: skip
    """Let neighbours use this host's network until Ctrl-C, to reach the gateway and nothing else."""
    joined = _join_gateway()
    # What is asked of the uplink may block, beside what is forwarded.
    with _side(SharingRole.HELP) as (kernel, journal), closing(SharingKernel()) as asked:
        shared = link or _only_link(kernel)
        identity, trust = read_identity(SharingClock().now_s())
        forwarding = Forwarding(kernel, journal, shared, limit_bytes=limit, uplink=uplink)
        terms = HelperTerms(price.millionths, limit, price.currency, battery_floor=battery)
        networks = ControlClient(directories().socket, _DAEMON_S).networks
        facts = _UplinkFacts(asked, joined, shared, forwarding.uplink, rate, networks)

        async def run(link: GatewayLink, store: SharingStore, status: Path) -> None:
            side = Side(identity, trust, shared, link.ask_share, store, status)
            await HelpDriver(side, terms, forwarding, facts.read).run()

        asyncio.run(_until_signal(SharingRole.HELP, run))


COMMANDS: Final = (register, request, help_)


def _join_gateway() -> JoinedGateway:
    return joined_gateway.read(joined_gateway.path())[0]


@contextmanager
def _side(role: SharingRole) -> Iterator[tuple[SharingKernel, Journal]]:
    """Hold the journal of a side; undo what a dead process left before, and everything after."""
    privileges.require("cedos share")
    logs.configure("info", "console")
    with ExitStack() as stack:
        kernel = SharingKernel()
        stack.callback(kernel.close)
        try:
            journal = open_journal(directories().state, role)
        except AlreadyRunningError:
            side = role.name.lower()
            found = read_status(directories().runtime / STATUS_FILES[side])
            process = f", as process {found['pid']}" if found else ""
            raise AlreadyRunningError(
                f"`cedos share {side}` runs on this host already{process}: stop that one first"
            ) from None
        stack.callback(journal.close)
        with refusals("share bandwidth"):
            _undo(kernel, role, journal)
            try:
                yield kernel, journal
            finally:
                _undo(kernel, role, journal)


def _undo(kernel: SharingKernel, role: SharingRole, journal: Journal) -> None:
    undone = undo_sharing(kernel, role, journal.read())
    if undone.left:
        raise SharingError(
            f"could not be undone: {'; '.join(undone.left)}; `cedos restore` tries it again"
        )
    journal.remove()


async def _until_signal(
    role: SharingRole, run: Callable[[GatewayLink, SharingStore, Path], Awaitable[None]]
) -> None:
    """Run a driver until a signal ends it."""
    store = SharingStore(directories().state / "sharing.sqlite")
    link = GatewayLink(_join_gateway(), patience_s=_PATIENCE_S)
    running = asyncio.ensure_future(
        run(link, store, directories().runtime / STATUS_FILES[role.name.lower()])
    )
    # A second one would not wait for the kernel's part, which would go on after it is undone.
    call_at_end(lambda: running.cancelling() or running.cancel())
    try:
        with suppress(asyncio.CancelledError):
            await running
    finally:
        store.close()


def _only_link(kernel: SharingKernel) -> str:
    """Return the only interface with an IPv4 address that has no default route. HostError: no such."""
    uplinks = {each.index for each in kernel.default_routes()}
    addressed = {
        each.index
        for each in kernel.addresses()
        if each.interface.version == 4 and each.protocol != SHARING_PROTOCOL
    }
    found = [
        link.name
        for link in kernel.links()
        if not link.loopback and link.carries and link.index in addressed - uplinks
    ]
    if len(found) != 1:
        there = f"there are {', '.join(found)}" if found else "there is none"
        raise HostError(
            f"which link are the neighbours on? {there}; --link INTERFACE would be right"
        )
    return found[0]


class _UplinkFacts:
    """The facts of this host's own network that a Join tells."""

    def __init__(
        self,
        kernel: SharingKernel,
        joined: JoinedGateway,
        shared: str,
        uplink: str,
        rate_bps: float | None,
        networks: Callable[[], list[NetworkMessage]],  # asks the daemon; CedosError: none answers
    ) -> None:
        self._kernel, self._joined, self._networks = kernel, joined, networks
        self._shared, self._uplink, self._rate_bps = shared, uplink, rate_bps
        self._identifier = NetworkIdentifier(user_overrides())

    def read(self) -> Uplink | None:
        """Return them as they are now; None: the gateway or a link is out of reach. It blocks."""
        links = {each.name: each for each in self._kernel.links()}
        shared, uplink = links.get(self._shared), links.get(self._uplink)
        if shared is None or uplink is None or not shared.carries or not uplink.carries:
            return None
        if self._is_barred():
            return None
        own = [
            each.interface.ip.packed
            for each in self._kernel.addresses()
            if each.index == shared.index
            and isinstance(each.interface.ip, IPv4Address)
            and each.protocol != SHARING_PROTOCOL
        ]
        reaches = self._reaches()
        if not own or reaches is None:
            return None
        kind = self._identifier.identify(uplink, {each.index: each for each in links.values()}).kind
        charge = read_charge()
        return Uplink(
            _TYPES.get(kind, NetworkType.UNKNOWN),
            own[0],
            reaches,
            rate_bps=None if self._rate_bps is None else int(self._rate_bps),
            battery=charge.level if charge is not None else None,
            battery_s=charge.lasts_s if charge is not None else None,
        )

    def _is_barred(self) -> bool:
        """Return whether a hard budget bars the uplink, for what is forwarded too."""
        try:
            return any(each.barred for each in self._networks() if each.interface == self._uplink)
        except CedosError:
            return False

    def _reaches(self) -> Endpoint | None:
        try:
            infos = socket.getaddrinfo(
                self._joined.host, self._joined.port, socket.AF_INET, socket.SOCK_STREAM
            )
        except OSError as error:
            _log.warning("the gateway's name is not found", why=error.strerror or str(error))
            return None
        return Endpoint(ip_address(infos[0][4][0]).packed, self._joined.port)
