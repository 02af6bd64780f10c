"""The requestor's machine on a link with helpers: discovery, choice, watch and end."""

from kit.neighbours import GATEWAY, START_S, Link, helper, key_of, requestor, uplink

from cedos.apps.sharing.protocol.certificates import CertificateAuthority
from cedos.apps.sharing.protocol.commands import (
    AddPath,
    OfferRefused,
    RemovePath,
    ResumePath,
    SendDatagram,
    SuspendPath,
    TakeAddress,
)
from cedos.apps.sharing.protocol.messages import (
    ConfirmMessage,
    HelloMessage,
    InviteMessage,
    JoinMessage,
    LeaveMessage,
    LeaveReason,
    unpack,
)
from cedos.apps.sharing.protocol.requestor import HelperState
from cedos.selector.sharing import high_bandwidth_first

BOB, CYD, DAN = (key_of(name).public for name in ("bob", "cyd", "dan"))


def three(**wish):
    """Return a link with helpers of 4 Mbit/s at three prices, of which two are wanted."""
    helpers = {
        "bob": helper("bob", 1),
        "cyd": helper("cyd", 2, price=300_000),
        "dan": helper("dan", 3, price=100_000),
    }
    link = Link(requestor(own_network=True, **wish), helpers)
    link.asker.start(link.now)
    return link


def kinds(link, kind):
    """Return when the requestor sent messages of a kind."""
    found = [unpack(data).message for sender, data in link.sent if sender == "asker"]
    return [round(it.sent_us / 1e6 - START_S, 3) for it in found if isinstance(it, kind)]


def traffic(link, name, seconds, bytes_each, waiting):
    """Report every 0.1 s that a path carried so much more."""
    carried = next(it.carried_bytes for it in link.asker.helpers() if it.helper == name)
    for _ in range(round(seconds * 10)):
        link.run(0.1)
        carried += bytes_each
        link.asker.on_traffic(name, carried, waiting, link.now)
        link.settle()


def of(link, kind):
    return [each.helper for each in link.asked if isinstance(each, kind)]


def test_the_cheapest_that_suffice_become_paths():
    link = three()
    link.run(0.9)
    assert link.paths() == [], "Joins are collected for a second"
    link.run(0.2)
    assert sorted(link.paths()) == ["cyd", "dan"]
    added = next(it for it in link.asked if isinstance(it, AddPath) and it.name == "dan")
    assert (added.via, len(added.source)) == (bytes([10, 0, 0, 3]), 4)
    assert added.reaches == uplink(3).reaches
    assert added.contract.price == 100_000


def test_an_invite_at_the_instant_of_the_choice_changes_nothing():
    """The helper's next Join made its last one void, and the first Confirm was refused for 20 s."""
    link = Link(requestor(own_network=True), {"bob": helper("bob", 1)})
    receive, late = link.asker.receive_datagram, []

    def delayed(data, source, now):
        late.append((now + 0.003, data, source))

    link.asker.receive_datagram = delayed
    link.asker.start(link.now)
    for _ in range(2000):
        link.run(0.001)
        while late and late[0][0] <= link.now:
            _, data, source = late.pop(0)
            receive(data, source, link.now)
    assert link.paths() == ["bob"]


