"""The host's networks, followed by rtnetlink events.

An event only says that something changed; then the monitor reads all links, addresses and default routes
again. Events alone would not keep its tables right: the kernel drops the IPv4 routes of a link that goes
down without an event.

The helpers of this host, as `cedos share request` left them in the kernel's tables.

Each has an address on the shared link, and a table of its own that leads from there to the gateway. The
address's metric is the helper's price, in millionths for 10^9 bytes.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from cedos.errors import HostError
from cedos.host.costly_reads import CostlyReads
from cedos.host.monitor.events import Change, Mailbox, NetworkEvent
from cedos.host.monitor.resolvers import HostResolvers, Resolvers, ResolverSource
from cedos.kernel import policy_routing, rtnetlink
from cedos.kernel.interface_kind import (
    Hardware,
    HardwareSource,
    MeteredWord,
    Sysfs,
    carriers,
    check,
    identify,
    is_translator,
)
from cedos.kernel.netlink import (
    NETLINK_ROUTE,
    AsyncRequester,
    Keeps,
    NetlinkListener,
    NetlinkMessage,
    messages,
)
from cedos.kernel.policy_routing import (
    HELPER_TABLES,
    RTM_GETNEXTHOP,
    SHARING_PROTOCOL,
    DefaultRoute,
    Prefix,
    SeenRoute,
    nexthops_request,
    parse_nexthops,
)
from cedos.kernel.rtnetlink import Counters, Link, LinkAddress
from cedos.limits import TokenBucket
from cedos.logs import get_logger
from cedos.model import Address, Network, NetworkKind, NetworkOverride, NextHop, Translator

_log = get_logger(__name__)
_PRICE_MB: Final = 1e9
_T = TypeVar("_T")


def is_of_helper(address: LinkAddress) -> bool:
    """Return whether an address leads by a helper, and not where others of its interface lead."""
    return address.protocol == SHARING_PROTOCOL


def helpers(
    links: Mapping[int, Link], addresses: Iterable[LinkAddress], routes: Iterable[SeenRoute]
) -> list[Network]:
    """Return the helpers by which a route leads somewhere, in the order of their tables."""
    own = {each.interface.ip: each for each in addresses if is_of_helper(each)}
    found = []
    for route in sorted(routes, key=lambda each: each.table):
        address = own.get(route.source) if route.source is not None else None
        link = links.get(route.index)
        if route.table not in HELPER_TABLES or address is None or link is None:
            continue
        found.append(
            Network(
                # The names are few, however many neighbours are met: what is counted has the name.
                name=f"helper-{HELPER_TABLES.index(route.table) + 1}",
                interface=link.name,
                index=link.index,
                kind=NetworkKind.HELPER,
                metered=True,
                addresses=(address.interface,),
                next_hops=(NextHop(4, route.gateway),),
                # One that leaves carries what is on its way, and nothing new.
                up=link.carries and address.preferred,
                carrier=link.running,
                leads_to=route.destination.network_address,
                money_per_mb=address.metric / _PRICE_MB,
            )
        )
    return found


class MeteredSource(Protocol):
    """A source that knows which networks the system calls metered."""

    async def start(self, changed: Callable[[], None]) -> None: ...

    async def read(self, interfaces: Mapping[str, int]) -> Mapping[str, MeteredWord]:
        """Return the system's word on interfaces (name -> index), as far as it has one; never raise."""


# Wait this long after an event, so that many events are followed by one reading: an interface that comes
# up causes many.
_SETTLE_S = 0.005


_TRIES = 5
# Services usually answer within this time.
_PATIENCE_S = 0.05
# Hardware that could not be read is looked at again after this time.
_AGAIN_S = 1.0
# The interfaces that are remembered, as the end of one may be told after the tables lack it.
_MOST_HAD = 256

# The changes that are followed at once, and how many a second beyond. A neighbour can have this host's
# router come and go without end.
_AT_ONCE, _PER_S = 20, 5.0


_GROUPS = (
    rtnetlink.GROUP_LINK,
    rtnetlink.GROUP_IPV4_ADDRESS,
    rtnetlink.GROUP_IPV4_ROUTE,
    rtnetlink.GROUP_IPV6_ADDRESS,
    rtnetlink.GROUP_IPV6_ROUTE,
)


_DELLINK = rtnetlink.RTM_DELLINK.to_bytes(2, sys.byteorder)
_OF_LINKS = (
    rtnetlink.RTM_NEWLINK,
    rtnetlink.RTM_DELLINK,
    rtnetlink.RTM_NEWADDR,
    rtnetlink.RTM_DELADDR,
)


