"""Attacks on the link: hosts without a certificate, replays, forgeries, floods, changed prices."""

import msgspec
import pytest
from kit.neighbours import (
    GATEWAY,
    REACHES,
    START_S,
    Link,
    helper,
    identity,
    key_of,
    random_of,
    requestor,
    trust,
)
from msgspec.structs import replace

from cedos.apps.sharing.protocol import signing
from cedos.apps.sharing.protocol.accounting import GatewayAccounts
from cedos.apps.sharing.protocol.certificates import (
    AvoidedClients,
    Certificate,
    HostIdentity,
    UntrustedError,
    seal,
)
from cedos.apps.sharing.protocol.commands import (
    AddPath,
    RemovePath,
    SendDatagram,
    StartForwarding,
    TakeAddress,
)
from cedos.apps.sharing.protocol.messages import (
    ConfirmMessage,
    HelloAckMessage,
    HelloMessage,
    InviteMessage,
    JoinMessage,
    LeaveMessage,
    LeaveReason,
    pack,
    unpack,
)
from cedos.apps.sharing.protocol.receipts import read_contract
from cedos.apps.sharing.protocol.requestor import RequestorMachine, RequestorWish
from cedos.apps.sharing.protocol.signing import SigningKey
from cedos.selector.sharing import NetworkType

WHERE = ("10.0.0.66", 7, 1)
ANN, BOB = key_of("ann").public, key_of("bob").public


def self_made(name):
    """Return a host whose certificate its own key signed, though it names the gateway."""
    key = key_of(name)
    made = Certificate(1, key.public, b"s" * 32, name, 0, 2**40, GATEWAY.public)
    return HostIdentity(key, seal(made, b"cedos share certificate 1", key))


STRANGERS = {
    "signed by itself": lambda: self_made("eve"),
    "of another gateway": lambda: identity("eve", gateway=SigningKey(b"e" * 32)),
    "expired": lambda: identity("eve", now_s=START_S - 31 * 86_400),
    "with the certificate of another": lambda: HostIdentity(
        key_of("eve"), identity("ann").certificate
    ),
}


def conversation():
    """Return a requestor and a helper that have a contract."""
    link = Link(requestor(rate_bps=4_000_000), {"bob": helper("bob", 1)})
    link.asker.start(link.now)
    link.run(0.01)
    assert link.paths() == ["bob"]
    return link


def datagram(link, kind):
    return next(data for _, data in link.sent if isinstance(unpack(data).message, kind))


@pytest.mark.parametrize("stranger", STRANGERS.values(), ids=STRANGERS.keys())
def test_a_host_without_a_certificate_is_not_helped(stranger):
    bob = helper("bob", 1)
    eve = RequestorMachine(
        stranger(), trust(), RequestorWish(1_000_000), random=random_of("eve"), now_s=START_S
    )
    link = Link(eve, {"bob": bob})
    eve.start(START_S)
    link.run(60)
    assert len(link.sent) > 3
    assert link.told == [], "the helper says nothing and does nothing"
    assert bob.next_timer() is None


@pytest.mark.parametrize("stranger", STRANGERS.values(), ids=STRANGERS.keys())
@pytest.mark.parametrize("side", ["helper", "requestor"])
def test_a_host_without_a_certificate_bills_nothing(stranger, side):
    sides = {"helper": identity("bob"), "requestor": identity("ann"), side: stranger()}
    bob, ann = sides["helper"], sides["requestor"]
    now_us = int(START_S * 1e6)
    join = JoinMessage(
        now_us, b"n" * 16, ann.key.public, bytes(16), 500_000, "EUR", 10**12,
        None, NetworkType.LTE, None, b"\x0a\0\0\1", REACHES,
    )  # fmt: skip
    joined = pack(bob, join)
    confirm = ConfirmMessage(
        now_us, bytes(16), bob.key.public, join.nonce, unpack(joined).digest, b"\x0a\0\0\x64"
    )
    accounts = GatewayAccounts(GATEWAY, trust(), first_serial=1, now_s=START_S)
    accounts.on_path("path", ann.key.public)
    with pytest.raises(UntrustedError):
        accounts.on_declared("path", joined, pack(ann, confirm), START_S)


