"""The kernel's own MPTCP path manager, as a laptop without cedos would set it up."""

from cedos.model import NetworkKind
from emu.testbed.access import ADDRESSES, INTERFACES
from emu.testbed.phones import Laptop

_MOST_SUBFLOWS = "4"


def use_kernel_path_manager(laptop: Laptop) -> None:
    """Give the client an endpoint per network: every connection joins the other one by itself.

    The laptop needs its source-address rules, or a second subflow would leave by the first network.
    """
    for namespace in (laptop.client, laptop.server):
        namespace.ip("mptcp", "limits", "set", "subflows", _MOST_SUBFLOWS, "add_addr_accepted", "0")
    for kind in (NetworkKind.WIFI, NetworkKind.CELLULAR):
        laptop.client.ip(
            "mptcp", "endpoint", "add", ADDRESSES[kind], "dev", INTERFACES[kind], "subflow"
        )
