"""The gateway's part: it certifies hosts, counts what helpers' paths carry, and signs receipts.

A session names the source address of each of its paths that leads by a helper (`PathSays`), and the
requestor declares over a session which contract that address belongs to. So a path is the pair of the
session's key and the address. The gateway counts what the requestor's session proves, with its overhead:
the records received over the path, and what it answers to have received there. A kernel's word counts for
nothing: the helper's may acknowledge for the requestor.
"""

import asyncio
import hmac
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from cedos.apps.sharing.own_identity import SharingClock
from cedos.apps.sharing.protocol.accounting import GatewayAccounts
from cedos.apps.sharing.protocol.certificates import CertificateAuthority, Trust, UntrustedError
from cedos.apps.sharing.protocol.receipts import Receipt
from cedos.apps.sharing.protocol.signing import SigningKey
from cedos.apps.sharing.questions import (
    Answered,
    AskCertificate,
    Asked,
    AskFacts,
    AskRates,
    AskReceipts,
    AskWaiting,
    DeclarePath,
    GatewayFacts,
    GivenCertificate,
    GivenRates,
    GivenReceipts,
    GivenWaiting,
    PathDeclared,
    SharingRefused,
    pack_answer,
    read_question,
)
from cedos.apps.sharing.store import SharingStore
from cedos.errors import SharingError
from cedos.kernel import own_file, tcp_info
from cedos.limits import TokenBucket
from cedos.logs import BoundLogger, get_logger
from cedos.selector.sharing import NOWHERE, BandwidthMap, MapRecord
from cedos.session.io.path import SessionPath
from cedos.session.protocol.in_flight import PathFlight
from cedos.session.protocol.schedulers.interface import PathFacts
from cedos.session.sockets.connection import Connection

_MOST_BYTES: Final = 32 << 20
_APART_S: Final = 10.0
_log: Final[BoundLogger] = get_logger()
_COUNT_S: Final = 0.5
_MOST_DECLARED: Final = 4096
_MOST_DECLARED_EACH: Final = 64
# The most paths of one client with a contract. Each costs a receipt in each period.
_MOST_HELPED_EACH: Final = 16
_ASKED_PER_S: Final = 8
_ASKED_AT_ONCE: Final = 64
_MOST_UNWRITTEN: Final = 10_000
_MOST_RECEIPTS: Final = 100


class HelperRates:
    """The map, read at the start and written by `save`. A file that cannot be used is left out.

    Hosts tell no place yet, so that records are by helper and time of the day alone.
    """

    def __init__(self, path: Path, secret: bytes) -> None:
        self._path, self._map = path, BandwidthMap(secret)
        self._learnt_s: dict[bytes, float] = {}
        self._changed = False
        try:
            data = own_file.read(path, _MOST_BYTES)
            for record in msgspec.msgpack.decode(data, type=list[MapRecord]):
                self._map.restore(record)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, RecursionError) as error:
            _log.warning("the bandwidth map cannot be read", path=str(path), why=str(error))

    def learn(self, helper: bytes, rate_bps: float, now_s: float) -> None:
        """Take a rate that a session measured well; one in ten seconds of each helper counts."""
        if now_s - self._learnt_s.get(helper, float("-inf")) < _APART_S:
            return
        self._learnt_s = {
            each: at_s for each, at_s in self._learnt_s.items() if now_s - at_s < _APART_S
        }
        self._learnt_s[helper] = now_s
        self._map.on_carried(helper, NOWHERE, rate_bps, now_s)
        self._changed = True

    def rate_bps(self, helper: bytes, now_s: float) -> float | None:
        """Return the rate of a helper's path as the map has it; None: there is no history."""
        return self._map.rate_bps(helper, NOWHERE, now_s)

    def save(self) -> None:
        """Write the map if it has changed; a failure is logged, and tried again next time."""
        if not self._changed:
            return
        try:
            own_file.write(self._path, msgspec.msgpack.encode(list(self._map.records())))
        except OSError as error:
            _log.warning("the bandwidth map cannot be written", why=str(error))
        else:
            self._changed = False


@dataclass(slots=True)
class _Followed:
    flight: PathFlight
    session: bytes
    host: bytes
    declared: tuple[bytes, bytes] | None = None
    helper: bytes | None = None
    rate_at_s: float | None = None


