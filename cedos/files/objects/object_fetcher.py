"""Fetches objects from their origins, each whole and at once, whether its client is there or not."""

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

import aiohttp
import structlog
from aiohttp import hdrs
from yarl import URL

from cedos.errors import TransferError
from cedos.files.messages import unix_time
from cedos.files.objects.http_rules import CacheLookup
from cedos.files.objects.object_store import ObjectStore, StoredObject
from cedos.files.objects.origin_client import OriginClient, words
from cedos.web import AGENT, AnswerHead, strong_validator

_BLOCK: Final = 1 << 17
_SILENCE_S: Final = 60.0
_MOST_REDIRECTS: Final = 10
_AT_ONCE: Final = 8
_MOST_PER_CLIENT: Final = 256
_AGAIN_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_ASKED: Final[dict[str, str]] = {
    hdrs.ACCEPT: "*/*",
    hdrs.ACCEPT_ENCODING: "identity",  # a compressed body has no ranges of its own
    hdrs.USER_AGENT: AGENT,
    hdrs.VIA: "1.1 cedos",
}
_LEAST_KEPT: Final = 1 << 16
"""A program's smaller answers are handed on as they come."""

_CONDITIONS: Final = frozenset({"if-none-match", "if-modified-since"})

_log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger()

_Ways = StoredObject | str
"""The result of an origin's answer: an object, or the URL of its new place."""

_Answered = Callable[
    [str, URL, CacheLookup, dict[str, StoredObject], aiohttp.ClientResponse],
    _Ways | aiohttp.ClientResponse,
]


