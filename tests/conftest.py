"""What all tests share: tiers by folder, and namespaces that are gone when a test ends."""

import os
import uuid
from collections.abc import Callable, Iterator

import hypothesis
import pytest

from emu.testbed.netns import Namespace

# A property does not become false because the machine was busy.
hypothesis.settings.register_profile(
    "cedos", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("cedos")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test's tier is the folder it lies in."""
    for item in items:
        for tier in ("netns", "emulation"):
            if f"/tests/{tier}/" in str(item.path):
                item.add_marker(getattr(pytest.mark, tier))
                if os.geteuid() != 0:
                    item.add_marker(pytest.mark.skip(reason="needs root"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def make_namespace() -> Iterator[Callable[[str], Namespace]]:
    """Makes namespaces with names that clash with nothing: `make_namespace("client")`."""
    made: list[Namespace] = []
    token = uuid.uuid4().hex[:6]

    def make(role: str) -> Namespace:
        namespace = Namespace.create(f"cedos-test-{token}-{role}")
        made.append(namespace)
        return namespace

    yield make
    for namespace in made:
        namespace.remove()