class GatewaySharing:
    """The sharing of a gateway.

    Args:
        key: the one that signs.
        store: of certificates and receipts.
        connections: the sessions of now.
        invited: returns the public keys of the clients that are still invited.
    """

    def __init__(
        self,
        key: SigningKey,
        store: SharingStore,
        connections: Callable[[], Iterable[Connection]],
        invited: Callable[[], Container[bytes]],
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._store, self._connections, self._invited = store, connections, invited
        self._now_s = clock or SharingClock().now_s
        self._authority = CertificateAuthority(key)
        self._trust = Trust(key.public)
        self._accounts = GatewayAccounts(
            key,
            self._trust,
            first_serial=store.highest_serial(key.public) + 1,
            now_s=self._now_s(),
            total_before=store.total_bytes,
        )
        self._declared: dict[tuple[bytes, int], tuple[bytes, bytes]] = {}
        self._followed: dict[int, _Followed] = {}
        self._helped: Counter[bytes] = Counter()  # by session: paths with a contract
        # Of one look at all paths: the contracts that were verified, the hosts of sessions, and whether
        # hosts' certificates hold.
        self._tried: Counter[bytes] = Counter()
        self._hosts: dict[bytes, bytes | None] = {}
        self._held: dict[bytes, bool] = {}
        self._list: tuple[int, bytes] = -1, b""  # of certificates that hold no more, of a second
        self._asked: dict[bytes, TokenBucket] = {}
        self._unwritten: list[tuple[Receipt, bytes]] = []
        secret = hmac.digest(key.private, b"bandwidth map", "sha256")
        self._rates = HelperRates(store.path.with_name("helper-rates"), secret)

    def answer(self, connection: Connection, question: bytes) -> bytes | None:
        """Return the answer to a question that came over a session; None: no question, or too many."""
        now_s = self._now_s()
        bucket = self._asked.get(connection.peer_key)
        if bucket is None:
            bucket = TokenBucket(_ASKED_PER_S, _ASKED_AT_ONCE, now_s)
            self._asked[connection.peer_key] = bucket
        if not bucket.take(now_s):
            return None
        try:
            asked = read_question(question)
        except ValueError:
            return None
        try:
            return pack_answer(self._answer(connection.peer_key, asked))
        except (UntrustedError, SharingError) as error:
            return pack_answer(SharingRefused(str(error)))

    def _answer(self, session: bytes, asked: Asked) -> Answered:
        now_s = self._now_s()
        match asked:
            case AskFacts():
                return GatewayFacts(self._authority.key.public, self._withdrawn(now_s))
            case AskCertificate():
                given = self._store.register(self._authority, asked.request, session, now_s)
                return GivenCertificate(given)
            case AskReceipts():
                host = self._store.host_of_session(session)
                if host is None:
                    return SharingRefused("this host is not registered")
                return GivenReceipts(
                    tuple(self._store.receipts_since(asked.after, host, _MOST_RECEIPTS))
                )
            case AskRates():
                if self._store.host_of_session(session) is None:
                    return SharingRefused("this host is not registered")
                return GivenRates(tuple(self._rates.rate_bps(it, now_s) for it in asked.helpers))
            case AskWaiting():
                waiting = self._waiting_bytes(session)
                return GivenWaiting(
                    tuple(waiting.get(int.from_bytes(each), 0) for each in asked.sources)
                )
            case DeclarePath():
                self._declare(session, asked)
                return PathDeclared()

    def _declare(self, session: bytes, asked: DeclarePath) -> None:
        """Keep a declaration; one too many pushes out the oldest, of the same session if it has many."""
        key = session, int.from_bytes(asked.source)
        self._declared.pop(key, None)
        theirs = [each for each in self._declared if each[0] == session]
        if len(theirs) >= _MOST_DECLARED_EACH:
            del self._declared[theirs[0]]
        elif len(self._declared) >= _MOST_DECLARED:
            del self._declared[next(iter(self._declared))]
        self._declared[key] = asked.join, asked.confirm

    def _withdrawn(self, now_s: float) -> bytes:
        if self._list[0] != int(now_s):  # a later one of the same second is not accepted
            made = self._store.revocations(self._authority, now_s, self._invited())
            self._list = int(now_s), made
        return self._list[1]

    async def run(self) -> None:
        """Count paths and write receipts until it is cancelled; then write those of the last period.

        What fails is logged once and tried again: the gateway's other work does not depend on it.
        """
        failed = ""
        try:
            while True:
                try:
                    self.count()
                    if self._now_s() >= self._accounts.next_receipts_s:
                        self.write_receipts()
                    failed = ""
                except Exception as error:
                    if str(error) != failed:
                        _log.error("shared bandwidth cannot be counted", exc_info=error)
                    failed = str(error)
                await asyncio.sleep(_COUNT_S)
        finally:
            self.count()
            self.write_receipts(early=True)

    def count(self) -> None:
        """Take the counts of all helpers' paths."""
        self._trust.revoke(self._withdrawn(self._now_s()))
        here: set[int] = set()
        self._hosts.clear()
        self._held.clear()
        self._tried.clear()
        for connection, flight, path in self._paths(self._connections()):
            here.add(path.path_id)
            self._count(connection.peer_key, flight)
            self._learn(path.path_id, path.facts)
            path.ask_arrived()
            connection.flow.pump_soon()
        for number in self._followed.keys() - here:
            self._finish(number)

    def _paths(
        self, connections: Iterable[Connection]
    ) -> Iterator[tuple[Connection, PathFlight, SessionPath]]:
        """Yield the paths by helpers, with their sessions."""
        for connection in connections:
            for number, flight in connection.flow.core.in_flight.paths.items():
                path = connection.flow.paths.get(number)
                if path is not None and _source(flight):
                    yield connection, flight, path

    def _waiting_bytes(self, session: bytes) -> dict[int, int]:
        """Return by source address what a host's paths were given and its kernel has not received."""
        found: dict[int, int] = {}
        theirs = (each for each in self._connections() if each.peer_key == session)
        for _, flight, path in self._paths(theirs):
            with suppress(OSError):
                waits, source = tcp_info.unacknowledged_bytes(path.connection), _source(flight)
                found[source] = found.get(source, 0) + waits
        return found

    def write_receipts(self, *, early: bool = False) -> None:
        """Sign the receipts of the period and write them; on a full disk they wait for the next time."""
        self._rates.save()
        made = self._unwritten + self._accounts.receipts(self._now_s(), early=early)
        try:
            self._store.add(made)
        except SharingError as error:
            lost = max(len(made) - _MOST_UNWRITTEN, 0)
            _log.error("receipts cannot be written", why=str(error), waiting=len(made), lost=lost)
            self._unwritten = made[lost:]
        else:
            self._unwritten = []

    def _count(self, session: bytes, flight: PathFlight) -> None:
        number = flight.state.path_id
        followed = self._followed.get(number)
        if followed is None:
            if session not in self._hosts:
                self._hosts[session] = self._store.host_of_session(session)
            host = self._hosts[session]
            if host is None:
                return
            followed = self._followed[number] = _Followed(flight, session, host)
            self._accounts.on_path(number, host)
        contract = self._declared.get((session, _source(flight)))
        few = max(self._helped[session], self._tried[session]) < _MOST_HELPED_EACH
        if contract is not None and contract != followed.declared and few:
            followed.declared = contract
            # A wrong contract costs four signatures, and a source may have many paths.
            self._tried[session] += 1
            try:
                agreed = self._accounts.on_declared(number, *contract, self._now_s())
                self._helped[session] += followed.helper is None
                followed.helper = agreed.helper
            except UntrustedError as error:
                _log.warning("a contract is not accepted", why=str(error))
        if followed.helper is not None and not (
            self._holds(followed.host) and self._holds(followed.helper)
        ):
            # What it carries from now on counts for no client.
            self._accounts.on_closed(number)
        self._accounts.on_counts(number, flight.heard_bytes, flight.arrived_bytes)

    def _holds(self, host: bytes) -> bool:
        """Tell whether a host has a certificate that holds now."""
        if host not in self._held:
            now_s, self._held[host] = self._now_s(), False
            for certificate in self._store.certificates_of(host, now_s):
                with suppress(UntrustedError):
                    self._trust.read(certificate, now_s)
                    self._held[host] = True
                    break
        return self._held[host]

    def _learn(self, number: int, facts: PathFacts) -> None:
        """Take the rate towards the requestor, if the session has measured it well since."""
        followed = self._followed.get(number)
        if followed is None or followed.helper is None or facts.rate_bps is None:
            return
        if facts.rate_at_s != followed.rate_at_s:
            followed.rate_at_s = facts.rate_at_s
            self._rates.learn(followed.helper, facts.rate_bps, self._now_s())

    def _finish(self, number: int) -> None:
        followed = self._followed.pop(number)
        if followed.helper is not None:
            self._helped[followed.session] -= 1
            if not self._helped[followed.session]:
                del self._helped[followed.session]
        flight = followed.flight
        self._accounts.on_counts(number, flight.heard_bytes, flight.arrived_bytes)
        self._accounts.on_closed(number)


def _source(flight: PathFlight) -> int:
    """Return the address from which a path leads by a helper, as a number; 0: it does not."""
    return 0 if flight.state.peer is None else flight.state.peer.source
