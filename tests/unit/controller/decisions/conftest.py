"""A controller with two networks, which a test tells events and whose commands it reads."""

import pytest
from kit.controller import Script


@pytest.fixture
def script():
    """Its `model` are `Rates`; it has led new connections over Wi-Fi."""
    script = Script()
    script.steering()
    return script