class TestNoAnswerOfTheGateway:
    """A helper that acknowledges all itself, and passes nothing on, is not seen by what it carries."""

    def taken(self, **others):
        link = Link(requestor(rate_bps=4_000_000), {"bob": helper("bob", 1)})
        link.asker.start(link.now)
        link.run(0.1)
        link.asker.on_answer(link.now)
        link.helpers |= others
        assert link.paths() == ["bob"]
        return link

    def go_on(self, link, seconds):
        for _ in range(seconds):
            link.run(1.0)
            carried = int(link.now - START_S) * 1000
            link.helpers["bob"].on_counted(key_of("ann").public, carried, link.now)
            link.asker.on_traffic(BOB, carried, 0, link.now)
            link.asker.on_no_answer(link.now)
            link.settle()

    def test_another_helper_takes_its_place(self):
        link = self.taken(cyd=helper("cyd", 2))
        self.go_on(link, 8)
        assert link.paths() == ["bob"]
        self.go_on(link, 5)
        assert link.paths() == ["bob", "cyd"]
        assert [each.name for each in link.asker.helpers()] == ["cyd"]
        removed = next(each for each in link.asked if isinstance(each, RemovePath))
        assert (removed.helper, removed.reason) == (BOB, LeaveReason.CARRIES_NOTHING)

    def test_a_gateway_that_is_away_is_not_the_helpers_fault(self):
        """The requestor went round its helpers, and the dear one carried for long afterwards."""
        link = self.taken(cyd=helper("cyd", 2))
        self.go_on(link, 120)
        assert len(of(link, RemovePath)) == 1
        # Its answer by the second one speaks for that alone: each is doubted again when it is next away.
        link.asker.on_answer(link.now)
        self.go_on(link, 13)
        assert [each.name for each in link.asker.helpers()] == ["bob"]
        assert len(of(link, RemovePath)) == 2

    def test_without_another_one_it_stays(self):
        link = self.taken()
        self.go_on(link, 60)
        assert [each.name for each in link.asker.helpers()] == ["bob"]
        assert not of(link, RemovePath)

    def test_an_answer_ends_the_doubt(self):
        link = self.taken()
        self.go_on(link, 20)
        link.asker.on_answer(link.now)
        link.helpers["cyd"] = helper("cyd", 2)
        self.go_on(link, 8)
        assert link.paths() == ["bob"]


def test_another_strategy_chooses_others():
    link = three(strategy=high_bandwidth_first)
    link.helpers["bob"].on_uplink(uplink(1, rate_bps=9_000_000), link.now)
    link.run(1.1)
    assert link.paths() == ["bob"]


def test_without_a_network_of_its_own_the_first_helper_is_taken_at_once():
    link = Link(requestor(), {"bob": helper("bob", 1), "cyd": helper("cyd", 2, price=1)})
    link.asker.start(link.now)
    link.run(0.0)
    assert link.paths() == ["bob"]
    link.run(1.1)
    assert link.paths() == ["bob", "cyd"]


def test_invites_back_off_until_enough_is_offered():
    link = Link(requestor(), {})
    link.asker.start(link.now)
    link.run(40)
    assert kinds(link, InviteMessage) == [0, 1, 3, 7, 15, 23, 31, 39]
    link.helpers["bob"] = helper("bob", 1)
    link.helpers["bob"].on_uplink(uplink(1, rate_bps=9_000_000), link.now)
    link.run(100)
    assert link.paths() == ["bob"]
    assert kinds(link, InviteMessage)[8:] == [47], "what is offered suffices"


def test_offers_that_grow_old_do_not_begin_the_back_off_again():
    link = Link(requestor(rate_bps=100_000_000, most_price=1), {"bob": helper("bob", 1, price=1)})
    link.asker.start(link.now)
    link.lose = lambda sender, data: isinstance(unpack(data).message, ConfirmMessage)
    link.run(1)
    assert len(kinds(link, InviteMessage)) == 2


def test_it_begins_again_when_the_sum_falls_below_what_is_wanted():
    link = three()
    link.run(100)
    assert len(kinds(link, InviteMessage)) == 1
    link.helpers["dan"].stop(link.now)
    link.run(2)
    assert kinds(link, InviteMessage)[1:2] == [100]
    assert sorted(link.paths()) == ["bob", "cyd", "dan"]
    removed = next(each for each in link.asked if isinstance(each, RemovePath))
    assert (removed.helper, removed.reason, removed.by_helper) == (DAN, LeaveReason.DONE, True)


def test_the_history_of_the_gateway_counts_more_than_the_helpers_word():
    link = three()
    link.asker.on_history(DAN, 9_000_000.0, link.now)
    link.run(1.1)
    assert link.paths() == ["dan"], "9 Mbit/s suffice"
    link.asker.on_history(DAN, 1_000_000.0, link.now)
    link.run(2)
    assert sorted(link.paths()) == ["bob", "cyd", "dan"]


