"""The real kernel. Its namespace is the one of the thread that makes it, for life."""

import errno
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from pyroute2.netlink import (
    GENL_ID_CTRL,
    NETLINK_GENERIC,
    NETLINK_ROUTE,
    NETLINK_SOCK_DIAG,
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    nlmsg,
)
from pyroute2.netlink.diag import SOCK_DIAG_BY_FAMILY
from pyroute2.netlink.rtnl import (
    RTM_DELROUTE,
    RTM_DELRULE,
    RTM_GETLINK,
    RTM_GETROUTE,
    RTM_GETRULE,
    RTM_NEWROUTE,
    RTM_NEWRULE,
)

from cedos.errors import HostError
from cedos.kernel import mptcp_netlink, tcp_sockets
from cedos.kernel.mptcp_netlink import Endpoint, PathCommand, PathEvent
from cedos.kernel.netlink import Listener
from cedos.kernel.netlink_commands import Commands, Message, Parser
from cedos.kernel.tcp_sockets import SeenSocket
from cedos.model import Address
from cedos.steer.kernel import barring_filter, iptables, rtnetlink
from cedos.steer.kernel.linux_rescue import LinuxRescue
from cedos.steer.kernel.mptcp_events import path_events
from cedos.steer.kernel.rtnetlink import SeenLink, SeenRoute, SeenRule
from cedos.steer.routing.rules import Route, Rule

_SYSCTLS: Final = Path("/proc/sys")
# What deleting says of something that is not there.
_GONE: Final = (errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.EADDRNOTAVAIL)
# Each new connection tells of three things within some milliseconds.
_REST_S: Final = 0.02


