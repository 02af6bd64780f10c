"""Fetches objects from their origins, each whole and at once, whether its client is there or not.

One transfer at a time asks an origin about a URL of a client, and others that want the same wait. What is
on its way by then, or fresh, is theirs, too; so is a failure. If the answer is the first one's only, they
ask all at once; else (a redirect, say, or the first one left) the next one asks, and the others wait.
"""

import asyncio
import hashlib
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from email.utils import formatdate
from functools import partial
from typing import Final, Literal
from weakref import WeakValueDictionary

import aiohttp
from aiohttp import hdrs
from yarl import URL

from cedos import web
from cedos.apps.files.messages import unix_time
from cedos.apps.files.objects.http_rules import (
    conditions,
    confirmed_fields,
    is_fresh,
    kept_fields,
    may_be_reused,
)
from cedos.apps.files.objects.object_store import ObjectStore
from cedos.apps.files.objects.origin_client import LookUp, OriginClient, words
from cedos.apps.files.objects.stored_object import LONGEST_URL, StoredObject
from cedos.errors import TransferError
from cedos.logs import BoundLogger, get_logger
from cedos.session.io.driver import current
from cedos.web import AGENT, LEAST_BYTES, AnswerHead, decode_body, strong_validator

_BLOCK: Final = 1 << 17
_MOST_REDIRECTS: Final = 10
AT_ONCE: Final = 8
AT_ONCE_OF_ORIGIN: Final = 4
# While others wait for its end, a request brings so much in `SILENCE_S`, or waits behind them.
_LEAST_BESIDE_OTHERS: Final = 64 * LEAST_BYTES
_OF_BODY: Final = ("etag", "last-modified")
_AGAIN_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_ASKED: Final[dict[str, str]] = {
    hdrs.ACCEPT: "*/*",
    hdrs.ACCEPT_ENCODING: "identity",  # a compressed body has no ranges of its own
    hdrs.USER_AGENT: AGENT,
    hdrs.VIA: "1.1 cedos",
}

_log: Final[BoundLogger] = get_logger()


# The result of an origin's answer: an object, or the URL of its new place.
_Ways = StoredObject | str


class _Places(asyncio.Semaphore):
    """A bound on requests at once; `waiting`: the number of others that wait for the end of one."""

    waiting = 0

    async def acquire(self) -> Literal[True]:
        self.waiting += 1
        try:
            return await super().acquire()
        finally:
            self.waiting -= 1


class Slots:
    """The requests of a client to origins: so many at once, and of these so many to one origin."""

    def __init__(self, most: int, most_of_origin: int) -> None:
        self._all, self._most_of_origin = _Places(most), most_of_origin
        self._of_origin: WeakValueDictionary[URL, _Places] = WeakValueDictionary()

    def least_bytes(self, url: URL) -> int:
        """Return the bytes that a request must bring in `SILENCE_S` to keep its slot."""
        waiting = self._all.waiting or self._of(url).waiting
        return _LEAST_BESIDE_OTHERS if waiting else LEAST_BYTES

    async def take(self, url: URL, taken: ExitStack) -> None:
        # First the origin's: who waits for a silent origin keeps no other one waiting.
        for slot in (self._of(url), self._all):
            await slot.acquire()
            taken.callback(slot.release)

    def _of(self, url: URL) -> _Places:
        slot = self._of_origin.get(url.origin())
        if slot is None:
            slot = self._of_origin[url.origin()] = _Places(self._most_of_origin)
        return slot


