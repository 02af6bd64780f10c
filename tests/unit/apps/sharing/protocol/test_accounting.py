"""The accounts: exact at the gateway, whatever joins, leaves, is killed, comes late, or lies."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from random import Random

import msgspec
import pytest
from kit.neighbours import GATEWAY, REACHES, START_S, identity, key_of, trust

from cedos.apps.sharing.protocol.accounting import (
    PERIOD_S,
    RECORD_BYTES,
    GatewayAccounts,
    OwnCounts,
)
from cedos.apps.sharing.protocol.certificates import UntrustedError
from cedos.apps.sharing.protocol.messages import ConfirmMessage, JoinMessage, pack, unpack
from cedos.apps.sharing.protocol.receipts import (
    Contract,
    Receipt,
    by_volume,
    read_contract,
    read_receipt,
    sign_receipt,
)
from cedos.selector.sharing import NetworkType

MB = 1_000_000


@dataclass(frozen=True)
class Signed:
    contract: Contract
    join: bytes
    confirm: bytes


def agree(ann, bob, now_s=START_S, price=500_000):
    """Return a contract of two hosts, with its datagrams."""
    now_us = int(now_s * 1e6)
    join = JoinMessage(
        now_us, now_us.to_bytes(16, "big"), key_of(ann).public, bytes(16), price, "EUR", 10**12,
        None, NetworkType.LTE, None, b"\x0a\0\0\1", REACHES,
    )  # fmt: skip
    joined = pack(identity(bob), join)
    confirm = ConfirmMessage(
        now_us, bytes(16), key_of(bob).public, join.nonce, unpack(joined).digest, b"\x0a\0\0\x64"
    )
    confirmed = pack(identity(ann), confirm)
    return Signed(read_contract(joined, confirmed, trust(), now_s), joined, confirmed)


def accounts(first_serial=1, now_s=START_S, **more):
    return GatewayAccounts(GATEWAY, trust(), first_serial=first_serial, now_s=now_s, **more)


def declared(made, signed, path="path"):
    made.on_path(path, signed.contract.requestor)
    made.on_declared(path, signed.join, signed.confirm, START_S)


def test_a_receipt_of_each_period_with_its_bytes_and_amount():
    made, signed = accounts(), agree("ann", "bob")
    declared(made, signed)
    made.on_counts("path", 1 * MB, 2 * MB)
    assert made.receipts(START_S + PERIOD_S - 0.1) == []
    ((first, data),) = made.receipts(START_S + PERIOD_S)
    assert read_receipt(data, GATEWAY.public) == first
    assert (first.up_bytes, first.down_bytes, first.total_bytes) == (1 * MB, 2 * MB, 3 * MB)
    assert (first.amount, first.currency) == (1500, "EUR")
    assert (first.start_s, first.end_s) == (START_S, START_S + PERIOD_S)
    assert made.receipts(START_S + 2 * PERIOD_S) == [], "nothing was carried"
    made.on_counts("path", 1 * MB, 5 * MB)
    made.on_closed("path")
    ((second, _),) = made.receipts(START_S + 2 * PERIOD_S + 1, early=True)
    assert (second.serial, second.up_bytes, second.down_bytes) == (2, 0, 3 * MB)
    assert (second.total_bytes, second.amount) == (6 * MB, 1500)


def test_bytes_before_the_declaration_belong_to_the_helper_too():
    made, signed = accounts(), agree("ann", "bob")
    made.on_path("path", signed.contract.requestor)
    made.on_counts("path", MB, MB)
    made.on_declared("path", signed.join, signed.confirm, START_S)
    made.on_declared("path", signed.join, signed.confirm, START_S)
    ((receipt, _),) = made.receipts(START_S + PERIOD_S)
    assert receipt.carried_bytes == 2 * MB


def test_parts_of_a_millionth_are_charged_later_and_none_is_lost():
    signed = agree("ann", "bob", price=333_333)
    made = accounts()
    declared(made, signed)
    amount = 0
    for step in range(1, 200):
        made.on_counts("path", 54_321 * step, 0)
        amount += sum(it.amount for it, _ in made.receipts(START_S + PERIOD_S * step))
    assert amount == 54_321 * 199 * 333_333 // 10**9
    assert by_volume(signed.contract, 0, 10**15) == 333_333 * 10**6


def test_what_a_requestor_may_not_declare():
    made, signed = accounts(), agree("ann", "bob", START_S - 10, price=500_000)
    newer = agree("ann", "bob", START_S, price=900_000)
    for path, host in (("eves", "eve"), ("new", "ann"), ("cheap", "ann")):
        made.on_path(path, key_of(host).public)
    with pytest.raises(UntrustedError, match="another requestor"):
        made.on_declared("eves", signed.join, signed.confirm, START_S)
    made.on_declared("new", newer.join, newer.confirm, START_S)
    with pytest.raises(UntrustedError, match="a newer one has replaced"):
        made.on_declared("cheap", signed.join, signed.confirm, START_S)
    other = agree("ann", "cyd", START_S)
    with pytest.raises(UntrustedError, match="a second contract"):
        made.on_declared("new", other.join, other.confirm, START_S)
    with pytest.raises(UntrustedError, match="another Join"):
        made.on_declared("cheap", other.join, newer.confirm, START_S)
    with pytest.raises(UntrustedError, match="closed"):
        made.on_declared("gone", newer.join, newer.confirm, START_S)
    day_old = agree("ann", "dan", START_S)
    with pytest.raises(UntrustedError, match="a newer one has replaced"):
        made.on_declared("cheap", day_old.join, day_old.confirm, START_S + 86_401)


def own(signed, carried=0, **more):
    counts = OwnCounts(GATEWAY.public, **more)
    counts.on_contract(signed.contract)
    counts.on_carried(signed.contract.number, carried, START_S)
    return counts


def receipt_of(signed, total=3 * MB, **changed):
    contract = signed.contract
    made = Receipt(
        GATEWAY.public, 1, contract.requestor, contract.helper, contract.number, int(START_S),
        int(START_S) + 10, 1 * MB, 2 * MB, total, 1500, "EUR",
    )  # fmt: skip
    return msgspec.structs.replace(made, **changed)


def test_small_receipts_and_contracts_of_one_requestor_fill_no_disk_and_no_table():
    """16 paths with a byte each filled 60 MB a day; 10,000 contracts shut other clients out."""
    made, now_s = accounts(), START_S
    count = 0
    for number in range(600):
        signed = agree("ann", "bob", START_S + number * 1e-3)
        made.on_path(number, signed.contract.requestor)
        try:
            made.on_declared(number, signed.join, signed.confirm, START_S)
        except UntrustedError as error:
            assert "more contracts" in str(error)  # noqa: PT017
        made.on_counts(number, 1, 0)
        made.on_closed(number)
        now_s += PERIOD_S
        count += len(made.receipts(now_s))
    assert count <= 65 + 600 * PERIOD_S / 60
    other = agree("cid", "bob", START_S + 10)
    declared(made, other)
    made.on_counts("path", 1, 0)
    paid = [each.requestor for each, _ in made.receipts(now_s + PERIOD_S)]
    assert other.contract.requestor in paid


def test_what_is_not_charged_yet_is_charged_with_more():
    made, signed = accounts(), agree("ann", "bob")
    declared(made, signed)
    found = []
    for step in range(1, 201):
        made.on_counts("path", step, 0)
        found += made.receipts(START_S + PERIOD_S * step)
    assert 64 < len(found) < 100
    made.on_counts("path", RECORD_BYTES, 0)
    found += made.receipts(START_S + PERIOD_S * 201)
    assert found[-1][0].total_bytes == sum(each.carried_bytes for each, _ in found) == RECORD_BYTES


def test_forged_and_foreign_receipts_are_refused():
    signed = agree("ann", "bob")
    counts = own(signed)
    good = sign_receipt(receipt_of(signed), GATEWAY)
    eve = key_of("eve")
    wrong = {
        "did not sign": sign_receipt(receipt_of(signed), eve),
        "another gateway": sign_receipt(receipt_of(signed, gateway=eve.public), eve),
        "did not make": sign_receipt(receipt_of(signed, contract=bytes(32)), GATEWAY),
        "names others": sign_receipt(receipt_of(signed, helper=eve.public), GATEWAY),
        "another price": sign_receipt(receipt_of(signed, amount=1501), GATEWAY),
        "a receipt of": good[:40],
        "no receipt": b"\xc0" + bytes(100),
    }
    for why, data in wrong.items():
        with pytest.raises(UntrustedError, match=why):
            counts.on_receipt(data, lambda _: None)
    (count,) = counts._counts.values()
    assert count.receipted_bytes == 0
    counts.on_receipt(good, lambda _: None)
    assert count.receipted_bytes == 3 * MB


def test_a_helper_notices_within_three_periods_that_it_is_not_paid():
    signed = agree("ann", "bob")
    unpaid, paid = own(signed), own(signed)
    number = signed.contract.number
    noticed = None
    for second in range(1, 60):
        now_s = START_S + second
        carried = second * MB * 11 // 10  # headers and what was sent twice: 10 % more
        for counts in (unpaid, paid):
            counts.on_carried(number, carried, now_s)
        if second % 10 == 0:
            told = receipt_of(
                signed, total=second * MB, up_bytes=0, down_bytes=10 * MB, amount=5000
            )
            paid.on_receipt(sign_receipt(told, GATEWAY), lambda _: None)
        assert not paid.unpaid(number, now_s)
        if unpaid.unpaid(number, now_s) and noticed is None:
            noticed = second
    assert 30 < noticed <= 33


def test_a_thousand_contracts_hide_none_that_is_unpaid():
    """A neighbour that joined and left each second had the helper forget what another one owes."""
    signed = agree("ann", "bob")
    counts, number = own(signed), signed.contract.number
    for second in range(40):
        counts.on_carried(number, second * MB, START_S + second)
        for each in range(30):
            counts.on_contract(replace(signed.contract, number=f"{second} {each}".encode()))
    assert counts.unpaid(number, START_S + 40)


def test_counts_of_a_long_contract_take_no_more_memory_and_tell_what_is_unpaid():
    """A requestor's were never taken away: 8 MB a day for each contract."""
    signed = agree("ann", "bob")
    counts, number = own(signed), signed.contract.number
    for second in range(10_000):
        counts.on_carried(number, second * MB, START_S + second)
    assert len(counts._counts[number].counts) < 100
    assert counts.unpaid(number, START_S + 10_000)