@pytest.mark.parametrize("stranger", STRANGERS.values(), ids=STRANGERS.keys())
def test_a_host_without_a_certificate_does_not_help(stranger):
    link = Link(requestor(), {"bob": helper("bob", 1)})
    link.asker.start(link.now)
    link.asker.commands()
    # Eve answers the very Invite, at no price.
    honest = helper("bob", 1)
    invite = InviteMessage(int(START_S * 1e6), b"n" * 16, 8_000_000)
    honest.receive_datagram(pack(identity("ann"), invite), WHERE, START_S)
    (join,) = honest.commands()
    real = unpack(join.data).message
    assert isinstance(real, JoinMessage)
    nonce = link.asker._invites[-1]
    forged = replace(real, answers=nonce, price=0)
    link.asker.receive_datagram(pack(stranger(), forged), WHERE, START_S)
    assert link.asker.helpers() == []
    # The same words of a registered host are taken.
    link.asker.receive_datagram(pack(identity("bob"), forged), WHERE, START_S)
    assert [each.name for each in link.asker.helpers()] == ["bob"]


def test_no_datagram_works_twice():
    """Everything that was said is said again, to everyone, from elsewhere; nothing happens."""
    link = conversation()
    link.run(3)
    before = (
        link.asker.helpers(),
        link.helpers["bob"].requestors(),
        len(link.asked),
        len(link.told),
    )
    for _, data in list(link.sent):
        link.asker.receive_datagram(data, WHERE, link.now)
        link.helpers["bob"].receive_datagram(data, WHERE, link.now)
    link.settle()
    after = (
        link.asker.helpers(),
        link.helpers["bob"].requestors(),
        len(link.asked),
        len(link.told),
    )
    assert after == before


def test_a_join_is_no_use_to_another_requestor_nor_for_another_invite():
    link = conversation()
    join = datagram(link, JoinMessage)
    dan = requestor("dan")
    dan.start(link.now)
    dan.receive_datagram(join, WHERE, link.now)
    assert dan.helpers() == []
    # A requestor that starts afresh, with a memory of nothing, did not ask this.
    again = requestor("ann", seed="again")
    again.start(link.now)
    again.receive_datagram(join, WHERE, link.now)
    assert again.helpers() == []


def test_a_confirm_that_is_replayed_after_the_end_starts_nothing():
    link = conversation()
    confirm = datagram(link, ConfirmMessage)
    link.asker.stop(link.now)
    link.run(1)
    for bob in (link.helpers["bob"], helper("bob", 1)):
        bob.receive_datagram(confirm, WHERE, link.now)
        assert not any(isinstance(each, StartForwarding) for each in bob.commands())


@pytest.mark.parametrize("forger", ["dan", "eve"])
def test_a_confirm_in_anothers_name_starts_nothing(forger):
    """Dan is a member of the group, eve is not: neither can accept for ann, nor with ann's Join."""
    bob = helper("bob", 1)
    invite = InviteMessage(int(START_S * 1e6), b"n" * 16, 1)
    bob.receive_datagram(pack(identity("ann"), invite), WHERE, START_S)
    (join,) = bob.commands()
    told = unpack(join.data)
    confirm = ConfirmMessage(
        int(START_S * 1e6) + 1, b"c" * 16, BOB, told.message.nonce, told.digest, b"\x0a\0\0\x42"
    )
    for forged in (
        pack(identity(forger), confirm),
        pack(HostIdentity(key_of(forger), identity("ann").certificate), confirm),
    ):
        bob.receive_datagram(forged, WHERE, START_S)
    assert not any(isinstance(each, StartForwarding) for each in bob.commands())
    bob.receive_datagram(pack(identity("ann"), confirm), WHERE, START_S)
    assert any(isinstance(each, StartForwarding) for each in bob.commands())


