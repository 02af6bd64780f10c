"""Fixtures for all tests: tiers by folder, namespaces that are removed when a test ends, a radio."""

import os
import time
import uuid

import hypothesis
import pytest
from kit.clock import JUMPING, monotonic

from emu.testbed.netns import Namespace

# A property does not become false because the machine was busy. `./test --long` tries more examples.
for name, examples in (("cedos", 50), ("long", 500)):
    hypothesis.settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile("cedos")

# xdist tells its workers a terminal's width, which programs in tests would take for theirs.
os.environ.pop("COLUMNS", None)


def _limit_s(item):
    marker = item.get_closest_marker("timeout")
    return marker.args[0] if marker else float(item.config.getini("timeout"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items):
    """Give a test the tier of its folder, and the worker of those that share what it sets up.

    Those with a long limit are first: else one worker has them left when the others are done.
    """
    items.sort(key=_limit_s, reverse=True)
    for item in items:
        if isinstance(item, pytest.Function):
            used = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009
            shares = any(each[-1].scope == "module" for each in used)
            if shares and item.get_closest_marker("xdist_group") is None:
                item.add_marker(pytest.mark.xdist_group(item.path.stem))
        for tier in ("netns", "emulation"):
            if f"/tests/{tier}/" in str(item.path):
                item.add_marker(getattr(pytest.mark, tier))
                if os.geteuid() != 0:
                    item.add_marker(pytest.mark.skip(reason="needs root"))
    yield
    for item in items:
        # xdist 3.8 writes a group into `_nodeid`, from where pytest 9.2 does not read it any more.
        if grouped := vars(item).get("_nodeid"):
            item._id = type(item.id).parse(grouped)


@pytest.fixture
def anyio_backend(request, monkeypatch):
    """Return asyncio; for a test marked `jumping` with a loop that does not wait for its timers."""
    if request.node.get_closest_marker("jumping") is None:
        return "asyncio"
    monkeypatch.setattr(time, "monotonic", monotonic)
    return JUMPING


@pytest.fixture
def make_namespace():
    """Makes namespaces with names that clash with nothing: `make_namespace("client")`."""
    made = []
    token = uuid.uuid4().hex[:6]

    def make(role):
        namespace = Namespace.create(f"cedos-test-{token}-{role}")
        made.append(namespace)
        return namespace

    yield make
    for namespace in made:
        namespace.remove()


class Radio:
    """Watts while active, and a tail of `tail_j`; on average it is found asleep."""

    def __init__(self, active=1.0, tail_j=0.0):
        self.active, self.tail_j = active, tail_j

    def active_w(self, direction, rate_bps=0.0):
        return self.active

    def added_tail_j(self, idle_s):
        return self.tail_j if idle_s is None else 0.0

    def expected_j(self, *, bytes_up=0.0, bytes_down=0.0, seconds, shares):
        return self.active * seconds + self.tail_j


@pytest.fixture(scope="session")
def make_radio():
    """`make_radio(active, tail_j)`: without them one of a watt while it is active, and no tail."""
    return Radio