def test_headers_of_small_packets_are_no_claim():
    """Keystrokes: 100,000 packets of 36 bytes each, and as many acknowledgements without any."""
    signed = agree("ann", "bob")
    counts, number = own(signed), signed.contract.number
    payload, packets = 3_600_000, 200_000
    counts.on_carried(number, payload + 52 * packets, START_S + 1, packets=packets)
    counts.on_carried(number, payload + 52 * packets, START_S + 60, packets=packets)
    told = receipt_of(signed, total=payload, up_bytes=payload, down_bytes=0, amount=1800)
    counts.on_receipt(sign_receipt(told, GATEWAY), lambda _: None)
    assert counts._counts[number].own_bytes == payload
    assert not counts.unpaid(number, START_S + 60)


@dataclass
class World:
    """Hosts that join, leave and lie, a gateway that is killed, and what was truly carried."""

    random: Random
    now_s: float = START_S
    gateway: GatewayAccounts = field(default_factory=accounts)
    receipts: list[tuple[Receipt, bytes]] = field(default_factory=list)
    signed: list[Signed] = field(default_factory=list)
    paths: dict[str, "Carried"] = field(default_factory=dict)
    true_bytes: Counter[bytes] = field(default_factory=Counter)  # accepted and acknowledged
    pending: Counter[bytes] = field(default_factory=Counter)  # of these, not in a receipt
    lost: Counter[bytes] = field(default_factory=Counter)  # when the gateway was killed
    path_count: Counter[bytes] = field(default_factory=Counter)
    helper_bytes: Counter[bytes] = field(default_factory=Counter)
    requestor_bytes: Counter[bytes] = field(default_factory=Counter)
    reports: list[tuple[str, int, int]] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)

    def join(self):
        if self.random.random() < 0.3 or not self.signed:
            hosts = self.random.choice(["ann", "abe"]), self.random.choice(["bob", "cyd", "dan"])
            price = self.random.choice([0, 100_000, 333_333, 10**9])
            self.signed.append(agree(*hosts, self.now_s, price))
        # A cheaper one of before may be tried; the gateway takes the newest of each pair.
        signed = self.random.choice(self.signed[-12:])
        path = f"path {len(self.path_count)} {self.random.random()}"
        self.gateway.on_path(path, signed.contract.requestor)
        try:
            self.gateway.on_declared(path, signed.join, signed.confirm, self.now_s)
        except UntrustedError as error:
            self.refused[str(error)] += 1
            self.gateway.on_closed(path)
            return
        self.paths[path] = Carried(signed)
        self.path_count[signed.contract.number] += 1

    def carry(self, *, whole=True):
        """Carry one record; all three count it, or the gateway alone does not, as it was cut."""
        path = self.random.choice(list(self.paths))
        carried, record = self.paths[path], self.random.randint(1, RECORD_BYTES)
        number = carried.signed.contract.number
        cut = record if whole else self.random.randint(0, record)
        self.helper_bytes[number] += cut
        self.requestor_bytes[number] += cut if whole else self.random.choice([0, cut])
        if whole:
            up = self.random.random() < 0.3
            carried.up += record * up
            carried.down += record * (not up)
            self.true_bytes[number] += record
            self.pending[number] += record
            self.reports.append((path, carried.up, carried.down))
        else:
            self.close(path)

    def report(self):
        """Hand some counts over: late, twice, or in another order."""
        self.random.shuffle(self.reports)
        for each in self.reports[:3]:
            self.gateway.on_counts(*each)
        self.reports = self.reports[2:]

    def flush(self):
        for path, carried in self.paths.items():
            self.gateway.on_counts(path, carried.up, carried.down)

    def close(self, path):
        carried = self.paths.pop(path)
        self.gateway.on_counts(path, carried.up, carried.down)
        self.gateway.on_closed(path)

    def end_period(self):
        self.now_s += self.random.uniform(PERIOD_S, 2 * PERIOD_S)
        self.flush()
        self.receipts += self.gateway.receipts(self.now_s)
        self.pending.clear()

    def kill_gateway(self):
        """Begin again from the file; sessions dial again, and their paths count from zero."""
        self.lost.update(self.pending)
        self.pending.clear()
        self.reports.clear()
        totals = defaultdict(int)
        for each, _ in self.receipts:
            totals[each.contract] = max(totals[each.contract], each.total_bytes)
        serial = max((it.serial for it, _ in self.receipts), default=0) + 1
        self.gateway = accounts(serial, self.now_s, total_before=lambda it: totals[it])
        living, self.paths = self.paths, {}
        for path, carried in living.items():
            signed = carried.signed
            self.gateway.on_path(path, signed.contract.requestor)
            try:
                self.gateway.on_declared(path, signed.join, signed.confirm, self.now_s)
            except UntrustedError:
                self.gateway.on_closed(path)
                continue
            self.paths[path] = Carried(signed)
            self.path_count[signed.contract.number] += 1

    def lie(self):
        """Declare what one has no right to, or count for a path that is closed."""
        signed = self.random.choice(self.signed)
        path = self.random.choice(list(self.paths))
        made, other = self.gateway, self.random.choice(["eve", "ann", "abe"])
        made.on_path("lie", key_of(other).public)
        for lie in (
            lambda: made.on_declared("lie", signed.confirm, signed.join, self.now_s),
            lambda: made.on_declared("lie", signed.join, signed.confirm[:-1] + b"x", self.now_s),
        ):
            with pytest.raises(UntrustedError):
                lie()
        if signed.contract.number != self.paths[path].signed.contract.number:
            with pytest.raises(UntrustedError):
                made.on_declared(path, signed.join, signed.confirm, self.now_s)
        made.on_closed("lie")
        made.on_counts("lie", 10**12, 10**12)