def test_a_neighbour_cannot_say_leave_for_another_one():
    link = conversation()
    now_us = int(link.now * 1e6)
    for name, to in (("dan", ANN), ("dan", BOB), ("ann", BOB), ("bob", ANN)):
        leave = LeaveMessage(now_us + 5, b"l" * 16, to, LeaveReason.DONE)
        real = name in {"ann", "bob"}
        # Dan signs as himself, and with the certificates of the two.
        sender = HostIdentity(key_of("dan"), identity(name).certificate) if real else identity(name)
        data = pack(sender, leave)
        link.asker.receive_datagram(data, link.address("bob"), link.now)
        link.helpers["bob"].receive_datagram(data, link.address("asker"), link.now)
    link.settle()
    assert not any(isinstance(each, RemovePath) for each in link.asked)
    assert len(link.helpers["bob"].requestors()) == 1


@pytest.mark.parametrize("kind", ["hello", "leave", "confirm"])
def test_a_flood_of_forgeries_keeps_nobody_from_being_heard(kind):
    """Hundreds of forgeries a second took all verifications: Hellos went unheard, and paths ended."""
    link = conversation()
    link.run(0.0037)  # else each Hello would come together with the next token
    forged = []
    for machine, to in ((link.asker, ANN), (link.helpers["bob"], BOB)):
        head = int(link.now * 1e6), b"n" * 16, to
        kinds = {
            "hello": HelloMessage(*head),
            "leave": LeaveMessage(*head, LeaveReason.DONE),
            "confirm": ConfirmMessage(*head, b"a" * 16, b"j" * 32, b"\x0a\0\0\x42"),
        }
        forged.append((machine, pack(self_made("eve"), kinds[kind])))
    for _ in range(15_000):
        for machine, data in forged:
            machine.receive_datagram(data, WHERE, link.now)
        link.run(0.0007)
    assert not any(isinstance(each, RemovePath) for each in link.asked)
    assert len(link.helpers["bob"].requestors()) == 1


def test_the_source_address_of_a_datagram_moves_no_forwarding():
    """A neighbour that repeats ann's fresh Hello from its own address gets at most an answer to it."""
    link = conversation()
    (start,) = (each for _, each in link.told if isinstance(each, StartForwarding))
    hello = pack(identity("ann"), HelloMessage(int(link.now * 1e6) + 99, b"h" * 16, BOB))
    bob = link.helpers["bob"]
    bob.receive_datagram(hello, WHERE, link.now)
    (answer,) = bob.commands()
    assert isinstance(answer, SendDatagram)
    assert len(answer.data) < 1.3 * len(hello), "nothing is amplified"
    assert start.source == next(it.source for it in link.asked if isinstance(it, AddPath))


@pytest.mark.parametrize("price", [0, 1, 10**12])
def test_a_price_that_is_changed_on_the_link_is_refused(price):
    link = conversation()
    real = datagram(link, JoinMessage)
    message = unpack(real).message
    assert isinstance(message, JoinMessage)
    end = 7 + len(unpack(real).certificate)
    body = msgspec.msgpack.encode(replace(message, price=price))
    changed = real[:end] + body + real[-signing.SIGNATURE_BYTES :]
    assert unpack(changed).message.price == price
    with pytest.raises(UntrustedError, match="did not sign"):
        unpack(changed).verify_sender(trust(), link.now)
    with pytest.raises(UntrustedError):
        read_contract(changed, datagram(link, ConfirmMessage), trust(), link.now)


def test_neither_can_show_the_gateway_a_contract_at_another_price():
    """The helper signs a dearer Join afterwards, the requestor a cheaper one of another helper."""
    link = conversation()
    join, confirm = datagram(link, JoinMessage), datagram(link, ConfirmMessage)
    assert read_contract(join, confirm, trust(), link.now).price == 500_000
    message = unpack(join).message
    assert isinstance(message, JoinMessage)
    dearer = pack(identity("bob"), replace(message, price=900_000))
    cheaper = pack(identity("dan"), replace(message, price=1))
    for other in (dearer, cheaper):
        with pytest.raises(UntrustedError, match="another Join"):
            read_contract(other, confirm, trust(), link.now)