class LinuxKernel:
    """See `cedos.steer.kernel.interface.Kernel`.

    Raises:
        HostError: the kernel has no rtnetlink.
    """

    def __init__(self) -> None:
        self._routing = Commands(NETLINK_ROUTE)
        self.rescue = LinuxRescue()
        self._listeners: list[Listener] = []
        self._pm: tuple[Commands, int, int | None] | None = None
        self._diag: Commands | None = None
        # /proc/sys/net shows the namespace of whoever opens it; ours is that of this thread.
        self._namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    # -- routing ------------------------------------------------------------------------------

    def rules(self) -> list[SeenRule]:
        """See `Kernel`."""
        return [
            rule
            for version in (4, 6)
            for message in self._dump(RTM_GETRULE, rtnetlink.rules_request(version))
            if (rule := rtnetlink.parse_rule(message)) is not None
        ]

    def add_rules(self, rules: Sequence[Rule]) -> None:
        """See `Kernel`."""
        self._tell(RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, rules, errno.EEXIST)

    def delete_rules(self, rules: Sequence[Rule]) -> None:
        """See `Kernel`."""
        self._tell(RTM_DELRULE, 0, rules, *_GONE)

    def _tell(self, kind: int, flags: int, rules: Sequence[Rule], *fine: int) -> None:
        for rule in rules:
            try:
                self._routing.tell(kind, flags, rtnetlink.rule_octets(rule))
            except OSError as error:
                if error.errno not in fine:
                    raise

    def routes(self, protocol: int = 0) -> list[SeenRoute]:
        """See `Kernel`."""
        return [
            route
            for version in (4, 6)
            for message in self._dump(RTM_GETROUTE, rtnetlink.routes_request(version, protocol))
            if (route := rtnetlink.parse_route(message)) is not None
            and protocol in (0, route.protocol)
        ]

    def add_routes(self, routes: Sequence[Route]) -> None:
        """See `Kernel`."""
        self._change(
            RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, map(rtnetlink.route_message, routes)
        )

    def delete_routes(self, routes: Sequence[Route]) -> None:
        """See `Kernel`."""
        self._change(RTM_DELROUTE, 0, map(rtnetlink.route_message, routes), *_GONE)

    def links(self) -> list[SeenLink]:
        """See `Kernel`."""
        return [
            link
            for message in self._routing.dump(RTM_GETLINK, rtnetlink.links_request())
            if (link := rtnetlink.parse_link(message)) is not None
        ]

    def lookup(self, remote: Address, local: Address | None = None) -> SeenRoute | None:
        """See `Kernel`."""
        try:
            answers = self._routing.ask(RTM_GETROUTE, 0, rtnetlink.lookup_request(remote, local))
        except OSError:
            return None
        return next(filter(None, map(rtnetlink.parse_route, answers)), None)

    def _dump(self, kind: int, request: Message) -> list[Message]:
        try:
            return self._routing.dump(kind, request)
        except OSError as error:
            # A kernel without IPv6, or without policy routing in one of the versions.
            if error.errno in (errno.EOPNOTSUPP, errno.EAFNOSUPPORT):
                return []
            raise

    def _change(self, kind: int, flags: int, requests: Iterable[Message], *fine: int) -> None:
        for request in requests:
            try:
                self._routing.ask(kind, flags, request)
            except OSError as error:
                if error.errno not in fine:
                    raise

    # -- sysctls ------------------------------------------------------------------------------

    def read_sysctl(self, key: str) -> str | None:
        """See `Kernel`."""
        try:
            return (_SYSCTLS / key.replace(".", "/")).read_text().rstrip("\n")
        except FileNotFoundError:
            return None

    def write_sysctl(self, key: str, value: str) -> None:
        """See `Kernel`."""
        self._must_be_here()
        (_SYSCTLS / key.replace(".", "/")).write_text(f"{value}\n")

    def _must_be_here(self) -> None:
        here = Path("/proc/thread-self/ns/net").stat().st_ino
        if os.fstat(self._namespace).st_ino != here:
            raise OSError(errno.EXDEV, "another network namespace than steering's own")

    # -- MPTCP --------------------------------------------------------------------------------

    def _path_manager(self) -> tuple[Commands, int, int | None]:
        if self._pm is None:
            commands = Commands(NETLINK_GENERIC)
            try:
                (answer,) = commands.ask(GENL_ID_CTRL, 0, mptcp_netlink.family_request())
            except OSError as error:
                commands.close()
                raise HostError(
                    "this kernel has no MPTCP path manager (CONFIG_MPTCP; Linux 5.19 or newer)"
                ) from error
            self._pm = (commands, *mptcp_netlink.parse_family(answer))
        return self._pm

    def steer(self, commands: Sequence[PathCommand]) -> list[OSError | None]:
        """See `Kernel`."""
        socket_, family, _ = self._path_manager()
        results: list[OSError | None] = []
        for command in commands:
            try:
                socket_.ask(family, 0, mptcp_netlink.command_message(command))
                results.append(None)
            except OSError as error:
                results.append(error)
        return results

    def endpoints(self) -> list[Endpoint]:
        """See `Kernel`."""
        commands, family, _ = self._path_manager()
        return [
            endpoint
            for message in commands.dump(family, mptcp_netlink.endpoints_request())
            if (endpoint := mptcp_netlink.parse_endpoint(message)) is not None
        ]

    def ours_to_steer(self, token: int) -> bool:
        """See `Kernel`."""
        commands, family, _ = self._path_manager()
        return commands.accepted(family, mptcp_netlink.addresses_of(token))

    def sockets(self) -> list[SeenSocket]:
        """See `Kernel`."""
        if self._diag is None:
            self._diag = Commands(NETLINK_SOCK_DIAG)
        found: list[SeenSocket] = []
        for family in (socket.AF_INET, socket.AF_INET6):
            # A kernel without IPv6 knows no such sockets.
            with suppress(FileNotFoundError):
                request = tcp_sockets.request(family)
                messages = self._diag.dump(SOCK_DIAG_BY_FAMILY, request, tcp_sockets.SocketMessage)
                found += [seen for m in messages if (seen := tcp_sockets.parse(m)) is not None]
        return found

    # -- the rest -----------------------------------------------------------------------------

    def track_flows(self) -> None:
        """See `Kernel`."""
        self._must_be_here()
        iptables.track()

    def bar(self, interfaces: Sequence[str]) -> None:
        """See `Kernel`."""
        self._must_be_here()
        barring_filter.put_in(interfaces)

    def has_filter(self) -> bool:
        """See `Kernel`."""
        return iptables.present()

    def remove_filter(self) -> bool:
        """See `Kernel`."""
        self._must_be_here()
        return iptables.remove()

    def watch(
        self,
        on_path_event: Callable[[PathEvent], None],
        on_routing_change: Callable[[], None],
        on_loss: Callable[[], None],
    ) -> None:
        """See `Kernel`; HostError where the kernel has no MPTCP events (routing is then watched)."""
        own_port = self._routing.port

        heads = Parser(nlmsg, rtnetlink.HEADS)

        def routing(data: bytes) -> None:
            for message in heads.messages(data):
                # What we changed ourselves is no news.
                if message["header"]["pid"] != own_port and rtnetlink.is_news(message):
                    on_routing_change()

        def paths(data: bytes) -> None:
            for event in path_events(data):
                on_path_event(event)

        self._listeners.append(
            Listener(NETLINK_ROUTE, rtnetlink.GROUPS, routing, on_routing_change)
        )
        _, _, group = self._path_manager()
        if group is None:
            raise HostError(
                "this kernel's MPTCP path manager tells no events (Linux 5.11 or newer)"
            )
        self._listeners.append(Listener(NETLINK_GENERIC, [group], paths, on_loss, rest_s=_REST_S))

    def close(self) -> None:
        """See `Kernel`."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        self._routing.close()
        self.rescue.close()
        if self._diag is not None:
            self._diag.close()
            self._diag = None
        if self._pm is not None:
            self._pm[0].close()
            self._pm = None
        if self._namespace >= 0:
            os.close(self._namespace)
            self._namespace = -1
