"""The session with the gateway: made when it is needed, kept while it is used, made again after it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from itertools import count
from math import inf
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from cedos.errors import CedosError, SessionError, SessionRefusedError
from cedos.host.profiler.sizes import SizeHistory
from cedos.kernel.socket_owners import UNKNOWN
from cedos.limits import TokenBucket
from cedos.logs import get_logger
from cedos.model import Label, is_address
from cedos.proxy.gateway.gateway import KEEP_ALIVE_S, LIMITS, OPENS_AT_ONCE, OPENS_PER_S
from cedos.proxy.http import RefusedError
from cedos.proxy.local.carried import WatchStream
from cedos.proxy.local.joined_gateway import JoinedGateway
from cedos.proxy.names import ASKED_S
from cedos.proxy.streams.association import ProxiedAssociation
from cedos.proxy.streams.frames import GatewayAnswer, GatewayQuestion
from cedos.proxy.streams.multiplexer import Multiplexer
from cedos.proxy.streams.stream import ProxiedStream
from cedos.proxy.streams.unread import MOST_OF_ONE_BYTES, Share, Unread
from cedos.session.io.advice import Chooser
from cedos.session.sockets.sockets import connect

# A new connection waits this long for the gateway. Then it goes another way, or is refused.
PATIENCE_S: Final = 1.0

# If the gateway did not answer, new connections do not wait for it during this time, unless it answers.
AGAIN_S: Final = 5.0

# While no network leads to the gateway, connections wait longer: there is no other way, and a network may
# return.
NO_NETWORK_S: Final = 5.0

# If the gateway is silent for this long while direct connections succeed, it counts as gone for good.
GONE_S: Final = 10.0

_DIAL_S: Final = 10.0
_CHECK_S: Final = 0.1

# In this time a gateway has said what became of a connection or a request, also to a silent origin.
_ORIGIN_S: Final = 90.0

_NAME_PATIENCE_S: Final = 0.5
_NUMBERS: Final = 1 << 32

# Three quarters of the connections that a gateway allows this host: other users have the rest.
MOST_OF_USER: Final = 1_500

# After this time without connections the session is closed, so that its keep-alives wake no radio.
UNUSED_S: Final = 600.0

_Opened = TypeVar("_Opened", ProxiedStream, ProxiedAssociation)

_log = get_logger(__name__)


class GatewayUnreachableError(CedosError):
    """An error: the gateway does not answer, and why."""


class GatewayLink:
    """The session with a gateway. Made within the event loop.

    | state | next | when |
    |---|---|---|
    | no session | dialling | a connection needs it (`prepare`, `_session`) |
    | dialling | session, or away | the gateway answers, or not in time |
    | session | away | all its paths are silent for longer than the patience (`_note_away`) |
    | session | no session | unused for long, or the gateway ended it: dialled at once, but seldom |
    | away (`is_away`) | session | a path answers again (`_watch`) |
    | away | no session | `AGAIN_S` after dialling failed, the next connection dials again |
    | away | no session | silent for `GONE_S` while direct connections succeed: its streams break |

    While the gateway is away, new connections do not wait for it.
    """

    def __init__(
        self,
        joined: JoinedGateway,
        # Chooses networks for each label; without a choice, metered ones are used only if there are
        # no others.
        chooser: Chooser | None = None,
        # Tells whether an interface may be used to an address of the gateway; None: all may.
        networks: Callable[[str, str], bool] | None = None,
        patience_s: float = PATIENCE_S,  # how long a new connection waits for the gateway
        *,
        # Watches each stream, and each association that has sent something.
        carried: WatchStream | None = None,
        # The sizes of servers' earlier bursts, for all sessions of this proxy.
        sizes: SizeHistory | None = None,
        # Is awaited after each look-up of the gateway's name.
        looked_up: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.joined, self._looked_up = joined, looked_up
        self._carried, self._sizes = carried, sizes
        self._chooser = chooser
        self._networks = networks
        self._patience_s = patience_s
        self._loop = asyncio.get_running_loop()
        self._streams: Multiplexer | None = None
        self._running: asyncio.Task[None] | None = None
        self._dialling: asyncio.Task[Multiplexer] | None = None
        self._dialled_at_s = 0.0
        self._dialled_again_at_s = -inf
        self._away_at_s: float | None = None
        self._away_why = ""
        self.problem = ""
        self._direct = 0
        self._watching: asyncio.Task[None] | None = None
        self._numbers = count(1)
        self._questions: dict[int, asyncio.Future[bytes]] = {}
        self._used_at_s = 0.0
        # Half of what the gateway allows this host, whose other proxies have the rest.
        self._opens = TokenBucket(OPENS_PER_S / 2, OPENS_AT_ONCE / 2, self._loop.time())
        self._opening = asyncio.Lock()
        self._turns: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        self._unread = Unread(most_of_one_bytes=MOST_OF_ONE_BYTES).client(None)

    def leads_to(self, host: str, *, by_network: bool = True) -> bool:
        """Tell whether a host is the gateway itself, as far as its addresses are known.

        `by_network`: also by the word of networks. Their resolvers and routers can lead the gateway's
        name, and a session with it, over any host's address.
        """
        if not by_network:
            return host == self.joined.host and is_address(host)
        paths = self._streams.connection.paths() if self._streams is not None else ()
        return host in {self.joined.host, *(path.peer for path in paths)}

    @property
    def stands(self) -> bool:
        """Tell whether there is a session, though it may wait for a network."""
        return self._streams is not None and not self._streams.connection.ended

    @property
    def answers(self) -> bool:
        """Tell whether there is a session with a path that is not silent."""
        return self._streams is not None and self.stands and _speaks(self._streams)

    def prepare(self) -> None:
        """Begin to dial, if there is no session."""
        self._used_at_s = self._loop.time()
        if (
            not self.stands
            and not self.is_away
            and (self._dialling is None or self._dialling.done())
        ):
            self._begin_dialling()

    @property
    def rtt_s(self) -> float | None:
        """The shortest round trip to the gateway; None: it is not measured."""
        if self._streams is None:
            return None
        known = [each.rtt_s for each in self._streams.connection.paths() if not each.stalled]
        return min((each for each in known if each is not None), default=None)

    async def open(
        self,
        host: str,
        port: int,
        begun: Callable[[ProxiedStream], None] | None = None,
        *,
        user: int = UNKNOWN.user,
    ) -> ProxiedStream:
        """Open a user's stream to an origin, and wait for its answer.

        `begun` gets the stream at once, and may write its first bytes.

        GatewayUnreachableError: the gateway was not reached within the patience. RefusedError: the
        gateway or the origin refuses.
        """

        def ask(streams: Multiplexer) -> ProxiedStream:
            share = self._share(streams, user)
            stream = streams.open(host, port, unread=share, user=user)
            if self._carried is not None:
                self._carried(streams.connection, stream, self._last_decision)
            if begun is not None:
                begun(stream)
            return stream

        return await self._open(ask, user)

    def _last_decision(self, label: Label) -> int | None:
        return None if self._chooser is None else self._chooser.last_decision(label)

    async def associate(
        self,
        begun: Callable[[ProxiedAssociation], None] | None = None,
        user: int = UNKNOWN.user,
    ) -> ProxiedAssociation:
        """Open a user's association, from which the gateway sends datagrams. The rest: as `open`."""

        def ask(streams: Multiplexer) -> ProxiedAssociation:
            association = streams.associate(self._share(streams, user), user)
            if begun is not None:
                begun(association)
            if self._carried is not None and association.server:
                self._carried(streams.connection, association, lambda _: None)
            return association

        return await self._open(ask, user)

    def _share(self, streams: Multiplexer, user: int) -> Share:
        """Return what a user has of a session. RefusedError: the user has too much of it already."""
        share = self._unread.share(user)
        if streams.opened_by(share) >= MOST_OF_USER:
            raise RefusedError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "connection_limit_reached",
                f"{MOST_OF_USER} connections are all that one user may have",
            )
        return share

    async def ask(self, message: bytes) -> bytes:
        """Return the answer of the gateway's resolver to a DNS message. GatewayUnreachableError."""
        try:
            async with asyncio.timeout(ASKED_S):
                async with asyncio.timeout(_NAME_PATIENCE_S):
                    streams = await self._session()
                    await self._answering(streams)
                with self._question(streams, message, ASKED_S) as answered:
                    while not (await asyncio.wait({answered}, timeout=_NAME_PATIENCE_S))[0]:
                        if not _speaks(streams):
                            raise GatewayUnreachableError("nothing is heard of it")
                    return answered.result()
        except TimeoutError:
            raise GatewayUnreachableError("no answer in time") from None

    async def ask_share(self, message: bytes, within_s: float = ASKED_S) -> bytes:
        """Return the gateway's answer about shared bandwidth. GatewayUnreachableError."""
        try:
            async with asyncio.timeout(within_s):
                streams = await self._session()
                with self._question(streams, message, within_s, share=True) as answered:
                    return await answered
        except TimeoutError:
            raise GatewayUnreachableError("no answer in time") from None

    @contextmanager
    def _question(
        self, streams: Multiplexer, message: bytes, within_s: float, *, share: bool = False
    ) -> Iterator["asyncio.Future[bytes]"]:
        """Send a question; the future gets the answer, which has the same number."""
        number = next(self._numbers) % _NUMBERS
        answered = self._questions[number] = self._loop.create_future()
        streams.send_packet(GatewayQuestion(number, message, share).pack(), within_s)
        try:
            yield answered
        finally:
            del self._questions[number]

    def _on_answer(self, answer: GatewayAnswer) -> None:
        waits = self._questions.get(answer.number)
        if waits is not None and not waits.done():
            waits.set_result(answer.message)

    def went_direct(self) -> None:
        """Note that a connection reached its origin without the gateway: the networks work."""
        self._direct += 1

    async def _open(self, ask: Callable[[Multiplexer], _Opened], user: int) -> _Opened:
        await self._pace(user)  # first, as a session may end while it waits
        streams = await self._session()
        await self._answering(streams)
        try:
            opened = ask(streams)
        except OSError as error:
            raise GatewayUnreachableError(str(error)) from error
        try:
            await self._wait_accepted(streams, opened)
        except BaseException as error:
            opened.drop()
            if isinstance(error, OSError):
                raise GatewayUnreachableError(str(error)) from error
            raise
        return opened

    async def _pace(self, user: int) -> None:
        """Wait until one more may be opened: a gateway ends the session of a host that opens too many.

        One connection of each user waits for the next turn; the user's other ones wait behind it.
        """
        async with self._turns.setdefault(user, asyncio.Lock()), self._opening:
            while not self._opens.take(self._loop.time()):  # noqa: ASYNC110 - it refills by time
                await asyncio.sleep(self._opens.wait_s)

    async def _answering(self, streams: Multiplexer) -> None:
        """Wait for a path that is not silent. GatewayUnreachableError: there is none in time."""
        began_s = self._loop.time()
        while not _speaks(streams):
            waited_s = self._loop.time() - began_s
            if streams.connection.ended:
                raise GatewayUnreachableError(str(streams.connection.failure or "it has ended"))
            if self.is_away:
                raise GatewayUnreachableError(self._away_why)
            if waited_s > self._patience_s:
                if streams.connection.has_network:
                    raise self._note_away(f"no answer within {self._patience_s:g} s")
                if waited_s > NO_NETWORK_S:
                    raise GatewayUnreachableError("no network leads there")
            await asyncio.sleep(_CHECK_S)

    async def _wait_accepted(
        self, streams: Multiplexer, opened: ProxiedStream | ProxiedAssociation
    ) -> None:
        """Wait for the origin's answer, as long as the gateway is not silent."""
        waiting = self._loop.create_task(opened.wait_accepted())
        silent_s, until_s = 0.0, self._loop.time() + _ORIGIN_S
        try:
            while not (await asyncio.wait({waiting}, timeout=_CHECK_S))[0]:
                silent_s = 0.0 if _speaks(streams) else silent_s + _CHECK_S
                if silent_s >= self._patience_s:
                    raise self._note_away("nothing is heard of it")
                if self._loop.time() > until_s:
                    raise GatewayUnreachableError("it does not say whether the origin answers")
            waiting.result()
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    @property
    def is_away(self) -> bool:
        """Tell whether the gateway failed to answer a moment ago."""
        return self._away_at_s is not None and self._loop.time() - self._away_at_s < AGAIN_S

    def _note_away(self, why: str) -> GatewayUnreachableError:
        """Note that the gateway does not answer, watch for it, and return the error to raise."""
        if self._away_at_s is None:
            _log.warning("the gateway does not answer", gateway=str(self.joined), why=why)
            self._direct = 0
        self._away_at_s, self._away_why = self._loop.time(), why
        if self._watching is None or self._watching.done():
            self._watching = self._loop.create_task(self._watch())
        return GatewayUnreachableError(why)

    async def _watch(self) -> None:
        """Watch a silent gateway until it answers; break its session once it is gone for good."""
        began_s = self._loop.time()
        while self._away_at_s is not None:
            await asyncio.sleep(_CHECK_S)
            streams = self._streams
            if streams is not None and _speaks(streams):
                self._away_at_s = None
            elif streams is None or streams.connection.ended:
                if self._loop.time() - self._away_at_s >= AGAIN_S:
                    break  # the next connection dials again
            elif self._direct and self._loop.time() - began_s > GONE_S:
                _log.warning(
                    "the gateway is gone: what it carried breaks", connections=len(streams)
                )
                self._streams = None
                streams.connection.abort("the gateway is gone")

    async def close(self) -> None:
        """End the session, which breaks its streams."""
        streams, self._streams = self._streams, None
        for task in (self._dialling, self._watching, self._running):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if streams is not None:
            streams.connection.abort("the program at this end was ended")
            with suppress(SessionError):
                await streams.connection.wait_drained()

    async def _session(self) -> Multiplexer:
        """Return the session; without one, wait for the attempt to dial. GatewayUnreachableError."""
        self._used_at_s = self._loop.time()
        if self._streams is not None and not self._streams.connection.ended:
            return self._streams
        if self.is_away:
            raise GatewayUnreachableError(self._away_why)
        if self._dialling is None or self._dialling.done():
            self._begin_dialling()
        assert self._dialling is not None
        left_s = self._dialled_at_s + self._patience_s - self._loop.time()
        try:
            # Many connections wait for one attempt to dial: a cancelled connection must not end it.
            async with asyncio.timeout(max(left_s, 0)):
                return await asyncio.shield(self._dialling)
        except TimeoutError:
            raise GatewayUnreachableError(f"no answer within {self._patience_s:g} s") from None
        except (SessionError, OSError) as error:
            raise GatewayUnreachableError(str(error)) from error

    def _begin_dialling(self) -> None:
        self._dialled_at_s = self._loop.time()
        self._dialling = self._loop.create_task(self._dial())
        # It may fail when no connection waits any more: take the exception, which `_note_away` has
        # logged.
        self._dialling.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _dial(self) -> Multiplexer:
        joined = self.joined
        try:
            connection = await connect(
                joined.address,
                server_key=joined.server_key,
                key=joined.client,
                deadline=KEEP_ALIVE_S,
                scheduler="prompt-swtc",
                timeout_s=_DIAL_S,
                networks=self._networks,
                chooser=self._chooser,
                thrifty=True,
                limits=LIMITS,
                looked_up=self._looked_up,
            )
        except (SessionError, OSError) as error:
            # If the gateway refused or has another key, only a person can mend that: it is a problem.
            self.problem = str(error) if isinstance(error, SessionRefusedError) else ""
            self._note_away(str(error))
            raise
        self._away_at_s, self.problem = None, ""
        self._streams = streams = Multiplexer(connection, sizes=self._sizes)
        streams.answered = self._on_answer
        self._running = self._loop.create_task(self._run(streams))
        return streams

    async def _run(self, streams: Multiplexer) -> None:
        unused = self._loop.create_task(self._end_unused(streams))
        try:
            await streams.run()
        finally:
            unused.cancel()
            # This end forgets a session before it ends it; so this one was ended by the gateway.
            ended_by_gateway = self._streams is streams
            if ended_by_gateway:
                self._streams = self._away_at_s = None
            counts = streams.connection.datagrams
            _log.debug("session over", datagrams=counts.sent, copies=counts.copies)
        if not streams.connection.ended:
            with suppress(SessionError):
                await streams.connection.close()
        elif ended_by_gateway and self._loop.time() - self._dialled_again_at_s > AGAIN_S:
            # The gateway stops, or starts again: dial now, so that no connection has to wait for that.
            # If it ends the new session at once, too, the next connection dials.
            self._dialled_again_at_s = self._loop.time()
            self.prepare()

    async def _end_unused(self, streams: Multiplexer) -> None:
        """End the session once it was not used for a while."""
        while (rest_s := self._used_at_s + UNUSED_S - self._loop.time()) > 0:
            await asyncio.sleep(rest_s)
            if len(streams) or self._questions:
                self._used_at_s = self._loop.time()
        if self._streams is streams:
            self._streams = None
        streams.connection.abort("unused")


def _speaks(streams: Multiplexer) -> bool:
    return any(not path.stalled for path in streams.connection.paths())
