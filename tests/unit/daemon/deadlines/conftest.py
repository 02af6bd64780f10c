"""The private message bus of the monitor's tests."""

from tests.unit.host.monitor.conftest import address

__all__ = ["address"]
