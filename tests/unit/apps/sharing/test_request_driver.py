"""The requestor's driver: which helpers it asks the gateway about, and which it leaves at once."""

import asyncio
import errno
from ipaddress import IPv4Address

from kit.neighbours import GATEWAY, START_S, Link, helper, identity, key_of, requestor, trust
from kit.waiting import until

from cedos.apps.sharing import side_driver
from cedos.apps.sharing.protocol.certificates import CertificateAuthority
from cedos.apps.sharing.protocol.commands import AddPath
from cedos.apps.sharing.protocol.receipts import Contract, Receipt, sign_receipt
from cedos.apps.sharing.protocol.requestor import RequestorWish
from cedos.apps.sharing.questions import (
    AskFacts,
    AskReceipts,
    GatewayFacts,
    GivenReceipts,
    SharingRefused,
    pack_answer,
    read_question,
)
from cedos.apps.sharing.request_driver import RequestDriver, idle_beside
from cedos.apps.sharing.side_driver import Side
from cedos.apps.sharing.store import SharingStore
from cedos.errors import CedosError


def test_the_gateway_is_asked_about_helpers_that_carry_nothing_beside_a_busy_one():
    assert idle_beside({b"bob": 100_000, b"cyd": 0, b"dan": 4_000}) == [b"cyd", b"dan"]
    assert idle_beside({b"bob": 100_000, b"cyd": 6_000}) == []


def test_nothing_is_asked_while_all_are_idle():
    assert idle_beside({b"bob": 5_000, b"cyd": 0}) == []
    assert idle_beside({}) == []


class _Link:
    """A link with a helper on it."""

    def __init__(self, _interface, received, *, listens):
        self._received, self.helper = received, helper("bob", 1)

    def send(self, data, _to):
        self.helper.receive_datagram(data, ("10.0.0.9", 7, 1), START_S)
        for command in self.helper.commands():
            if hasattr(command, "data"):
                self._received(command.data, ("10.0.0.1", 338, 1))
            elif hasattr(command, "confirm"):
                self.helper.on_forwarding(command.requestor, START_S)
                (acknowledgement,) = self.helper.commands()
                self._received(acknowledgement.data, ("10.0.0.1", 338, 1))

    def close(self): ...


class _Paths:
    """A kernel that refuses the next hop that a helper names."""

    removed: IPv4Address | None = None

    def new_address(self):
        return IPv4Address("169.254.7.7")

    def add(self, *_path):
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    def remove(self, address):
        self.removed = address


async def test_a_helper_whose_path_cannot_be_made_is_left(tmp_path, monkeypatch):
    """A helper names any next hop and any rate, and would stand for all the rate that is wanted."""
    monkeypatch.setattr(side_driver, "LinkSocket", _Link)

    async def ask(_question):
        raise AssertionError("the gateway is not asked")

    store = SharingStore(tmp_path / "sharing")
    side = Side(identity("ann"), trust(), "wlan0", ask, store, tmp_path / "status")
    made = RequestDriver(side, RequestorWish(1_000_000), _Paths(), lambda: "")
    made._now_s = lambda: START_S
    made._machine.start(START_S)
    made._obey()
    await until(lambda: made._paths.removed is not None)
    assert made._machine.helpers() == []
    await made._calls.close()


async def test_a_receipt_is_stored_if_it_is_by_its_contract(tmp_path, monkeypatch):
    """Of another price, or about others, it counted in `cedos share receipts` all the same."""
    monkeypatch.setattr(side_driver, "LinkSocket", _Link)
    ann, bob, price = key_of("ann").public, key_of("bob").public, 500_000
    given, asked = [], []

    async def ask(question):
        asked.append(read_question(question))
        if isinstance(asked[-1], AskFacts):
            made = CertificateAuthority(GATEWAY).revocations((), START_S + len(asked))
            return pack_answer(GatewayFacts(GATEWAY.public, made))
        return pack_answer(GivenReceipts(tuple(given)))

    store = SharingStore(tmp_path / "sharing")
    side = Side(identity("ann"), trust(), "wlan0", ask, store, tmp_path / "status")
    made = RequestDriver(side, RequestorWish(1_000_000), _Paths(), lambda: "")
    made._now_s = lambda: START_S
    made._counts.on_contract(Contract(b"n" * 32, ann, bob, price, "EUR", 0))
    # One of before this process began.
    link = Link(requestor(), {"bob": helper("bob", 1)})
    link.asker.start(link.now)
    link.run(0.01)
    old = next(it for it in link.asked if isinstance(it, AddPath))
    store.add_contract(old.contract.number, old.join, old.confirm)

    def receipt(serial, number, amount, requestor=ann):
        told = Receipt(
            GATEWAY.public, serial, requestor, bob, number, 1, 2, 0, 10**6, 10**6, amount, "EUR"
        )
        given.append(sign_receipt(told, GATEWAY))

    receipt(1, b"n" * 32, 500)
    receipt(2, b"n" * 32, 10**9)
    receipt(3, old.contract.number, 500)
    receipt(4, old.contract.number, 10**9)
    receipt(5, b"x" * 32, 10**9, key_of("dan").public)
    await made._ask_gateway()
    assert [each.serial for each in store.receipts()] == [3, 1]
    await made._ask_gateway()
    assert asked[-1] == AskReceipts(5), "refused ones hold up no others"
    await made._calls.close()


async def test_the_machine_hears_whether_the_gateway_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(side_driver, "LinkSocket", _Link)
    monkeypatch.setattr(side_driver, "_AGAIN_S", 0.0)
    told = []

    async def ask(_question):
        if len(told) < 2:
            raise CedosError("no answer in time")
        if len(told) < 4:
            return pack_answer(SharingRefused("no more questions now"))
        return pack_answer(
            GatewayFacts(GATEWAY.public, CertificateAuthority(GATEWAY).revocations((), START_S))
        )

    store = SharingStore(tmp_path / "sharing")
    side = Side(identity("ann"), trust(), "wlan0", ask, store, tmp_path / "status")
    made = RequestDriver(side, RequestorWish(1_000_000), _Paths(), lambda: "")
    monkeypatch.setattr(made._machine, "on_no_answer", lambda _now: told.append("none"))
    monkeypatch.setattr(made._machine, "on_answer", lambda _now: told.append("answer"))
    following = asyncio.create_task(made._follow_gateway())
    await until(lambda: len(told) > 4)
    following.cancel()
    await asyncio.wait({following})
    # A refusal is an answer, which a helper has passed on.
    assert told[:5] == ["none", "none", "answer", "answer", "answer"]
    await made._calls.close()