def test_a_price_that_is_too_high_or_another_currency_is_not_taken():
    helpers = {"bob": helper("bob", 1, price=400_000), "cyd": helper("cyd", 2, currency="USD")}
    link = Link(requestor(most_price=399_999), helpers)
    link.asker.start(link.now)
    link.run(10)
    assert link.paths() == []
    assert link.asker.helpers() == []
    told = [each for each in link.asked if isinstance(each, OfferRefused)]
    assert told == [OfferRefused("bob", 400_000, "EUR"), OfferRefused("cyd", 500_000, "USD")]


def test_a_lost_confirm_or_answer_is_repeated_and_it_is_still_one_contract():
    link = three()
    for lost in (ConfirmMessage, HelloMessage):
        dropped = []

        def lose(sender, data, lost=lost, dropped=dropped):
            first = isinstance(unpack(data).message, lost) and len(dropped) < 2
            dropped.extend([data] * first)
            return first

        link.lose = lose
        link.run(4)
    assert sorted(link.paths()) == ["cyd", "dan"]
    theirs = {each.contract.number for name, each in link.told if hasattr(each, "contract")}
    ours = {each.contract.number for each in link.asked if isinstance(each, AddPath)}
    assert ours == theirs


def test_a_helper_that_never_answers_the_confirm_is_given_up():
    link = three()
    link.run(0.5)
    link.lose = lambda sender, data: sender == "dan"
    link.run(8)
    assert sorted(link.paths()) == ["bob", "cyd"]
    assert DAN in of(link, RemovePath)


def test_a_helper_that_fails_is_tried_again_after_ever_longer_pauses():
    link = three(rate_bps=20_000_000)
    link.run(0.5)
    link.lose = lambda sender, data: (
        sender == "dan" and not isinstance(unpack(data).message, JoinMessage)
    )
    link.run(600)
    assert 4 <= of(link, TakeAddress).count(DAN) <= 9, "after ever longer pauses"


def test_a_silent_helper_gets_hellos_nothing_is_scheduled_and_it_is_declared_gone():
    link = three()
    link.run(1.1)
    link.asker.on_traffic(DAN, 10_000, 50_000, link.now)
    silent_from = link.now
    link.lose = lambda sender, data: sender == "dan"
    while not of(link, SuspendPath):
        link.run(0.01)
    assert link.now - silent_from < 0.35, "a Hello that is answered at once suspends nothing"
    while DAN not in of(link, RemovePath):
        link.run(0.01)
    assert link.now - silent_from < 1.0
    assert len(kinds(link, HelloMessage)) >= 3
    assert of(link, ResumePath) == []


def test_a_helper_that_answers_the_hello_goes_on():
    link = three()
    link.run(1.1)
    link.asker.on_traffic(DAN, 10_000, 50_000, link.now)
    link.run(0.4)
    assert of(link, SuspendPath) == []
    losses = iter([True])
    link.lose = lambda sender, data: sender == "dan" and next(losses, False)
    link.run(0.4)
    assert of(link, SuspendPath)[:1] == [DAN]
    assert of(link, ResumePath)[:1] == [DAN]
    assert of(link, RemovePath) == []


def view(link, name):
    return next(each for each in link.asker.helpers() if each.helper == name)


def test_what_a_busy_helper_has_left_falls_with_what_it_carries():
    link = three()
    link.run(1.1)
    traffic(link, DAN, 2, 1_000_000, 20_000)
    assert view(link, DAN).left_bytes == 500_000_000 - 20_000_000
    # The helper's own word counts more: it serves others, too, and counts headers.
    link.helpers["dan"].on_counted(key_of("ann").public, 21_000_000, link.now)
    link.run(2.5)
    assert view(link, DAN).left_bytes == 479_000_000
    traffic(link, DAN, 0.1, 1_000_000, 0)
    assert view(link, DAN).left_bytes == 478_000_000


