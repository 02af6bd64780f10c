"""Networks that programs are kept off count as down, for whoever chooses, moves or looks at networks."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from cedos.model import Network


def usable(networks: Sequence[Network], barred: Collection[str]) -> Sequence[Network]:
    """The networks, of which those that are barred are down.

    `barred`: names; those of networks that are not there do no harm.
    """
    if not barred:
        return networks
    return [replace(each, up=False) if each.name in barred else each for each in networks]