class Tables:
    """Links, addresses and default routes at one instant.

    `gone`: the last counters of interfaces that are gone since the last tables.
    """

    def __init__(self, answers: Iterable[NetlinkMessage]) -> None:
        self.links: dict[int, Link] = {}
        self.addresses: dict[int, list[LinkAddress]] = {}
        self.routes: dict[int, list[DefaultRoute]] = {}
        # This host's addresses for helpers, and the routes from these.
        self.shared: list[LinkAddress] = []
        self.shared_routes: list[SeenRoute] = []
        # All addresses of this host, and the prefixes that are whole its own.
        self.own: list[LinkAddress] = []
        self.local: list[Prefix] = []
        self.gone: Mapping[int, Counters] = {}
        answers = list(answers)
        objects = parse_nexthops(answers)
        for answer in answers:
            if (link := rtnetlink.parse_link(answer)) is not None:
                self.links[link.index] = link
            elif (address := rtnetlink.parse_address(answer)) is not None:
                self.own.append(address)
                if is_of_helper(address):
                    self.shared.append(address)
                elif address.wide:
                    self.addresses.setdefault(address.index, []).append(address)
            elif policy_routing.is_of_sharing(answer):
                if (seen := policy_routing.parse_route(answer)) is not None:
                    self.shared_routes.append(seen)
            elif (prefix := policy_routing.prefix_of_host(answer)) is not None:
                self.local.append(prefix)
            else:
                for route in policy_routing.parse_default_routes(answer, objects):
                    self.routes.setdefault(route.index, []).append(route)

    def metric(self, index: int) -> int | None:
        """Return the lowest metric of the interface's default routes; None: it has none."""
        return min((route.metric for route in self.routes.get(index, ())), default=None)

    def next_hops(self, index: int) -> tuple[NextHop, ...]:
        """Return the next hop of the best default route of each IP version, IPv4 first."""
        chosen: dict[int, NextHop] = {}
        for route in sorted(self.routes.get(index, ()), key=lambda r: (r.version, r.rank)):
            chosen.setdefault(route.version, NextHop(route.version, route.gateway))
        return tuple(chosen.values())


class _LookedUp:
    """A source of hardware that notes whether all could be read."""

    def __init__(self, source: HardwareSource) -> None:
        self._source = source
        self.known = True

    def look_up(self, link: rtnetlink.Link) -> Hardware:
        found = self._source.look_up(link)
        self.known = self.known and found.known
        return found


def assemble(
    tables: Tables,
    resolvers: Resolvers,
    hardware: HardwareSource,
    overrides: Mapping[str, NetworkOverride],
    metered: Mapping[str, MeteredWord | None] | None = None,
) -> list[tuple[Network, int | None]]:
    """Return the networks with their metrics, best metric first, those without a default route last.

    A network is up if its link runs, it has an address, and a default route leads over it (with a
    gateway, or without one on a point-to-point link).
    """
    found: list[tuple[Network, int | None]] = []
    for link in tables.links.values():
        behind = hardware.look_up(link)
        beneath = carriers(link, tables.links, hardware)
        leads_out = link.index in tables.routes
        identity = identify(link, behind, overrides, beneath, leads_out=leads_out)
        if identity is None:
            continue
        addresses = tuple(address.interface for address in tables.addresses.get(link.index, ()))
        metric = tables.metric(link.index)
        network = Network(
            name=identity.name,
            interface=link.name,
            index=link.index,
            kind=identity.kind,
            metered=identity.is_metered(
                (each.ip for each in addresses), (metered or {}).get(link.name)
            ),
            addresses=addresses,
            next_hops=tables.next_hops(link.index),
            resolvers=resolvers.of(link.index, addresses, genuine=behind.genuine),
            up=link.running and bool(addresses) and metric is not None,
            carrier=link.running,
        )
        found.append((network, metric))
    found = _with_translator(found, tables)
    return sorted(found, key=lambda pair: (pair[1] is None, pair[1] or 0, pair[0].index))


def _with_translator(
    found: Sequence[tuple[Network, int | None]], tables: Tables
) -> list[tuple[Network, int | None]]:
    """Return the networks, with a translator (464XLAT) at the one that carries the host's IPv6.

    A translator's packets leave this host as IPv6, by the host's default route. So the metric of the
    translator's own default route does not matter.
    """
    translators = [
        Translator(link.name, link.index, tuple(address.interface for address in own))
        for link in tables.links.values()
        if link.running
        and any(route.version == 4 for route in tables.routes.get(link.index, ()))
        and (own := tables.addresses.get(link.index, []))
        and is_translator(link, (each.interface.ip for each in own))
    ]
    ranks = {
        network.name: min(
            route.rank for route in tables.routes[network.index] if route.version == 6
        )
        for network, _ in found
        if network.leads_out(6)
    }
    first = min(ranks, key=lambda name: ranks[name], default=None)
    return [
        (replace(network, translator=translators[0]), metric)
        if translators and network.name == first
        else (network, metric)
        for network, metric in found
    ]