def test_a_flood_of_invites_of_many_members_is_answered_5_times_a_second():
    bob = helper("bob", 1)
    members = [identity(f"member{number}") for number in range(40)]
    now, answered, sent = START_S, 0, 0
    for step in range(1000):
        now = START_S + step / 100
        message = InviteMessage(int(now * 1e6), step.to_bytes(16, "big"), 1_000_000)
        where = (f"10.0.0.{step % 40}", 7, 1)
        bob.receive_datagram(pack(members[step % 40], message), where, now)
        sent += 1
        answered += len(bob.commands())
        bob.handle_timer(now)
    assert sent == 1000
    assert 40 <= answered <= 5 * 10 + 5
    assert len(bob._joined) <= 64


@pytest.mark.parametrize("registered", [True, False])
def test_a_flood_of_one_address_leaves_room_for_others(registered):
    """Invite with many keys from one address: an honest requestor got no answer in 24 s."""
    bob = helper("bob", 1)
    made = identity if registered else self_made
    hosts, answered = [made(f"eve{number}") for number in range(40)], 0
    for step in range(1, 1000):
        now = START_S + step / 100
        message = InviteMessage(int(now * 1e6), step.to_bytes(16), 1_000_000)
        bob.receive_datagram(pack(hosts[step % 40], message), ("10.0.0.66", step, 1), now)
        bob.commands()
        if step % 100 == 50:
            bob.receive_datagram(pack(identity("ann"), message), ("10.0.0.67", 7, 1), now)
            answered += len(bob.commands())
    assert answered == 10


def test_a_flood_of_one_that_is_helped_leaves_the_others_heard():
    """A live requestor that said Hello without end drove the others off: the helper was deaf to them."""
    link, eve = conversation(), identity("eve")
    bob, now = link.helpers["bob"], link.now + 1.0

    def say(who, message, where):
        bob.receive_datagram(pack(who, message), where, now)
        return [each.data for each in bob.commands() if isinstance(each, SendDatagram)]

    def head(number):
        return int(now * 1e6) + number, number.to_bytes(16)

    (join,) = say(eve, InviteMessage(*head(1), 1_000_000), WHERE)
    offer = unpack(join)
    assert isinstance(offer.message, JoinMessage)
    agreed = (BOB, offer.message.nonce, offer.digest, bytes([10, 0, 0, 99]))
    say(eve, ConfirmMessage(*head(2), *agreed), WHERE)
    bob.on_forwarding(key_of("eve").public, now)
    answered = sum(len(say(eve, HelloMessage(*head(n), BOB), WHERE)) for n in range(3, 400))
    assert 0 < answered < 100
    assert say(identity("ann"), HelloMessage(*head(400), BOB), link.address("asker"))


def test_a_flood_of_strangers_costs_a_bounded_number_of_verifications(monkeypatch):
    counted = []
    real = signing.is_signed

    def counting(public, *rest):
        counted.append(public)
        return real(public, *rest)

    for module in ("certificates", "messages"):
        monkeypatch.setattr(f"cedos.apps.sharing.protocol.{module}.is_signed", counting)
    bob, eve = helper("bob", 1), self_made("eve")
    now = START_S
    for step in range(3000):
        now = START_S + step / 1000
        kinds = [
            InviteMessage(int(now * 1e6), bytes(16), 1),
            HelloMessage(int(now * 1e6), bytes(16), BOB),
        ]
        where = (f"10.0.{step // 256}.{step % 256}", 7, 1)
        bob.receive_datagram(pack(eve, kinds[step % 2]), where, now)
    # In 3 s: 20 Invites a second and 40 at once, and as many others.
    assert 180 <= len(counted) <= 210
    assert bob.commands() == []
    assert bob.next_timer() is None


def test_answers_that_were_not_asked_for_are_not_even_verified(monkeypatch):
    link = conversation()
    join = datagram(link, JoinMessage)
    monkeypatch.setattr(
        "cedos.apps.sharing.protocol.messages.is_signed", lambda *_: pytest.fail("verified")
    )
    dan = requestor("dan")
    dan.start(link.now)
    dan.receive_datagram(join, WHERE, link.now)


