"""Two cores whose records a test carries itself, and a scheduler that does as it is told."""

import pytest

from cedos.session.protocol.schedulers.interface import PathFacts, SendGrant
from cedos.session.protocol.session import Session
from cedos.session.protocol.unpacking import unpack


class Plain:
    """The most urgent first, all of it; `grants` come before."""

    name = "plain"
    prompt = False

    def __init__(self, *grants, copies=False):
        self.grants = list(grants)
        self.copies = copies

    def choose(self, path, paths, backlog, room_bytes, now):
        if self.grants:
            return self.grants.pop(0)
        for rank, waiting in enumerate(backlog.waiting_bytes):
            if waiting and path.allowed >> rank & 1:
                return SendGrant(rank, room_bytes)
        if self.copies:
            for rank, waiting in enumerate(backlog.copyable_bytes):
                if waiting:
                    return SendGrant(rank, room_bytes, copy=True)
        return None

    def next_check_s(self, paths, now):
        return None


class Cores:
    """A maker of sessions for tests, which exchanges their records."""

    def scheduler(self, *grants, copies=False):
        return Plain(*grants, copies=copies)

    def session(self, scheduler=None, **options):
        return Session(scheduler or Plain(), 0.0, **({"keep_alive_s": 100} | options))

    def pair(self, **options):
        """Two with one path, who have said what there is to say."""
        one, other = self.session(**options), self.session(**options)
        self.up(one, other)
        self.pump(one, other)
        return one, other

    def up(self, *sessions, path=1):
        for each in sessions:
            each.path_up(path, PathFacts(), 0.0)

    def pump(self, one, other, path=1, now=0.0):
        """Everything both have to say on a path; how many records."""
        count, moved = 0, True
        while moved:
            moved = False
            for here, there in ((one, other), (other, one)):
                while parts := here.next_record(path, 70_000, now):
                    there.receive(path, b"".join(parts), now)
                    count += 1
                    moved = True
        return count

    def frames(self, parts):
        """Return the frames of a record."""
        return list(unpack(b"".join(parts))) if parts else []

    def messages(self, core):
        """Everything that can be received by now: label's rank and payload."""
        got = []
        while (run := core.receive_run()) is not None:
            got += [(run.rank, each) for each in run.payloads]
        return got


@pytest.fixture(scope="session")
def cores():
    return Cores()