class ObjectFetcher:
    """The fetching of objects from origins for all clients; `close` ends it.

    Args:
        refused: why there may be no connection to that address and port, in words; empty: there may.
    """

    def __init__(self, store: ObjectStore, refused: Callable[[str, int], str]) -> None:
        self.store, self._origins = store, OriginClient(refused)
        self._under_way: dict[tuple[str, str], asyncio.Task[_Ways]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots: dict[str, asyncio.Semaphore] = {}
        self._fetching: Counter[str] = Counter()

    async def find(self, client: str, url: str, version: str) -> StoredObject:
        """Return the object, which may still grow; `version`: the one that the client has begun with.

        Raises:
            TransferError: there is none, in words for who asked.
        """
        self.store.open()
        if version and (found := self.store.find(client, version)) is not None:
            return found
        there = object_url(url)
        for _ in range(_MOST_REDIRECTS):
            way = await self._ask(client, there)
            if isinstance(way, StoredObject):
                return way
            further = object_url(way)
            if there.scheme == "https" and further.scheme != "https":
                raise TransferError(f"{there.host} leads to {further.host} without encryption")
            there = further
        raise TransferError(f"{url} leads from one place to the next, {_MOST_REDIRECTS} times")

    async def close(self) -> None:
        tasks = [*self._under_way.values(), *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._origins.close()
        self.store.close()

    async def _ask(self, client: str, url: URL) -> _Ways:
        """Ask the origin once for all requests of now."""
        key = client, str(url)
        asking = self._under_way.get(key)
        if asking is None:
            if self._fetching[client] >= _MOST_PER_CLIENT:
                raise TransferError(f"{_MOST_PER_CLIENT} objects are on their way for this client")
            asking = asyncio.get_running_loop().create_task(self._asked(client, url))
            self._under_way[key] = asking
            asking.add_done_callback(lambda done: self._asked_for(key, done))
        return await asyncio.shield(asking)

    def _asked_for(self, key: tuple[str, str], done: "asyncio.Task[_Ways]") -> None:
        del self._under_way[key]
        if not done.cancelled():
            done.exception()  # who asked may have gone

    async def _asked(self, client: str, url: URL) -> _Ways:
        same = [each for each in self.store.of(client) if each.record.url == str(url)]
        for each in same:
            if not (each.whole or each.failed):
                return each
        way = await self._looked_up(client, url, _ASKED, self._answered)
        assert not isinstance(way, aiohttp.ClientResponse)
        return way

    async def answer(
        self, client: str, url: URL, asked: dict[str, str]
    ) -> StoredObject | aiohttp.ClientResponse | None:
        """Answer a program's own request; None: this client has too many requests pending.

        Large ones that are whole answers are kept and brought, whatever becomes of the program; others
        are the origin's answer, for the caller to hand on and to close.

        Raises:
            TransferError: the origin cannot be asked.
        """
        self.store.open()
        slot = self._slots.setdefault(client, asyncio.Semaphore(_AT_ONCE))
        if slot.locked():
            return None
        way = await self._looked_up(client, url, asked, self._kept_or_not)
        assert not isinstance(way, str)
        return way

    def kept(self, client: str, url: URL, asked: dict[str, str]) -> StoredObject | None:
        """Return a whole object that answers a request by itself. TransferError: the disk fails."""
        self.store.open()
        there = {each.record.id: each for each in self.store.of(client) if _is_kept(each, url)}
        fresh = CacheLookup(str(url), asked, [each.record for each in there.values()]).fresh
        return None if fresh is None else there[fresh]

    def changed(self, client: str, url: URL) -> None:
        """Invalidate a URL that a request has changed at its origin (RFC 9111, 4.4)."""
        for each in self.store.of(client):
            if each.record.url == str(url):
                each.record.reusable = False  # (of one that is on its way yet)
                if each.whole:
                    self.store.remove(client, each)

    def unwanted(self, client: str, found: StoredObject) -> None:
        """Drop an object without users, unless it may answer other requests."""
        if not found.record.reusable and not found.users:
            found.fail("no request waits for it any more")
            self.store.remove(client, found)

    async def _looked_up(
        self, client: str, url: URL, asked: dict[str, str], answered: _Answered
    ) -> _Ways | aiohttp.ClientResponse:
        slot = self._slots.setdefault(client, asyncio.Semaphore(_AT_ONCE))
        self._fetching[client] += 1
        kept: dict[str, StoredObject] = {}
        bringing = False
        await slot.acquire()
        try:
            kept = {each.record.id: each for each in self.store.of(client) if _is_kept(each, url)}
            for each in kept.values():
                each.users += 1  # an object that the origin is asked about stays meanwhile
            lookup = CacheLookup(str(url), asked, [each.record for each in kept.values()])
            # Fast path: a stored object is fresh.
            if lookup.fresh is not None:
                return kept[lookup.fresh]
            answer = await self._request(url, lookup.headers, patient=asked is not _ASKED)
            try:
                way = answered(client, url, lookup, kept, answer)
            except TransferError:
                answer.close()
                raise
            except Exception as error:
                answer.close()
                _log.warning("an answer cannot be used", host=url.host, exc_info=True)
                raise TransferError(f"{url.host} answers what cannot be used") from error
            # A new object grows in a task of its own, which keeps the slot.
            if isinstance(way, StoredObject) and not way.whole:
                bringing = True
                self._bring_later(client, url, asked, way, answer, slot)
            elif way is not answer:
                answer.release()
            return way
        finally:
            for each in kept.values():
                each.users -= 1
            if not bringing:
                self._over(client, slot)

    def _bring_later(
        self,
        client: str,
        url: URL,
        asked: dict[str, str],
        found: StoredObject,
        answer: aiohttp.ClientResponse,
        slot: asyncio.Semaphore,
    ) -> None:
        bringing = self._bring(client, url, asked, found, answer)
        task = asyncio.get_running_loop().create_task(bringing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _done: self._over(client, slot))

    def _over(self, client: str, slot: asyncio.Semaphore) -> None:
        self._fetching[client] -= 1
        slot.release()

    async def _request(
        self, url: URL, headers: dict[str, str], *, patient: bool
    ) -> aiohttp.ClientResponse:
        """Ask the origin; `patient`: without a limit of silence."""
        try:
            return await self._origins.ask(
                "GET", url, headers, silence_s=None if patient else _SILENCE_S
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise TransferError(f"{url.host} cannot be asked: {words(error)}") from None

    def _answered(
        self,
        client: str,
        url: URL,
        lookup: CacheLookup,
        kept: dict[str, StoredObject],
        answer: aiohttp.ClientResponse,
    ) -> _Ways:
        head = AnswerHead.of(url, answer)
        if (there := head.redirect()) is not None:
            return str(there)
        if head.status != 200 and not (head.status == 304 and lookup.conditional):
            raise TransferError(f"{url.host} answers {head.says}")
        return self._keep(client, url, _ASKED, lookup, kept, answer)

    def _kept_or_not(
        self,
        client: str,
        url: URL,
        lookup: CacheLookup,
        kept: dict[str, StoredObject],
        answer: aiohttp.ClientResponse,
    ) -> StoredObject | aiohttp.ClientResponse:
        large = (AnswerHead.of(url, answer).size or 0) >= _LEAST_KEPT
        if (answer.status == 304 and lookup.conditional) or (answer.status == 200 and large):
            asked = {
                name: value for name, value in lookup.headers.items() if name not in _CONDITIONS
            }
            try:
                return self._keep(client, url, asked, lookup, kept, answer)
            except TransferError:
                if answer.status == 304:
                    raise
        return answer  # also without room to store it

    def _keep(
        self,
        client: str,
        url: URL,
        asked: dict[str, str],
        lookup: CacheLookup,
        kept: dict[str, StoredObject],
        answer: aiohttp.ClientResponse,
    ) -> StoredObject:
        head = AnswerHead.of(url, answer)
        status, headers = head.status, head.fields
        # An answer without a date came now (RFC 9110, 6.6.1).
        headers.setdefault("date", [time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())])
        verdict = lookup.answered(status, headers)
        # The answer confirms stored objects, and replaces others.
        for name, newer in verdict.updated.items():
            kept[name].record.headers = newer
            kept[name].record.received_unix_s = time.time()
            self.store.write(client, kept[name])
        for name in verdict.replaced:
            if name != verdict.fresh and name in kept:
                self.store.remove(client, kept[name])
        if status == 304:
            if verdict.fresh is None:
                raise TransferError(f"{url.host} answers 304, for what it was not asked")
            return kept[verdict.fresh]
        # A new object: equal strong validators make equal versions.
        validator = head.validator
        version = (
            hashlib.sha256(f"{url}\0{validator}".encode()).hexdigest()[:32] if validator else ""
        )
        found = self.store.create(
            client, str(url), version, {name: [value] for name, value in asked.items()}, headers,
            reusable=verdict.store, size=head.size,
        )  # fmt: skip
        found.record.modified_unix_s = unix_time(head.modified_unix_s)
        return found

    async def _bring(
        self,
        client: str,
        url: URL,
        asked: dict[str, str],
        found: StoredObject,
        answer: aiohttp.ClientResponse | None,
    ) -> None:
        """Receive the whole object, over as many connections to the origin as necessary."""
        failures = 0
        try:
            while True:
                had = found.have
                try:
                    if answer is None:
                        answer = await self._rest(url, asked, found)
                    async with answer:
                        await self._take(client, found, answer)
                    break
                except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                    # Only a strong validator allows to ask for the rest of the same bytes.
                    answer = None
                    failures = 0 if found.have > had else failures + 1
                    if failures >= len(_AGAIN_S) or not strong_validator(found.record.headers):
                        raise TransferError(f"{url.host} broke off: {words(error)}") from None
                    await asyncio.sleep(_AGAIN_S[failures])
            await found.finish()
            self.store.write(client, found)
            _log.debug("fetched", bytes=found.have)
        except (TransferError, OSError) as error:
            why = str(error) if isinstance(error, TransferError) else f"the disk: {error.strerror}"
            _log.debug("not fetched", bytes=found.have, why=why)
            found.fail(why)
            self.store.remove(client, found)
        except BaseException:
            found.fail("the gateway ends")
            self.store.remove(client, found)
            raise

    async def _rest(
        self, url: URL, asked: dict[str, str], found: StoredObject
    ) -> aiohttp.ClientResponse:
        """Ask for the missing rest of the same version."""
        validator = strong_validator(found.record.headers)
        wanted = {hdrs.RANGE: f"bytes={found.have}-", hdrs.IF_RANGE: validator}
        answer = await self._origins.ask("GET", url, asked | wanted, silence_s=_SILENCE_S)
        part = AnswerHead.of(url, answer).part
        if answer.status == 206 and part is not None and part[0] == found.have:
            return answer
        # Another version, or a fault of the moment.
        answer.close()
        if answer.status >= 500 or answer.status == 429:
            raise aiohttp.ClientError(f"it answers {answer.status}")
        raise TransferError(f"{url.host} has another one now")

    async def _take(self, client: str, found: StoredObject, answer: aiohttp.ClientResponse) -> None:
        size = found.record.size
        while True:
            async with asyncio.timeout(_SILENCE_S):
                block = await answer.content.read(_BLOCK)
            if not block:
                break
            if found.failed:
                raise TransferError(found.failed)
            # Room for an unknown size is made block by block.
            if size is None:
                self.store.room(client, len(block))
            elif found.have + len(block) > size:
                raise TransferError("more came than the origin had said")
            found.write(block)
        if size is not None and found.have < size:
            raise aiohttp.ClientPayloadError(f"{found.have} of {size} bytes came")


def _is_kept(each: StoredObject, url: URL) -> bool:
    return each.whole and each.record.url == str(url)


def object_url(text: str) -> URL:
    """Parse a URL. TransferError: a gateway does not fetch such URLs."""
    try:
        url = URL(text).with_fragment(None)
    except ValueError:
        url = URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise TransferError(f"{text[:200]} is no http:// or https:// URL")
    if url.user is not None or url.password is not None:
        raise TransferError("a URL with a user's name or password in it is not asked for")
    return url
