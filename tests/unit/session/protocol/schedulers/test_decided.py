"""The decided scheduler: chosen networks of labels, copies, and silent paths."""

import pytest

from cedos.model import NetworkKind, Strategy, StrategyKind
from cedos.session.protocol.schedulers.interface import SendGrant, allowed_paths
from cedos.session.protocol.schedulers.plain import DecidedScheduler, LabelMapping, permissions

CHUNK = 16_384


def single(*networks):
    return Strategy(StrategyKind.SINGLE, networks)


class TestDecidedScheduler:
    @pytest.fixture(autouse=True)
    def _two(self, make):
        self.one, self.other = make.path(1), make.path(2)
        self.both = (self.one, self.other)

    def test_what_is_left_goes_by_the_inner_scheduler(self, make):
        scheduler = DecidedScheduler(LabelMapping())
        forbidden = make.path(1, allowed=0b0111)
        waiting = make.backlog(0, 0, 0, 10**6)
        assert scheduler.choose(forbidden, (forbidden, self.other), waiting, 10**6, 0.0) is None
        assert scheduler.choose(
            self.other, (forbidden, self.other), waiting, 10**6, 0.0
        ) == SendGrant(3, CHUNK)

    def test_copies_only_of_what_is_to_be_sent_twice_and_only_where_it_may_go(self, make):
        copies = make.backlog(0, 0, 0, 0, copyable=(7, 0, 0, 8))
        scheduler = DecidedScheduler(LabelMapping())
        assert not scheduler.copies
        assert scheduler.choose(self.one, self.both, copies, 99, 0.0) is None
        scheduler.repeat(0b0001)
        assert scheduler.copies
        assert scheduler.choose(self.one, self.both, copies, 99, 0.0) == SendGrant(0, 99, copy=True)
        assert scheduler.choose(make.path(1, allowed=0b1110), self.both, copies, 99, 0.0) is None
        # New data goes first.
        waiting = make.backlog(0, 0, 5, 0, copyable=(7, 0, 0, 0))
        assert scheduler.choose(self.one, self.both, waiting, 99, 0.0) == SendGrant(2, 99)

    def test_what_waited_is_told_once(self, make):
        scheduler = DecidedScheduler(LabelMapping())
        told = []
        scheduler.on_use(lambda: told.append([]))
        for waiting in (make.backlog(5, 0, 0, 9), make.backlog(3, 0, 0, 12)):
            scheduler.choose(self.one, self.both, waiting, 99, 0.0)
        assert len(told) == 1
        assert scheduler.take_waiting() == [5, 0, 0, 12]
        assert scheduler.take_waiting() == [0, 0, 0, 0]
        scheduler.choose(self.one, self.both, make.backlog(1, 0, 0, 0), 99, 0.0)
        assert len(told) == 2


class TestPermissions:
    @pytest.fixture(autouse=True)
    def _two(self, make):
        self.paths = {1: make.path(1), 2: make.path(2)}

    def masks(self, *strategies):
        found = permissions([*strategies, *[None] * (4 - len(strategies))], self.paths)
        return found[1], found[2]

    def test_a_label_keeps_to_what_was_chosen_for_it_the_others_are_free(self):
        assert self.masks() == (0b1111, 0b1111)
        assert self.masks(single("net2")) == (0b1110, 0b1111)
        assert self.masks(None, single("net1")) == (0b1111, 0b1101)

    def test_several_networks_for_mptcp_and_redundancy(self):
        for kind in (StrategyKind.MPTCP, StrategyKind.REDUNDANT):
            assert self.masks(Strategy(kind, ("net2", "net1"))) == (0b1111, 0b1111)

    def test_a_network_that_is_gone_does_not_end_the_flow(self):
        assert self.masks(single("net7")) == (0b1111, 0b1111)

    def test_what_was_not_decided_may_be_kept_off_what_costs_something(self, make):
        self.paths = {1: make.path(1), 2: make.path(2, metered=True)}
        assert permissions([None] * 4, self.paths, thrifty=True) == {1: 0b1111, 2: 0}
        chosen = [single("net2"), None, None, None]
        assert permissions(chosen, self.paths, thrifty=True) == {1: 0b1110, 2: 0b0001}
        only = {2: self.paths[2]}
        assert permissions([None] * 4, only, thrifty=True) == {2: 0b1111}

    def test_helpers_carry_what_was_not_decided_and_else_only_where_they_were_chosen(self, make):
        for phone_alone in (False, True):
            own = make.path(1, metered=phone_alone)
            self.paths = {1: own, 2: make.path(2, metered=True), 3: make.path(3, metered=True)}
            self.paths[3].facts.kind = NetworkKind.HELPER
            others = 0b1111 if phone_alone else 0
            found = permissions([None] * 4, self.paths, thrifty=True)
            assert found == {1: 0b1111, 2: others, 3: 0b1111}
        both = Strategy(StrategyKind.MPTCP, ("net2", "net3"))
        found = permissions([single("net1"), single("net7"), both, None], self.paths)
        assert found == {1: 0b1011, 2: 0b1110, 3: 0b1110}

    def test_a_path_that_will_be_gone_gets_nothing_new_unless_it_is_the_last(self, make):
        self.paths[2].facts.leaving = True
        assert self.masks() == (0b1111, 0)
        assert self.masks(single("net2")) == (0b1111, 0)
        assert permissions([None] * 4, {2: self.paths[2]}) == {2: 0b1111}

    def test_to_defer_is_to_be_let_onto_none(self):
        assert self.masks(Strategy(StrategyKind.DEFER, ())) == (0b1110, 0b1110)


class TestSilentPaths:
    """A permission may not stop a flow: where all permitted paths are silent, the others will do."""

    def test_others_will_do_while_all_permitted_ones_are_silent(self, make):
        silent, spare = make.path(1, stalled_at_s=1.0), make.path(2, allowed=0)
        assert allowed_paths((silent, spare), 0) == [spare]
        assert allowed_paths((silent,), 0) == [silent]
        alive = make.path(1)
        assert allowed_paths((alive, spare), 0) == [alive]

    def test_small_foreground_data_alone_leaves_a_path_that_crawls(self, make):
        slow, spare = make.path(1, pauses=True, crawls=True), make.path(2, allowed=0)
        assert [allowed_paths((slow, spare), rank) for rank in range(4)] == [[spare], *[[slow]] * 3]
        assert allowed_paths((slow,), 0) == [slow]

    def test_what_is_let_onto_none_waits_all_the_same(self, make):
        silent, spare = make.path(1, allowed=0, stalled_at_s=1.0), make.path(2, allowed=0)
        assert allowed_paths((silent, spare), 0) == []