def compare(
    before: Mapping[str, Network], after: Mapping[str, Network], at_s: float
) -> list[NetworkEvent]:
    """Return the changes; losses come first, so that a consumer never has two networks of one interface.

    If a network's interface has another index, the network is lost and appears again, since sockets that
    were bound to the old interface are dead.
    """
    events = [
        NetworkEvent(Change.LOST, old, old, at_s)
        for name, old in before.items()
        if name not in after or after[name].index != old.index
    ]
    for name, new in after.items():
        old_one = before.get(name)
        if old_one is None or old_one.index != new.index:
            events.append(NetworkEvent(Change.APPEARED, new, None, at_s))
        elif old_one != new:
            events.append(NetworkEvent(Change.CHANGED, new, old_one, at_s))
    return events


class TableSource(Protocol):
    """A reader of the kernel's tables that tells when they may have changed."""

    def start(self, changed: "asyncio.Event") -> None: ...

    async def read(self) -> Tables:
        """Return the present tables. OSError, TimeoutError: the kernel does not answer."""

    def close(self) -> None: ...


class KernelTables:
    """The tables of the network namespace that the calling thread is in."""

    def __init__(self) -> None:
        self._requester = AsyncRequester(NETLINK_ROUTE)
        self._listener: NetlinkListener | None = None
        # By IP version and table, as last read.
        self._routes: dict[tuple[int, int], list[NetlinkMessage]] = {}
        self._gone: dict[int, Counters] = {}

    def start(self, changed: "asyncio.Event") -> None:
        """Set `changed` from now on when networks may have changed. HostError: the kernel refuses."""

        def on_datagram(datagram: bytes) -> None:
            # (A notification is one message. Those of routes may come by the ten thousand.)
            if datagram[4:6] == _DELLINK:
                self._gone |= filter(None, map(rtnetlink.parse_last_counters, messages(datagram)))
            if not changed.is_set() and any(map(changes_networks, messages(datagram))):
                changed.set()

        self._listener = NetlinkListener(NETLINK_ROUTE, _GROUPS, on_datagram, changed.set)

    async def read(self) -> Tables:
        dump = self._requester.dump
        answers = await dump(rtnetlink.RTM_GETLINK, rtnetlink.links_request())
        answers += (addresses := await dump(rtnetlink.RTM_GETADDR, rtnetlink.addresses_request()))
        answers += await dump(RTM_GETNEXTHOP, nexthops_request())
        for version, table in product(
            (4, 6), (policy_routing.MAIN_TABLE, policy_routing.LOCAL_TABLE)
        ):
            # Ask for one table alone: the kernel leaves out the routes of all others.
            request = policy_routing.routes_request(version, table=table)
            keeps: Keeps = policy_routing.is_of_host
            if table == policy_routing.MAIN_TABLE:
                keeps = policy_routing.DefaultRoutesFilter()
            kind, patience_s = rtnetlink.RTM_GETROUTE, policy_routing.ROUTES_S
            try:
                found = await dump(kind, request, patience_s, keeps)
                self._routes[version, table] = found
            except TimeoutError:
                # They are announced faster than they can be read: links and addresses count all the same.
                if (version, table) not in self._routes:
                    raise
            answers += self._routes[version, table]
        if any(map(is_of_helper, filter(None, map(rtnetlink.parse_address, addresses)))):
            request = policy_routing.routes_request(4, protocol=SHARING_PROTOCOL)
            shared = await dump(rtnetlink.RTM_GETROUTE, request, keeps=policy_routing.is_of_sharing)
            answers += shared
        tables = Tables(answers)
        tables.gone, self._gone = self._gone, {}
        return tables

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._requester.close()


def changes_networks(message: NetlinkMessage) -> bool:
    """Return whether an event can change a network; those of steering's tables and most routes cannot."""
    return (
        message.type in _OF_LINKS
        or policy_routing.is_main_default(message)
        or policy_routing.is_of_sharing(message)
        or policy_routing.is_of_host(message)
    )