def test_a_helper_that_gives_notice_delivers_what_is_on_its_way():
    link = three()
    link.run(1.1)
    link.helpers["dan"].stop(link.now)
    link.settle()
    assert (of(link, SuspendPath), of(link, RemovePath)) == ([DAN], [])
    assert view(link, DAN).state is HelperState.LEAVING
    # Another one takes its place at once. What comes yet is paid.
    link.run(0.1)
    assert link.paths()[-1] == "bob"
    traffic(link, DAN, 0.8, 1_000, 0)
    assert of(link, RemovePath) == []
    assert view(link, DAN).carried_bytes == 8_000
    # Nothing comes any more: both need not wait for the whole time.
    traffic(link, DAN, 0.4, 0, 0)
    link.run(0.2)
    left = next(each for each in link.asked if isinstance(each, RemovePath))
    assert (left.helper, left.reason, left.by_helper) == (DAN, LeaveReason.DONE, True)
    assert link.helpers["dan"].requestors() == []


def test_notice_lasts_no_longer_than_the_helper_forwards():
    link = three()
    link.run(1.1)
    began_s = link.now
    link.helpers["dan"].stop(link.now)
    while DAN not in of(link, RemovePath):
        traffic(link, DAN, 0.1, 1_000, 0)
        assert link.now - began_s < 2.0
    assert link.now - began_s > 1.5


def test_a_leave_without_notice_ends_the_path_at_once():
    link = three()
    link.run(1.1)
    link.helpers["dan"].on_uplink(None, link.now)
    link.settle()
    assert of(link, RemovePath) == [DAN]


def test_a_helper_that_carries_a_little_and_leaves_is_avoided():
    """It was taken again at once, 42 times in 45 s, each time by a new contract on the disk."""
    link = Link(requestor(own_network=True), {"bob": helper("bob", 1)})
    link.asker.start(link.now)
    for second in range(120):
        link.run(1.0)
        if of(link, AddPath).count(BOB) > of(link, RemovePath).count(BOB):
            link.asker.on_traffic(BOB, 40_000 + second, 0, link.now)
            link.helpers["bob"].on_uplink(None, link.now)
            link.settle()
            link.helpers["bob"].on_uplink(uplink(1), link.now)
    assert 3 <= of(link, AddPath).count(BOB) <= 6


def test_a_helper_that_leaves_after_a_while_is_taken_again_at_once():
    link = Link(requestor(own_network=True), {"bob": helper("bob", 1)})
    link.asker.start(link.now)
    for times in range(1, 5):
        link.run(15.0)
        assert of(link, AddPath).count(BOB) == times
        link.asker.on_traffic(BOB, 40_000, 0, link.now)
        link.helpers["bob"].on_uplink(None, link.now)
        link.settle()
        link.helpers["bob"].on_uplink(uplink(1), link.now)


def test_an_idle_helper_is_asked_rarely_and_its_path_stays_open():
    link = three()
    link.run(101)
    assert len(kinds(link, HelloMessage)) < 105, "two helpers, one each 2 s"
    assert of(link, SuspendPath) == []
    assert len(link.asker.helpers()) >= 2


def test_a_helper_that_answers_yet_drops_the_data_is_left_within_two_seconds():
    link = three()
    link.run(1.1)
    traffic(link, DAN, 3, 50_000, 20_000)
    dropping_from = link.now
    while DAN not in of(link, RemovePath):
        assert link.now - dropping_from < 2
        traffic(link, DAN, 0.1, 0, 20_000)
    left = next(each for each in link.asked if isinstance(each, RemovePath))
    assert left.reason is LeaveReason.CARRIES_NOTHING
    assert link.paths()[-1] == "bob", "another one takes its place"


