"""The street of a test module: three helpers, a requestor and a gateway."""

from collections.abc import Iterator

import pytest
from kit.street import HELPERS, RATE_BPS, Street, uplinks

from emu.testbed.neighbours import Neighbourhood
from emu.testbed.programs.servers import Servers
from emu.testbed.programs.sharing import SharingHosts


@pytest.fixture(scope="module")
def standing() -> Iterator[Street]:
    there = Neighbourhood(uplinks([RATE_BPS] * HELPERS))
    with there, Servers(there), SharingHosts(there) as hosts:
        yield Street(there, hosts)


@pytest.fixture
def street(standing: Street) -> Iterator[Street]:
    """Return a street on which all three help and the requestor's proxy runs."""
    standing.helpers = [standing.hosts.help(number) for number in range(HELPERS)]
    standing.request = standing.hosts.request()
    services = [standing.request, standing.hosts.forward(), *standing.helpers]
    standing.wait_for(HELPERS)
    yield standing
    for each in services:
        each.close()
