"""The street of a test module: three helpers, a requestor and a gateway."""

import pytest
from kit.street import HELPERS, RATE_BPS, Street, uplinks

from emu.testbed.neighbours import Neighbourhood
from emu.testbed.programs.gateway import SharingHosts
from emu.testbed.programs.servers import Servers


@pytest.fixture(scope="module")
def built():
    there = Neighbourhood(uplinks([RATE_BPS] * HELPERS))
    with there, Servers(there), SharingHosts(there) as hosts:
        yield Street(there, hosts)


@pytest.fixture
def standing(built):
    """Return a street on which only the gateway runs; what a test begins ends with it."""
    yield built
    built.hosts.stop_sharing()


@pytest.fixture
def street(standing):
    """Return a street on which all three help and the requestor's proxy runs."""
    standing.begin()
    return standing
