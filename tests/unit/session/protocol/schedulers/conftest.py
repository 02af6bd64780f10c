"""Paths and what waits for them, as schedulers see them."""

import pytest

from cedos.session.protocol.schedulers.interface import Backlog, PathFacts, PathState


class Make:
    """A maker of cases for tests."""

    def path(self, number, rtt_s=0.05, rate_bps=8e6, **more):
        """A path over `net<number>`; `more` are fields of its facts or of its state."""
        facts = PathFacts(network=f"net{number}", rtt_s=rtt_s, rate_bps=rate_bps)
        state = PathState(number, facts, up_at_s=0.0)
        for key, value in more.items():
            setattr(facts if hasattr(facts, key) else state, key, value)
        return state

    def backlog(self, *waiting, copyable=(0, 0, 0, 0), at_s=-1e9):
        """Bytes that wait by rank; the last foreground data came at `at_s`."""
        return Backlog(list(waiting), list(copyable), at_s)


@pytest.fixture(scope="session")
def make():
    return Make()