def test_a_member_cannot_fill_the_requestors_memory_with_offers():
    asker = requestor(rate_bps=10**12)
    asker.start(START_S)
    nonce = asker._invites[-1]
    link = conversation()
    message = unpack(datagram(link, JoinMessage)).message
    assert isinstance(message, JoinMessage)
    for number in range(200):
        now_us = int(START_S * 1e6) + number
        told = replace(message, answers=nonce, sent_us=now_us)
        data = pack(identity(f"m{number}"), told)
        asker.receive_datagram(data, (f"10.0.1.{number}", 7, 1), START_S + number / 40)
    assert len(asker.helpers()) == 64


@pytest.mark.parametrize("stays_s", [0.0, 0.4])
def test_a_member_that_comes_and_goes_takes_no_helpers_place(stays_s):
    """Its Joins and Leaves, 18 a second, kept the driver from others for as long again as they came."""
    link = Link(requestor(rate_bps=20_000_000), {"bob": helper("bob", 1)})
    link.asker.start(link.now)
    link.run(0.01)
    message = unpack(datagram(link, JoinMessage)).message
    assert isinstance(message, JoinMessage)
    eve = key_of("eve").public
    for _ in range(int(60 / (0.05 + stays_s))):
        head = int(link.now * 1e6), b"n" * 16, ANN
        told = replace(message, answers=link.asker._invites[-1], sent_us=head[0], price=0)
        link.asker.receive_datagram(pack(identity("eve"), told), WHERE, link.now)
        link.run(0.05 + stays_s)
        gone = LeaveMessage(head[0] + 1, b"n" * 16, ANN, LeaveReason.UNKNOWN)
        link.asker.receive_datagram(pack(identity("eve"), gone), WHERE, link.now)
    taken = [each.helper for each in link.asked if isinstance(each, TakeAddress)]
    assert taken.count(eve) <= 5
    assert "bob" in link.paths()


class _Pretender:
    """A helper with any number of names that offers all the rate for nothing, and forwards nothing."""

    def __init__(self, name, terms, answers):
        self._identity, self._terms, self._answers = identity(name, client="eve"), terms, answers
        self._said = []

    def receive_datagram(self, data, source, now):
        message, sent_us = unpack(data).message, int(now * 1e6) + 1
        if isinstance(message, InviteMessage):
            free = {"price": 0, "rate_bps": 10**12, "nonce": message.nonce[::-1]}
            told = replace(self._terms, answers=message.nonce, sent_us=sent_us, **free)
        elif self._answers and isinstance(message, ConfirmMessage | HelloMessage):
            told = HelloAckMessage(sent_us, b"n" * 16, ANN, message.nonce, 10**12)
        else:
            return
        self._said.append(SendDatagram(pack(self._identity, told), source))

    def commands(self):
        said, self._said = self._said, []
        return said

    def handle_timer(self, now): ...

    def next_timer(self): ...


@pytest.mark.parametrize("own_network", [True, False])
@pytest.mark.parametrize("answers", [True, False])
def test_one_client_with_many_names_keeps_no_helper_away(own_network, answers):
    """Fail under 16 certificates, one after the other: the next helper was taken after 262 s."""
    terms = unpack(datagram(conversation(), JoinMessage)).message
    helpers = {f"e{number}": _Pretender(f"e{number}", terms, answers) for number in range(16)}
    helpers["bob"] = helper("bob", 1)
    link = Link(requestor(rate_bps=4_000_000, own_network=own_network), helpers)
    link.asker.start(link.now)
    for _ in range(50):
        link.run(0.1)
        for each in link.asker.helpers():
            if each.name != "bob":
                link.asker.on_traffic(each.helper, 0, 20_000, link.now)
        link.settle()
    assert "bob" in link.paths()


def test_one_client_has_one_place_at_a_helper():
    """One with eight certificates held all places."""
    bob = helper("bob", 1)
    for number in range(16):
        link = Link(requestor(rate_bps=4_000_000), {"bob": bob})
        link.asker = RequestorMachine(
            identity(f"e{number}", client="eve"), trust(), RequestorWish(4_000_000),
            random=random_of(f"e{number}"), now_s=START_S,
        )  # fmt: skip
        link.now = START_S + 2 * number
        link.asker.start(link.now)
        link.run(1.0)
        assert link.paths() == ["bob"]
    assert [each.name for each in bob.requestors()] == ["e15"]


