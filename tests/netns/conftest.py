"""Fixtures for tests of real daemons: cedos in a namespace, a laptop with Wi-Fi and a metered network."""

import pytest
from kit.laptop import Installed, Tethered


@pytest.fixture
def install(tmp_path):
    """`install(namespace)`: cedos there; a second argument is more of the configuration."""

    def make(where, config=""):
        return Installed(where, tmp_path, config)

    return make


@pytest.fixture
def tethered(make_namespace):
    return Tethered(make_namespace)