class _Service(Generic[_T]):
    """The last word of a service, which counts while the service takes seconds for the next.

    `changed` is called where the service says something else later than was returned.
    """

    def __init__(self, ask: Callable[[], Awaitable[_T]], changed: Callable[[], None]) -> None:
        self._ask = ask
        self._changed = changed
        self._asking: asyncio.Task[_T] | None = None
        self._stale = False
        self._said: _T | None = None

    async def read(self) -> _T:
        """Ask anew. Only the first answer is waited for, however long it takes."""
        self._stale = True
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._until_fresh())
        if self._said is None:
            return await self._asking
        told = self._said
        if (await asyncio.wait({self._asking}, timeout=_PATIENCE_S))[0]:
            return self._asking.result()
        self._asking.add_done_callback(lambda _: self._said == told or self._changed())
        return told

    async def _until_fresh(self) -> _T:
        while self._stale:
            self._stale = False
            said = self._said = await self._ask()
        return said

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()


class LinkMonitor:
    """The present networks and their changes, as an asynchronous context manager.

    By default it reads the calling thread's network namespace, the host's sysfs, and resolv.conf alone.
    ConfigError: the overrides contradict each other. HostError: on entering: the kernel refuses
    rtnetlink.
    """

    def __init__(
        self,
        overrides: Mapping[str, NetworkOverride] | None = None,
        *,
        tables: TableSource | None = None,
        hardware: HardwareSource | None = None,
        resolvers: ResolverSource | None = None,
        metered: MeteredSource | None = None,
    ) -> None:
        self._overrides = dict(overrides or {})
        check(self._overrides)
        self._given_tables = tables
        self._hardware = hardware or Sysfs()
        self._resolvers = resolvers or HostResolvers(None)
        self._metered = metered
        self._interfaces: Mapping[str, int] = {}
        self._networks: dict[str, Network] = {}
        self._helpers: dict[str, Network] = {}
        self._metrics: dict[str, int] = {}
        self._addresses: set[Address] = set()
        self._here: set[Address] = set()
        self._within: set[Prefix] = set()
        self._had: dict[int, Network] = {}  # by index, those that are gone, too
        self._gone: dict[int, Counters] = {}
        self._mailbox: Mailbox[NetworkEvent] = Mailbox()
        self._changed = asyncio.Event()
        self._servers = _Service(self._resolvers.read, self._changed.set)
        self._words = _Service(self._ask_metered, self._changed.set)
        self._again: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> "LinkMonitor":
        self._tables = self._given_tables or KernelTables()
        # Subscribe to events before the first reading: a change in between is then read twice, not
        # missed.
        try:
            self._tables.start(self._changed)
            await self._resolvers.start(self._changed.set)
            if self._metered is not None:
                await self._metered.start(self._changed.set)
            await self._read()
        except BaseException as error:
            await self._close()
            if isinstance(error, OSError):  # TimeoutError is one
                raise HostError(
                    f"rtnetlink does not report the host's networks ({error})"
                ) from error
            raise
        self._task = asyncio.create_task(self._follow(), name="links")
        # If the task ends by an error, its consumer must not wait for ever.
        self._task.add_done_callback(lambda task: self._mailbox.close())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        await self._close()

    async def _close(self) -> None:
        self._tables.close()
        self._servers.close()
        self._words.close()
        await self._resolvers.close()
        self._mailbox.close()

    def networks(self) -> list[Network]:
        """Return this host's present networks, up or not, those with the better metric first."""
        return list(self._networks.values())

    def helpers(self) -> list[Network]:
        """Return the neighbours that forward to the gateway now."""
        return list(self._helpers.values())

    def metrics(self) -> Mapping[str, int]:
        """Return the metric of each network's default route; a network without one is missing."""
        return dict(self._metrics)

    def is_local(self, address: Address) -> bool:
        """Return whether the address is one of a network's or a helper's."""
        return address in self._addresses

    def is_here(self, address: Address) -> bool:
        """Return whether what is sent to an address stays within this host: it goes by no network.

        It is so for each own address, and what lies behind a virtual interface that is no network
        (containers), unless a network's own subnet or a helper's gateway is there, too.
        """
        return address in self._here or any(address in each for each in self._within)

    def events(self) -> AsyncIterator[NetworkEvent]:
        """Return the changes since the monitor was started; for one consumer."""
        return self._mailbox.iterate()

    async def _read(self) -> list[NetworkEvent]:
        self._changed.clear()
        tables = await self._tables.read()
        self._here = {each.interface.ip for each in tables.own}
        self._gone |= tables.gone
        self._interfaces = {link.name: link.index for link in tables.links.values()}
        resolvers, metered = await asyncio.gather(self._servers.read(), self._words.read())
        hardware = _LookedUp(self._hardware)
        # An interface of which nothing has been said yet may cost something: a wall is to stand at once.
        words = {
            link.name: metered.get((link.name, link.index), MeteredWord.GUESSED_YES)
            for link in tables.links.values()
        }
        found = assemble(tables, resolvers, hardware, self._overrides, words)
        loop = asyncio.get_running_loop()
        if not hardware.known and (self._again is None or self._again.when() <= loop.time()):
            self._again = loop.call_later(_AGAIN_S, self._changed.set)
        before = self._helpers | self._networks
        self._networks = {network.name: network for network, _ in found}
        self._metrics = {network.name: m for network, m in found if m is not None}
        shared = helpers(tables.links, tables.shared, tables.shared_routes)
        self._helpers = {each.name: each for each in shared}
        now = self._helpers | self._networks
        indexes = {network.index for network in now.values()}
        # (What has no kind is hardware: an ignored network, whose router chooses the prefix.)
        beside = {i for i, link in tables.links.items() if link.running and link.kind} - indexes
        prefixes = {each.interface.network for each in tables.own if each.index in beside}
        reached = {a.network.network_address for n in now.values() for a in n.addresses}
        reached |= {each.leads_to for each in shared if each.leads_to is not None}
        # A prefix around a network's hosts, or a helper's gateway, would leave their bytes uncounted.
        self._within = {*tables.local} | {
            each for each in prefixes if not any(other in each for other in reached)
        }
        self._addresses = {a.ip for network in now.values() for a in network.addresses}
        at_s = time.monotonic()
        return [*self._last_counts(at_s), *compare(before, now, at_s)]

    async def _ask_metered(self) -> Mapping[tuple[str, int], MeteredWord | None]:
        interfaces = self._interfaces
        words = await self._metered.read(interfaces) if self._metered is not None else {}
        return {each: words.get(each[0]) for each in interfaces.items()}

    def _last_counts(self, at_s: float) -> list[NetworkEvent]:
        """Return what networks carried whose interfaces are gone, by their last counters."""
        found = [(self._had.get(index), counters) for index, counters in self._gone.items()]
        self._gone.clear()
        for each in self._networks.values():  # those that are gone come first
            self._had.pop(each.index, None)
            self._had[each.index] = each
        while len(self._had) > _MOST_HAD:
            del self._had[next(iter(self._had))]
        return [NetworkEvent(Change.COUNTED, n, n, at_s, counters) for n, counters in found if n]

    async def _follow(self) -> None:
        failures, reads = 0, CostlyReads()
        changes = TokenBucket(_PER_S, _AT_ONCE, time.monotonic())
        while True:
            await self._changed.wait()
            await asyncio.sleep(max(_SETTLE_S * 2**failures, reads.pause_s))
            if changes.available(time.monotonic()) < 1:
                await asyncio.sleep(changes.wait_s)
            try:
                with reads.measure():
                    events = await self._read()
            except Exception as error:
                # A table changed while it was read (ENOBUFS, EINTR): read again, after a longer pause.
                # Whatever else it is, the daemon must not be deaf from now on.
                if not isinstance(error, OSError) and not failures:
                    _log.exception("the networks cannot be read")
                failures = min(failures + 1, _TRIES)
                self._changed.set()
                continue
            failures = 0
            if events:
                changes.take(time.monotonic())
            for event in events:
                self._mailbox.put(event)


class InterfaceCounters:
    """The counters of the network namespace that the calling thread is in at the first reading."""

    def __init__(self) -> None:
        self._requester: AsyncRequester | None = None

    async def read(self, index: int) -> Counters | None:
        """Return the counters of interface `index`, None where it is gone or the kernel does not tell."""
        request = rtnetlink.counters_request(index)
        try:
            if self._requester is None:
                self._requester = AsyncRequester(NETLINK_ROUTE)
            answers = await self._requester.get(rtnetlink.RTM_GETSTATS, request, 1.0)
        except (OSError, TimeoutError, HostError):
            return None
        return next(filter(None, map(rtnetlink.parse_counters, answers)), None)

    def close(self) -> None:
        if self._requester is not None:
            self._requester.close()
            self._requester = None


_DEVICES = Path("/proc/thread-self/net/dev")


def received_bytes() -> Mapping[str, int]:
    """Return the bytes that each interface received, at once; empty where the kernel does not tell."""
    try:
        lines = _DEVICES.read_text().splitlines()[2:]
    except OSError:
        return {}
    named = (line.partition(":")[::2] for line in lines)
    return {name.strip(): int(fields.split()[0]) for name, fields in named}