@dataclass
class Carried:
    signed: Signed
    up: int = 0
    down: int = 0


@pytest.mark.parametrize("seed", range(2))
def test_the_gateways_sums_are_exact_after_10000_random_events(seed):
    world = World(Random(seed))
    for _ in range(10_000):
        world.now_s += world.random.random() * 0.1
        chance = world.random.random()
        if chance < 0.06 or not world.paths:
            world.join()
        elif chance < 0.10:
            world.close(world.random.choice(list(world.paths)))
        elif chance < 0.13:
            world.carry(whole=False)
        elif chance < 0.15:
            world.lie()
        elif chance < 0.16:
            world.end_period()
        elif chance < 0.162:
            world.kill_gateway()
        elif chance < 0.4:
            world.report()
        else:
            world.carry()
    world.end_period()
    assert len(world.signed) > 50
    assert world.refused, "older contracts were tried"
    assert world.lost.total() > 0, "the gateway was killed"

    # The gateway: exact by contract, but for the periods in which it was killed.
    by_contract = Counter()
    for each, _ in world.receipts:
        by_contract[each.contract] += each.carried_bytes
    assert +by_contract == +(world.true_bytes - world.lost)
    assert len({each.serial for each, _ in world.receipts}) == len(world.receipts)

    # Each host takes the receipts in any order, some twice, and compares.
    told = [data for _, data in world.receipts] * 2
    world.random.shuffle(told)
    helpers, requestors = OwnCounts(GATEWAY.public), OwnCounts(GATEWAY.public)
    for signed in world.signed:
        number = signed.contract.number
        for counts, bytes_ in (
            (helpers, world.helper_bytes),
            (requestors, world.requestor_bytes),
        ):
            counts.on_contract(signed.contract)
            counts.on_carried(number, bytes_[number], world.now_s)
    for data in told:
        helpers.on_receipt(data, lambda _: None)
        requestors.on_receipt(data, lambda _: None)
    for counts in (helpers, requestors):
        for found in counts._counts.values():
            number = found.contract.number
            assert found.receipted_bytes == by_contract[number]
            more = found.own_bytes - found.receipted_bytes - world.lost[number]
            assert 0 <= more <= world.path_count[number] * RECORD_BYTES