class _Question:
    """A question to an origin on its way."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.failure = ""  # why it failed
        self.for_one = False  # the answer is only the transfer's that asked


class ObjectFetcher:
    """The fetching of objects from origins for all clients; `close` ends it."""

    def __init__(
        self,
        store: ObjectStore,
        refused: Callable[[str, int], str],  # `refused`, `look_up`: as of `OriginClient`
        look_up: LookUp | None = None,
    ) -> None:
        self.store, self._origins = store, OriginClient(refused, look_up)
        self._asking: dict[tuple[str, URL], _Question] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = defaultdict[str, Slots](lambda: Slots(AT_ONCE, AT_ONCE_OF_ORIGIN))

    async def find(self, client: str, url: str, version: str) -> StoredObject:
        """Return the object, which may still grow; `version`: the one that the client has begun with.

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
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._origins.close()
        self.store.close()

    async def _ask(self, client: str, url: URL) -> _Ways:
        """Return what is here, or on its way, or else what the origin answers."""
        while (found := self._find_without_question(client, url)) is None:
            if (question := self._asking.get((client, url))) is None:
                return await self._ask_for_all(client, url)
            await question.over.wait()
            if question.failure:
                raise TransferError(question.failure)
            if question.for_one:
                return await self._ask_origin(client, url)
        return found

    def _find_without_question(self, client: str, url: URL) -> StoredObject | None:
        """Return what answers without a question: it is on its way, or fresh."""
        for each in self.store.of_url(client, str(url)):
            if each.record.reusable and not (each.whole or each.failed):
                return each
        kept = self._find_kept(client, url)
        return kept if kept is not None and is_fresh(kept.record, time.time()) else None

    async def _ask_for_all(self, client: str, url: URL) -> _Ways:
        """Ask the origin while others who want the same wait."""
        question = self._asking[client, url] = _Question()
        try:
            way = await self._ask_origin(client, url)
            question.for_one = isinstance(way, StoredObject) and not way.record.reusable
            return way
        except TransferError as error:
            question.failure = str(error)
            raise
        finally:
            del self._asking[client, url]
            question.over.set()

    async def _ask_origin(self, client: str, url: URL) -> _Ways:
        kept = self._find_kept(client, url)
        with ExitStack() as taken:
            if kept is not None:  # it stays while the origin is asked about it
                kept.users += 1
            try:
                await self._slots[client].take(url, taken)
                answer = await self._request(client, url, kept)
                try:
                    way = await self._on_answer(client, url, kept, answer)
                except BaseException as error:
                    answer.close()
                    if isinstance(error, TransferError) or not isinstance(error, Exception):
                        raise
                    _log.warning("an answer cannot be used", host=url.host, exc_info=True)
                    raise TransferError(
                        f"{url.host} sends an answer that cannot be used"
                    ) from error
            finally:
                if kept is not None:
                    kept.users -= 1
            if isinstance(way, StoredObject) and not way.whole:
                slot = taken.pop_all()  # until all has come
                task = asyncio.create_task(self._bring(client, url, way, answer, slot))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                task.add_done_callback(lambda _done: slot.close())
            else:
                answer.release()
            return way

    def _find_kept(self, client: str, url: URL) -> StoredObject | None:
        """Return the newest whole object that may answer requests for a URL."""
        kept = [each for each in self.store.of_url(client, str(url)) if each.whole]
        return next((each for each in reversed(kept) if each.record.reusable), None)

    async def _request(
        self, client: str, url: URL, kept: StoredObject | None
    ) -> aiohttp.ClientResponse:
        """Ask the origin, which answers in time. TransferError."""
        asks = _ASKED | (conditions(kept.record) if kept is not None else {})
        try:
            async with asyncio.timeout(web.SILENCE_S):
                return await self._origins.ask(url, asks, client)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise TransferError(f"{url.host} cannot be asked: {words(error)}") from None

    async def _on_answer(
        self,
        client: str,
        url: URL,
        kept: StoredObject | None,
        answer: aiohttp.ClientResponse,
    ) -> _Ways:
        head = AnswerHead.of(url, answer)
        if (there := head.redirect()) is not None:
            return str(there)
        # An answer without a date came now (RFC 9110, 6.6.1).
        head.fields.setdefault("date", [formatdate(usegmt=True)])
        if head.status == 304 and kept is not None and conditions(kept.record):
            return self._confirm(client, kept, head)
        if head.status != 200:
            raise TransferError(f"{url.host} answers {head.says}")
        if kept is not None:
            self.store.remove(client, kept)
        fields, size, version = kept_fields(head.fields), head.size, ""
        if head.encoding:
            # The body is decoded: its size, its ranges and its validators are not the file's.
            size = None
            fields = {name: fields[name] for name in fields if name not in _OF_BODY}
        elif validator := head.validator:  # equal strong ones make equal versions
            version = hashlib.sha256(f"{url}\0{validator}".encode()).hexdigest()[:32]
        found = await self.store.create(
            client, str(url), version, fields, reusable=may_be_reused(head.fields), size=size,
        )  # fmt: skip
        found.record.modified_unix_s = unix_time(head.modified_unix_s)
        return found

    def _confirm(self, client: str, kept: StoredObject, head: AnswerHead) -> StoredObject:
        record = kept.record
        try:
            if (fields := confirmed_fields(record, head.fields)) is None:
                raise TransferError(f"{head.url.host} answers 304 about another version")
            record.headers, record.reusable = kept_fields(fields), may_be_reused(fields)
            record.received_unix_s = time.time()
            self.store.write(client, kept)
        except TransferError:
            self.store.remove(client, kept)
            raise
        return kept

    async def _bring(
        self,
        client: str,
        url: URL,
        found: StoredObject,
        answer: aiohttp.ClientResponse | None,
        slot: ExitStack,
    ) -> None:
        """Receive the whole object, over as many connections to the origin as necessary."""
        failures, size, slots = 0, found.record.size, self._slots[client]
        try:
            while True:
                had = found.have
                try:
                    if answer is None:
                        answer, size = await self._rest(client, url, found, size)
                    async with answer:
                        least_bytes = partial(slots.least_bytes, url)
                        await self._take(client, url, found, answer, size, least_bytes)
                    break
                except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                    # Only a strong validator allows to ask for the rest of the same bytes.
                    answer = None
                    failures = 0 if found.have >= had + LEAST_BYTES else failures + 1
                    if failures >= len(_AGAIN_S) or not strong_validator(found.record.headers):
                        raise TransferError(f"{url.host} broke off: {words(error)}") from None
                    slot.close()  # to those that wait
                    await asyncio.sleep(_AGAIN_S[failures])
                    await slots.take(url, slot)
            async with self.store.threads[client]:
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
        self, client: str, url: URL, found: StoredObject, size: int | None
    ) -> tuple[aiohttp.ClientResponse, int]:
        """Ask for the missing rest of the same version; return also the size of the whole."""
        validator = strong_validator(found.record.headers)
        wanted = {hdrs.RANGE: f"bytes={found.have}-", hdrs.IF_RANGE: validator}
        async with asyncio.timeout(web.SILENCE_S):
            answer = await self._origins.ask(url, _ASKED | wanted, client)
        head = AnswerHead.of(url, answer)
        if head.part is not None and head.continues(found.have, validator, size):
            return answer, head.part[1]
        # Another version, or a fault of the moment.
        answer.close()
        if answer.status >= 500 or answer.status == 429:
            raise aiohttp.ClientError(f"it answers {answer.status}")
        raise TransferError(f"{url.host} has another one now")

    async def _take(
        self,
        client: str,
        url: URL,
        found: StoredObject,
        answer: aiohttp.ClientResponse,
        size: int | None,
        least_bytes: Callable[[], int],
    ) -> None:
        head = AnswerHead.of(url, answer)
        async for block in decode_body(head, answer, _BLOCK, least_bytes=least_bytes):
            if head.encoding:  # a small part of the body may be much of the file
                await current().turns.turn(client)
            if found.failed:
                raise TransferError(found.failed)
            if size is not None and found.have + len(block) > size:
                raise TransferError("the origin sent more than it had announced")
            await self.store.grow(client, found, block)
        if size is not None and found.have < size:
            raise aiohttp.ClientPayloadError(f"{found.have} of {size} bytes came")


def object_url(text: str) -> URL:
    """Parse a URL. TransferError: a gateway does not fetch such URLs."""
    try:
        url = web.url_of(text).with_fragment(None)
    except ValueError:
        url = URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise TransferError(f"{text[:200]} is no http:// or https:// URL")
    if url.user is not None or url.password is not None:
        raise TransferError("a URL with a user's name or password in it is not asked for")
    if len(str(url)) > LONGEST_URL:
        raise TransferError(f"the URL is longer than {LONGEST_URL} bytes")
    return url