def test_a_flood_of_forged_joins_keeps_no_helper_away():
    """Some 100 a second, by a neighbour that hears Invites, kept out a helper that came after them."""
    join = unpack(datagram(conversation(), JoinMessage)).message
    assert isinstance(join, JoinMessage)
    link = Link(requestor(rate_bps=4_000_000), {})
    link.asker.start(link.now)
    link.run(0.0137)  # else each Invite would come together with the next token
    nonce, forged = b"", b""
    for step in range(12_000):
        if nonce != link.asker._invites[-1]:
            nonce = link.asker._invites[-1]
            head = {"answers": nonce, "sent_us": int(link.now * 1e6)}
            forged = pack(self_made("eve"), replace(join, **head))
        link.asker.receive_datagram(forged, WHERE, link.now)
        if step == 4000:
            link.helpers["bob"] = helper("bob", 1)
        link.run(0.001)
    assert link.paths() == ["bob"]


@pytest.mark.parametrize(("price", "taken"), [(10**12, False), (10**11, True)])
def test_no_helper_is_so_dear_that_the_budget_is_spent_before_it_is_seen(price, taken):
    """A budget of 2 EUR became 100 EUR in the fifth of a second between two looks."""
    bob = helper("bob", 1, price=price)
    link = Link(requestor(rate_bps=80_000, budget=20_000_000), {"bob": bob})
    link.asker.start(link.now)
    link.run(5.0)
    assert bool(link.paths()) is taken
    link.asker.on_traffic(BOB, int(80_000 / 8 * 0.2), 0, link.now)
    assert link.asker.spent <= 20_000_000


def test_who_does_not_pay_is_not_helped_at_once_again():
    """Give no receipt: the requestor was helped for 600 s of 600, by 19 contracts in a row."""
    link = conversation()
    bob, forwarded_s = link.helpers["bob"], 0
    for _ in range(600):
        link.run(1.0)
        link.asker._avoided = AvoidedClients(0.0, 0.0)
        if bob.requestors():
            forwarded_s += 1
            bob.on_counted(ANN, 500_000 * forwarded_s, link.now)
            if forwarded_s % 30 == 0:
                bob.on_unpaid(ANN, link.now)
                link.settle()
    assert 60 <= forwarded_s <= 180
    link.run(400.0)
    assert bob.requestors(), "it is tried again in the end"


def test_a_gateway_that_lost_its_counts_keeps_no_requestor_from_its_helper():
    """Receipts of one period are lost with a gateway that is killed."""
    link = conversation()
    link.helpers["bob"].on_unpaid(ANN, link.now)
    link.run(3.0)
    assert len(link.helpers["bob"].requestors()) == 1


def test_a_flood_of_forged_confirms_keeps_no_requestor_away():
    """A neighbour that hears the Join can name it; its flood took all verifications."""
    bob, lost = helper("bob", 1), True
    link = Link(requestor(rate_bps=4_000_000), {"bob": bob})
    link.lose = lambda sender, data: lost and isinstance(unpack(data).message, ConfirmMessage)
    link.asker.start(link.now)
    link.run(0.0137)
    join = unpack(datagram(link, JoinMessage))
    forged = pack(
        self_made("eve"),
        ConfirmMessage(
            int(link.now * 1e6), b"n" * 16, BOB, join.message.nonce, join.digest, b"\xa9\xfe\7\7"
        ),
    )
    for step in range(1000):
        for _ in range(2):
            bob.receive_datagram(forged, WHERE, link.now)
        lost = step < 500
        link.run(0.001)
    assert link.paths() == ["bob"]


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_datagram_of_another_hour_is_refused(hours):
    bob = helper("bob", 1)
    sent_us = int((START_S + 3600 * hours) * 1e6)
    bob.receive_datagram(
        pack(identity("ann"), InviteMessage(sent_us, bytes(16), 1)), WHERE, START_S
    )
    assert bob.commands() == []
