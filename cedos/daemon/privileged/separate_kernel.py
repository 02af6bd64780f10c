"""Steering's kernel where the privileges are another process's: it reads by itself, and has changed."""

from collections.abc import Callable, Sequence
from typing import Any

from cedos.daemon.privileged.process import PrivilegedProcess
from cedos.daemon.privileged.separate_rescue import SeparateRescue
from cedos.kernel.mptcp import MptcpEvent, PathManagerCommand
from cedos.kernel.policy_routing import Route, Rule, SeenRoute, SeenRule
from cedos.kernel.rtnetlink import Link
from cedos.kernel.sock_diag import TcpSocket
from cedos.model import Address, FlowKey
from cedos.steer.kernel.filter_plan import FilterPlan
from cedos.steer.kernel.linux import LinuxKernel


class SeparateKernel:
    """A `SteeringKernel`."""

    def __init__(self, process: PrivilegedProcess) -> None:
        self._call = process.call
        self._here = LinuxKernel(port=process.call("routing_port"))
        self.rescue = SeparateRescue(process)

    def rules(self) -> list[SeenRule]:
        return self._here.rules()

    def add_rules(self, rules: Sequence[Rule]) -> None:
        self._some("add_rules", rules)

    def delete_rules(self, rules: Sequence[Rule]) -> None:
        self._some("delete_rules", rules)

    def routes(self, protocol: int = 0) -> list[SeenRoute]:
        return self._here.routes(protocol)

    def add_routes(self, routes: Sequence[Route]) -> None:
        self._some("add_routes", routes)

    def delete_routes(self, routes: Sequence[Route]) -> None:
        self._some("delete_routes", routes)

    def _some(self, name: str, these: Sequence[Any]) -> None:
        if these:
            self._call(name, tuple(these))

    def links(self) -> list[Link]:
        return self._here.links()

    def lookup(self, remote: Address, local: Address | None = None) -> SeenRoute | None:
        return self._here.lookup(remote, local)

    def read_sysctl(self, key: str) -> str | None:
        return self._here.read_sysctl(key)

    def write_sysctl(self, key: str, value: str) -> None:
        self._call("write_sysctl", key, value)

    def steer(self, commands: Sequence[PathManagerCommand]) -> list[OSError | None]:
        if not commands:
            return []
        return [
            None if each is None else OSError(*each)
            for each in self._call("steer", tuple(commands))
        ]

    def ours_to_steer(self, token: int) -> bool:
        return bool(self._call("ours_to_steer", token))

    def sockets(self) -> list[TcpSocket]:
        return self._here.sockets()

    def close_silent(self, key: FlowKey) -> bool:
        return bool(self._call("close_silent", key))

    def track_flows(self) -> None:
        self._call("track_flows")

    def bar(self, interfaces: Sequence[str]) -> None:
        self._call("bar", tuple(interfaces))

    def repair_filter(self, plan: FilterPlan) -> bool:
        return bool(self._call("repair_filter", plan))

    def raise_wall(self, interfaces: Sequence[str]) -> bool:
        return bool(self._call("raise_wall", tuple(interfaces)))

    def remove_wall(self) -> bool:
        return bool(self._call("remove_wall"))

    def watch_filter(self, on_change: Callable[[], None]) -> None:
        self._here.watch_filter(on_change)

    def filter_is_told(self) -> bool:
        return self._here.filter_is_told()

    def has_filter(self) -> bool:
        return bool(self._call("has_filter"))

    def remove_filter(self) -> bool:
        return bool(self._call("remove_filter"))

    def watch(
        self,
        on_mptcp_event: Callable[[MptcpEvent], None],
        on_routing_change: Callable[[], None],
        on_loss: Callable[[], None],
    ) -> None:
        self._here.watch(on_mptcp_event, on_routing_change, on_loss)

    def close(self) -> None:
        self.rescue.close()
        self._here.close()
