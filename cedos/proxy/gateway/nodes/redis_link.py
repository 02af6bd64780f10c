"""The way to Redis: asked for a moment only, left alone while it is away, and found again by itself."""

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar, cast

import redis.asyncio
import structlog
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from cedos.proxy.gateway.nodes.redis_target import RedisTarget

PATIENCE_S: Final = 0.3
"""Of a client, for which Redis is asked."""

LONGEST_S: Final = 1.0
"""For what nobody waits for, and until it is a question's turn."""

_AGAIN_S: Final = 1.0
_CONNECTIONS: Final = 4

_Answer = TypeVar("_Answer")
Calls = Sequence[tuple[str, Sequence[str | bytes | int]]]

_log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger()


class StoreAwayError(Exception):
    """Redis does not answer, or did not just now."""


class StoreBusyError(Exception):
    """Redis answers, but there were too many questions before this one."""


class _Pipeline(Protocol):
    def eval(self, script: str, keys: int, *words: str | bytes | int) -> object: ...

    async def execute(self, raise_on_error: bool) -> list[Any]: ...


class _Secured(redis.asyncio.SSLConnection):
    """TLS by a context of our own: where a file names an authority, redis-py trusts the system's, too."""

    def __init__(self, *, context: ssl.SSLContext, **options: Any) -> None:
        super().__init__(**options)
        self.ssl_context.context = context


def _why(error: BaseException) -> str:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not accepted: {cause.verify_message}; --shared-ca names the file of the"
            " authority that signed it"
        )
    if isinstance(cause, ssl.SSLError):
        return f"it does not speak TLS as this host does: {cause.reason or cause}"
    return str(error) or "no answer in time"


class RedisLink:
    """`begin`, then `ask` and `run` scripts; `close`.

    `back` is called, in the loop, when Redis answers again.

    Attributes:
        away: whether it does not answer; `ask` and `run` then raise at once.
    """

    def __init__(self, target: RedisTarget, back: Callable[[], None]) -> None:
        self._target, self._back = target, back
        context = target.context()
        if target.path:
            where: dict[str, Any] = {
                "connection_class": redis.asyncio.UnixDomainSocketConnection,
                "path": target.path,
            }
        else:
            where = {"host": target.host, "port": target.port}
        if context is not None:
            where |= {"connection_class": _Secured, "context": context}
        pool = redis.asyncio.ConnectionPool(
            **where,
            db=target.database,
            password=target.password,
            socket_timeout=LONGEST_S,
            socket_connect_timeout=LONGEST_S,
            retry=Retry(NoBackoff(), 0),
            driver_info=None,  # which would be a round trip
            max_connections=_CONNECTIONS + 1,  # one for the look whether it answers again
        )
        self._client = redis.asyncio.Redis.from_pool(pool)
        # Without a turn, the one too many would count as a Redis that does not answer.
        self._turns = asyncio.Semaphore(_CONNECTIONS)
        self.away = False
        self._finding: asyncio.Task[None] | None = None
        self._working: set[asyncio.Task[Any]] = set()

    async def ask(self, script: str, calls: Calls) -> list[Any]:
        """As `run`, for a client that waits: within a moment, once it is its turn. StoreBusyError."""
        return await self._run(script, calls, LONGEST_S, PATIENCE_S)

    async def run(self, script: str, calls: Calls) -> list[Any]:
        """Runs a script of Lua for each key with its words, in one message; what they answer.

        What one was refused for is a `ResponseError` in its place. StoreAwayError.
        """
        return await self._run(script, calls, None, LONGEST_S)

    async def _run(
        self, script: str, calls: Calls, turn_s: float | None, limit_s: float
    ) -> list[Any]:
        async def work() -> list[Any]:
            pipeline = cast(_Pipeline, self._client.pipeline(transaction=False))
            for key, words in calls:
                pipeline.eval(script, 1, key, *words)
            return await pipeline.execute(raise_on_error=False)

        try:
            async with asyncio.timeout(turn_s):
                await self._turns.acquire()
        except TimeoutError:
            raise (StoreAwayError if self.away else StoreBusyError) from None
        try:
            if self.away:
                raise StoreAwayError
            return await self._patiently(limit_s, work())
        finally:
            self._turns.release()

    async def begin(self) -> bool:
        """Whether it answers; it is looked for from now on if not."""
        with suppress(StoreAwayError):
            await self._patiently(LONGEST_S, self._reach())
        return not self.away

    async def close(self) -> None:
        if self._finding is not None:
            self._finding.cancel()
            await asyncio.gather(self._finding, return_exceptions=True)
        if self._working:
            await asyncio.wait(self._working, timeout=PATIENCE_S)
        with suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self._client.aclose()

    async def _reach(self) -> None:
        """Opens all connections anew: a question is one round trip then, however far Redis is."""
        await self._client.connection_pool.disconnect()  # a turn that did not end ends by that
        pings = (self._client.ping() for _ in range(_CONNECTIONS))
        for each in await asyncio.gather(*pings, return_exceptions=True):
            if isinstance(each, BaseException):
                raise each

    async def _within(self, limit_s: float, work: Coroutine[Any, Any, _Answer]) -> _Answer:
        """TimeoutError, and whatever redis-py raises of words that are no Redis's.

        In a task of its own, which is not waited for: redis-py uses `wait_for`, which in Python 3.11 may
        lose that it is cancelled, and then would read on as long as Redis says something now and then.
        """
        task = asyncio.get_running_loop().create_task(work)
        self._working.add(task)
        task.add_done_callback(self._ended)
        try:
            await asyncio.wait({task}, timeout=limit_s)
            if not task.done():
                raise TimeoutError
            return task.result()
        finally:
            task.cancel()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._working.discard(task)
        if not task.cancelled():
            task.exception()  # (asyncio complains of what nobody has asked for)

    async def _patiently(self, limit_s: float, work: Coroutine[Any, Any, _Answer]) -> _Answer:
        try:
            return await self._within(limit_s, work)
        except Exception as error:
            self._went_away(_why(error))
            raise StoreAwayError from error

    def _went_away(self, why: str) -> None:
        if not self.away:
            self.away = True
            _log.warning(
                "nodes share nothing: Redis does not answer", redis=str(self._target), why=why
            )
            self._finding = asyncio.get_running_loop().create_task(self._find())

    async def _find(self) -> None:
        while self.away:
            await asyncio.sleep(_AGAIN_S)
            with suppress(Exception):
                await self._within(LONGEST_S, self._reach())
                self.away = False
        _log.info("Redis answers again", redis=str(self._target))
        self._back()