def test_a_helper_that_carries_a_twentieth_of_its_rate_is_left():
    link = three()
    link.run(1.1)
    traffic(link, DAN, 1.7, 4_000_000 // 80 // 20, 100_000)
    assert DAN in of(link, RemovePath)


def test_a_helper_with_little_to_carry_is_not_blamed():
    link = three()
    link.run(1.1)
    for _ in range(30):
        traffic(link, DAN, 0.2, 100, 100)
        traffic(link, DAN, 0.1, 100, 0)
    assert of(link, RemovePath) == []


def test_the_budget_ends_it():
    """At 0.10 and 0.30 EUR a GB, 20 MB over each of two cost 8,000 millionths."""
    link = three(budget=8_000)
    link.run(1.1)
    link.asker.on_traffic(CYD, 20_000_000, 0, link.now)
    link.asker.on_traffic(DAN, 19_000_000, 0, link.now)
    assert (link.asker.spent, of(link, RemovePath)) == (7_900, [])
    link.asker.on_traffic(DAN, 20_000_000, 0, link.now)
    link.settle()
    assert sorted(of(link, RemovePath)) == sorted([CYD, DAN])
    assert link.asker.spent == 8_000
    link.run(60)
    assert len(kinds(link, InviteMessage)) == 1


def contract(link, helper):
    return next(
        it.contract.number for it in link.asked if isinstance(it, AddPath) and it.helper == helper
    )


def test_receipts_count_for_the_budget_where_they_name_more():
    """The own count lacks what a connection carried between its last look and its end."""
    link = three(budget=8_000)
    link.run(1.1)
    link.asker.on_traffic(CYD, 20_000_000, 0, link.now)
    link.asker.on_traffic(DAN, 19_000_000, 0, link.now)
    link.asker.on_receipt(contract(link, DAN), 15_000_000, link.now)
    assert link.asker.spent == 7_900
    link.asker.on_receipt(contract(link, DAN), 20_000_000, link.now)
    link.settle()
    assert link.asker.spent_up
    assert sorted(of(link, RemovePath)) == sorted([CYD, DAN])
    link.asker.on_receipt(contract(link, DAN), 21_000_000, link.now)
    link.asker.on_receipt(contract(link, DAN), 21_000_000, link.now)
    assert link.asker.spent == 8_100, "one that was left counts on"


def test_a_helper_whose_receipts_run_ahead_is_left_and_avoided():
    """A helper acknowledged for this host, and was owed 17 times the budget."""
    link = three()
    link.run(1.1)
    for name in (CYD, DAN):
        link.asker.on_traffic(name, 1_000_000, 0, link.now)
    link.asker.on_receipt(contract(link, CYD), 1_160_000, link.now)
    link.asker.on_receipt(contract(link, DAN), 1_170_000, link.now)
    link.settle()
    assert of(link, RemovePath) == [DAN]
    link.run(4)
    assert of(link, AddPath).count(DAN) == 1


def test_stopping_tells_the_helpers():
    link = three()
    link.run(1.1)
    link.asker.stop(link.now)
    link.settle()
    assert [each.requestors() for each in link.helpers.values()] == [[], [], []]
    assert len(kinds(link, LeaveMessage)) == 2
    assert link.asker.next_timer() is None


def test_a_driver_without_an_address_gives_the_helper_up():
    asker, bob = requestor(), helper("bob", 1)
    asker.start(START_S)
    (invite,) = asker.commands()
    assert isinstance(invite, SendDatagram)
    bob.receive_datagram(invite.data, ("ann", 7, 1), START_S)
    (join,) = bob.commands()
    assert isinstance(join, SendDatagram)
    asker.receive_datagram(join.data, ("bob", 7, 1), START_S)
    assert asker.commands() == [TakeAddress(BOB)]
    assert asker.helpers()[0].state is HelperState.ADDRESSING
    asker.on_no_address(BOB, START_S)
    assert asker.commands() == [RemovePath(BOB, LeaveReason.REFUSED, by_helper=False)]
    assert asker.helpers() == []


def test_a_certificate_that_is_revoked_ends_the_contract():
    link = three()
    link.run(1.1)
    serial = (
        next(unpack(data) for sender, data in link.sent if sender == "dan")
        .verify_sender(link.asker._trust, link.now)
        .serial
    )
    link.asker.on_revocations(
        CertificateAuthority(GATEWAY).revocations((serial,), link.now), link.now
    )
    link.settle()
    assert of(link, RemovePath) == [DAN]
    link.run(10)
    assert sorted(link.paths()) == ["bob", "cyd", "dan"], "dan is not taken again"
