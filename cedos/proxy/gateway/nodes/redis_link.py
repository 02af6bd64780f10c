"""The way to Redis: asked for a moment only, left alone while it is away, and found again by itself."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar, cast

import redis.asyncio
import structlog
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from cedos.proxy.gateway.nodes.redis_target import RedisTarget

PATIENCE_S: Final = 0.3
_AGAIN_S: Final = 1.0
_CONNECTIONS: Final = 4

_Answer = TypeVar("_Answer")

_log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger()


class StoreAwayError(Exception):
    """Redis does not answer, or did not just now."""


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
    return str(error) or f"no answer within {PATIENCE_S:g} s"


async def _within_a_moment(work: Awaitable[_Answer]) -> _Answer:
    """TimeoutError, and whatever redis-py raises of words that are no Redis's.

    A task that is cancelled meanwhile ends: `wait_for` of Python 3.11, which redis-py uses, may lose it.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await work
    finally:
        if task.cancelling() > before:
            raise asyncio.CancelledError


class RedisLink:
    """`begin`, then `run` scripts; `close`.

    `back` is called, in the loop, when Redis answers again.

    Attributes:
        away: whether it does not answer; `run` then raises at once.
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
            socket_timeout=PATIENCE_S,
            socket_connect_timeout=PATIENCE_S,
            retry=Retry(NoBackoff(), 0),
            max_connections=_CONNECTIONS + 1,  # one for the look whether it answers again
        )
        self._client = redis.asyncio.Redis.from_pool(pool)
        # Without a turn, the one too many would count as a Redis that does not answer.
        self._turns = asyncio.Semaphore(_CONNECTIONS)
        self.away = False
        self._finding: asyncio.Task[None] | None = None

    async def run(
        self, script: str, calls: Sequence[tuple[str, Sequence[str | bytes | int]]]
    ) -> list[Any]:
        """Runs a script of Lua for each key with its words, in one message; what they answer.

        What one was refused for is a `ResponseError` in its place. StoreAwayError.
        """

        async def work() -> list[Any]:
            pipeline = cast(_Pipeline, self._client.pipeline(transaction=False))
            for key, words in calls:
                pipeline.eval(script, 1, key, *words)
            return await pipeline.execute(raise_on_error=False)

        async with self._turns:
            if self.away:
                raise StoreAwayError
            return await self._patiently(work())

    async def begin(self) -> bool:
        """Whether it answers; it is looked for from now on if not."""
        with suppress(StoreAwayError):
            await self._patiently(self._client.ping())
        return not self.away

    async def close(self) -> None:
        if self._finding is not None:
            self._finding.cancel()
            await asyncio.gather(self._finding, return_exceptions=True)
        with suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self._client.aclose()

    async def _patiently(self, work: Awaitable[_Answer]) -> _Answer:
        try:
            return await _within_a_moment(work)
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
                await _within_a_moment(self._client.ping())
                self.away = False
        _log.info("Redis answers again", redis=str(self._target))
        self._back()


__all__ = ["PATIENCE_S", "RedisLink", "ResponseError", "StoreAwayError"]
