"""Fixtures for tests of real daemons: cedos in a namespace, a laptop with Wi-Fi and a metered network."""

from collections.abc import Callable
from pathlib import Path

import pytest
from kit.laptop import Installed, Tethered

from emu.testbed.netns import Namespace


@pytest.fixture
def install(tmp_path: Path) -> Callable[..., Installed]:
    """`install(namespace)`: cedos there; a second argument is more of the configuration."""

    def make(where: Namespace, config: str = "") -> Installed:
        return Installed(where, tmp_path, config)

    return make


@pytest.fixture
def tethered(make_namespace: Callable[[str], Namespace]) -> Tethered:
    return Tethered(make_namespace)
