"""The accounts: the gateway's counts become receipts, a host's own counts stand beside them. Pure.

The gateway believes only what it counts itself: records that it accepted from a path, and bytes of its
own that the requestor proved to have received there. No one can claim more. A path belongs to the
contract that the requestor declares for it over its session, with the signed Join and Confirm; without
that it belongs to no helper. A requestor that keeps a helper secret pays nothing, and the helper, whose
own count then exceeds its receipts, leaves (`OwnCounts.unpaid`).

A period ends every `PERIOD_S`. Bytes that no receipt names are lost where the gateway is killed: those of
one period at most.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final

from cedos.apps.sharing.protocol.certificates import Trust, UntrustedError
from cedos.apps.sharing.protocol.receipts import (
    Contract,
    Receipt,
    by_volume,
    read_contract,
    read_receipt,
    sign_receipt,
)
from cedos.apps.sharing.protocol.signing import SigningKey
from cedos.limits import TokenBucket

PERIOD_S: Final = 10.0
# The largest difference of two honest counts of one path: one record that was cut off.
RECORD_BYTES: Final = 64 << 10
_CONTRACT_S: Final = 86_400.0
_MOST_CONTRACTS: Final = 10_000
_MOST_CONTRACTS_EACH: Final = 64
# A receipt stays on the disk for good, at 430 bytes. One of fewer bytes than `LARGE_BYTES` takes a
# token of its requestor, or waits: the disk grows with what was carried, and by 0.6 MB a day.
LARGE_BYTES: Final = RECORD_BYTES // 2
_SMALL_PER_S: Final = 1 / 60
_SMALL_AT_ONCE: Final = 64


@dataclass(slots=True)
class _Account:
    contract: Contract
    total_bytes: int
    up_bytes: int = 0
    down_bytes: int = 0

    @property
    def carried_bytes(self) -> int:
        return self.up_bytes + self.down_bytes


@dataclass(slots=True)
class _CountedPath:
    requestor: bytes
    up_bytes: int = 0
    down_bytes: int = 0
    account: _Account | None = None


class GatewayAccounts:
    """The gateway's counts by path, and the receipts that they make.

    Args:
        first_serial: one more than any serial that this gateway has signed.
        total_before: bytes that a contract's receipts already name, from the store; 0: none.
    """

    def __init__(
        self,
        key: SigningKey,
        trust: Trust,
        *,
        first_serial: int,
        now_s: float,
        total_before: Callable[[bytes], int] = lambda _: 0,
    ) -> None:
        self._key, self._trust = key, trust
        self._serial, self._total_before = first_serial, total_before
        self._start_s = int(now_s)
        self._paths: dict[Hashable, _CountedPath] = {}
        self._accounts: OrderedDict[bytes, _Account] = OrderedDict()
        self._newest_us: OrderedDict[tuple[bytes, bytes], int] = OrderedDict()
        self._small: OrderedDict[bytes, TokenBucket] = OrderedDict()

    def on_path(self, path: Hashable, requestor: bytes) -> None:
        """Count a new path of a session. `requestor`: the host of the certificate for its session key."""
        assert path not in self._paths
        self._paths[path] = _CountedPath(requestor)

    def on_declared(self, path: Hashable, join: bytes, confirm: bytes, now_s: float) -> Contract:
        """Take the requestor's word which contract a path is about; all its bytes belong to that one.

        Raises:
            UntrustedError: the contract is forged, another host's, too old, or the path has another one.
        """
        counted = self._paths.get(path)
        if counted is None:
            raise UntrustedError("a contract for a path that is closed")
        contract = read_contract(join, confirm, self._trust, now_s)
        if contract.requestor != counted.requestor:
            raise UntrustedError("a contract of another requestor")
        if counted.account is not None:
            if counted.account.contract.number != contract.number:
                raise UntrustedError("a second contract for one path")
            return contract
        # An older contract of the two, at another price perhaps, is not taken out again.
        pair = (contract.requestor, contract.helper)
        newest_us = self._newest_us.get(pair, 0)
        if contract.made_us < max(newest_us, int((now_s - _CONTRACT_S) * 1e6)):
            raise UntrustedError("a contract that a newer one has replaced")
        account = self._accounts.get(contract.number)
        if account is None:
            self._make_room(contract.requestor)
            account = _Account(contract, self._total_before(contract.number))
            self._accounts[contract.number] = account
        self._newest_us[pair] = contract.made_us
        self._newest_us.move_to_end(pair)
        if len(self._newest_us) > _MOST_CONTRACTS:
            self._newest_us.popitem(last=False)
        counted.account = account
        account.up_bytes += counted.up_bytes
        account.down_bytes += counted.down_bytes
        return contract

    def on_counts(self, path: Hashable, up_bytes: int, down_bytes: int) -> None:
        """Take a path's totals: bytes accepted from it, bytes that arrived over it."""
        counted = self._paths.get(path)
        if counted is None:
            return
        up_more = max(up_bytes - counted.up_bytes, 0)
        down_more = max(down_bytes - counted.down_bytes, 0)
        counted.up_bytes += up_more
        counted.down_bytes += down_more
        if counted.account is not None:
            counted.account.up_bytes += up_more
            counted.account.down_bytes += down_more

    def on_closed(self, path: Hashable) -> None:
        """Forget a path; its bytes stay in its contract's account."""
        self._paths.pop(path, None)

    @property
    def next_receipts_s(self) -> float:
        return self._start_s + PERIOD_S

    def receipts(self, now_s: float, *, early: bool = False) -> list[tuple[Receipt, bytes]]:
        """Return the signed receipts of the period, if it has ended.

        Args:
            now_s: the time.
            early: end the period now, as the gateway stops.
        """
        if now_s < self.next_receipts_s and not early:
            return []
        end_s = max(int(now_s), self._start_s)
        made = [
            self._receipt(account, end_s)
            for account in self._accounts.values()
            if self._is_due(account, now_s) or (early and account.carried_bytes)
        ]
        self._start_s = end_s
        return made

    def _is_due(self, account: _Account, now_s: float) -> bool:
        """Return whether a contract's bytes are worth a receipt, or its requestor has a token for one."""
        if account.carried_bytes >= LARGE_BYTES or not account.carried_bytes:
            return account.carried_bytes > 0
        requestor = account.contract.requestor
        bucket = self._small.get(requestor)
        if bucket is None:
            bucket = self._small[requestor] = TokenBucket(_SMALL_PER_S, _SMALL_AT_ONCE, now_s)
            if len(self._small) > _MOST_CONTRACTS:
                self._small.popitem(last=False)
        return bucket.take(now_s)

    def _receipt(self, account: _Account, end_s: int) -> tuple[Receipt, bytes]:
        contract = account.contract
        before_bytes = account.total_bytes
        account.total_bytes += account.up_bytes + account.down_bytes
        receipt = Receipt(
            self._key.public,
            self._serial,
            contract.requestor,
            contract.helper,
            contract.number,
            self._start_s,
            end_s,
            account.up_bytes,
            account.down_bytes,
            account.total_bytes,
            by_volume(contract, before_bytes, account.total_bytes),
            contract.currency,
        )
        self._serial += 1
        account.up_bytes = account.down_bytes = 0
        return receipt, sign_receipt(receipt, self._key)

    def _make_room(self, requestor: bytes) -> None:
        """Forget a contract that carries nothing and has nothing to be charged, if there are many.

        It is one of the requestor's if that one has many. The store knows its total, should it be
        declared again.
        """
        among = [it for it in self._accounts.values() if it.contract.requestor == requestor]
        if len(among) < _MOST_CONTRACTS_EACH:
            if len(self._accounts) < _MOST_CONTRACTS:
                return
            among = list(self._accounts.values())
        used = {id(each.account) for each in self._paths.values()}
        idle = (it for it in among if id(it) not in used and not it.carried_bytes)
        if (account := next(idle, None)) is None:
            raise UntrustedError("more contracts than this gateway keeps")
        del self._accounts[account.contract.number]


