"""A probe server that serves, and trains to it."""

import time
from contextlib import asynccontextmanager
from ipaddress import ip_address

import pytest

from cedos.host.monitor.probing import udp_train
from cedos.host.monitor.probing.probes import ProbeServer
from cedos.host.monitor.probing.server import ProbeLimits, ProbeServing

HERE = ip_address("127.0.0.1")
KEY = b"k" * 32
LIMITS = (100e6, 1e9)


@asynccontextmanager
async def _serving(**limits):
    held = ProbeLimits(*LIMITS) if not limits else ProbeLimits(**limits)
    async with ProbeServing(HERE, 0, KEY, held) as server:
        yield server, ProbeServer(HERE, server.port, KEY, packets=40)


async def _measured(server, timeout_s=2.0):
    """A train; it keeps its time limit, whatever happens."""
    started_s = time.monotonic()
    outcome = await udp_train.run(server, interface="lo", timeout_s=timeout_s)
    assert time.monotonic() - started_s < timeout_s + 0.5
    assert bool(outcome.problem) != bool(outcome.indicators)
    return outcome


@pytest.fixture
def serving():
    """`async with serving(**limits) as (running, server)`: a server, and what clients know of it."""
    return _serving


@pytest.fixture
def measured():
    return _measured