@dataclass(slots=True)
class _OwnCount:
    contract: Contract
    own_bytes: int = 0
    receipted_bytes: int = 0
    # At least a second apart, so that the first one is older than three periods once it is full.
    counts: deque[tuple[float, int]] = field(
        default_factory=lambda: deque(maxlen=int(3 * PERIOD_S) + 2)
    )


class OwnCounts:
    """A helper's or a requestor's own counts, by contract, and the receipts beside them.

    A helper counts the kernel's packets. Without their headers its count may still exceed receipts by
    `overhead`, for what was sent twice; a requestor counts payload.
    """

    _MOST: Final = 1024
    HEADER_BYTES: Final = 52  # IPv4, TCP, and TCP's time stamps; of IPv6 20 more

    def __init__(self, gateway: bytes, *, overhead: float = 0.1) -> None:
        self._gateway, self._overhead = gateway, overhead
        self._counts: OrderedDict[bytes, _OwnCount] = OrderedDict()

    def on_contract(self, contract: Contract) -> None:
        if contract.number not in self._counts:
            self._counts[contract.number] = _OwnCount(contract)
            if len(self._counts) > self._MOST:
                self._counts.popitem(last=False)

    def has_contract(self, number: bytes) -> bool:
        return number in self._counts

    def on_carried(
        self, number: bytes, carried_bytes: int, now_s: float, *, packets: int = 0
    ) -> None:
        """Take the total of a contract, as this host counts it.

        Args:
            number: of the contract.
            carried_bytes: payload; or whole packets, whose headers are then taken off.
            now_s: the time.
            packets: of these bytes; 0: they are payload.
        """
        found = self._counts.get(number)
        if found is None:
            return
        self._counts.move_to_end(number)  # contracts that ended make room first
        found.own_bytes = max(found.own_bytes, carried_bytes - packets * self.HEADER_BYTES)
        # One count a second is enough to know what was carried a while ago.
        if not found.counts or now_s - found.counts[-1][0] >= 1.0:
            found.counts.append((now_s, found.own_bytes))

    def on_receipt(self, data: bytes, kept: Callable[[bytes], Contract | None]) -> Receipt:
        """Take a receipt, in any order: the highest total of a contract counts, so replays do no harm.

        Args:
            data: the receipt.
            kept: returns a contract that was made before these counts began, by its number.

        Raises:
            UntrustedError: it is forged, of a contract unknown here, or at another price.
        """
        receipt = read_receipt(data, self._gateway)
        found = self._counts.get(receipt.contract)
        contract = kept(receipt.contract) if found is None else found.contract
        if contract is None:
            raise UntrustedError("a receipt of a contract that this host did not make")
        if (receipt.requestor, receipt.helper) != (contract.requestor, contract.helper):
            raise UntrustedError("a receipt that names others than its contract")
        before_bytes = receipt.total_bytes - receipt.carried_bytes
        due = by_volume(contract, before_bytes, receipt.total_bytes)
        if receipt.amount != due or receipt.currency != contract.currency:
            raise UntrustedError("a receipt at another price than its contract's")
        if found is not None:
            found.receipted_bytes = max(found.receipted_bytes, receipt.total_bytes)
        return receipt

    def unpaid(self, number: bytes, now_s: float) -> bool:
        """Return whether receipts say less than a contract carried, but for the last three periods."""
        found = self._counts.get(number)
        if found is None:
            return False
        counts, due_s = found.counts, now_s - 3 * PERIOD_S
        while len(counts) > 1 and counts[1][0] <= due_s:
            counts.popleft()
        if not counts or counts[0][0] > due_s:
            return False
        least = counts[0][1] / (1 + self._overhead) - RECORD_BYTES
        return found.receipted_bytes < least
