"""The server of the control socket: JSON over HTTP on a unix socket.

The socket has the mode 0660 and the daemon's group. All who can open it may ask and hint.
"""

import asyncio
import logging
import socket
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, nullcontext, suppress
from math import isfinite, nan
from pathlib import Path
from typing import Final, Protocol, TypeVar
from weakref import WeakValueDictionary

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from cedos.api.budgets import BudgetMessage, UsageMessage, parse_budget
from cedos.api.messages import (
    CarriedReport,
    DecisionMessage,
    ErrorMessage,
    FlowMessage,
    NetworkMessage,
    PhoneMessage,
    PhoneRequest,
    RecordingMessage,
    RecordingRequest,
    RuleMessage,
    StatusMessage,
    parse,
)
from cedos.api.programs import (
    ChoiceRequest,
    HintAccepted,
    PrefetchingAnswer,
)
from cedos.api.transfers import TransferInTable, TransferReport, TurnMessage
from cedos.controller.hint import HintRequest, PrefetchReport
from cedos.controller.rule import RuleRequest
from cedos.errors import (
    AlreadyRunningError,
    CedosError,
    ConfigError,
    HostError,
    NotFoundError,
    PrivilegeError,
)
from cedos.kernel import own_file
from cedos.logs import get_logger
from cedos.model import Budget, PhoneUse

IDLE_S: Final = 30.0
MOST: Final = 128
_PERIOD_S: Final = 1.0
MODE: Final = 0o660
MAX_BODY_BYTES: Final = 65_536
LONGEST_FLOW: Final = 300
# Requests at once of all users but root, and of one: each of 1,000 transfers waits for its turn.
MAX_REQUESTS, MAX_REQUESTS_OF_USER = 4_800, 1_200
# Users' requests that begin in a turn of the event loop. A user with subordinate numbers is many users.
BEGUN_AT_ONCE: Final = 8
# Questions that read the disk: of one user, and of all at once. The daemon's own work needs threads, too.
MAX_DISK_OF_USER, _DISK_AT_ONCE = 4, 2
# Programs that follow changes: of all users but root, and of one. They have places of the requests.
MAX_FOLLOWERS, MAX_FOLLOWERS_OF_USER = 512, 128
FOLLOWED_S: Final = 30.0
_LINES_APART_S: Final = 0.1
MALFORMED_PAUSE_S: Final = 10.0
_STATUS: Final[dict[type[CedosError], int]] = {
    ConfigError: 400,
    NotFoundError: 404,
    PrivilegeError: 403,
}

T = TypeVar("T")
_log = get_logger(__name__)


class Backend(Protocol):
    """The daemon behind the control socket. The client gets a CedosError that a method raises."""

    async def status(self) -> StatusMessage:
        """Return the summary."""

    async def networks(self) -> list[NetworkMessage]:
        """Return all networks with their indicators."""

    async def flows(self) -> list[FlowMessage]:
        """Return all living flows."""

    async def explain(self, flow: str | None) -> DecisionMessage:
        """Return the latest decision about a flow.

        NotFoundError: no decision about such a flow is known.

        Args:
            flow: the number of a decision, a text for `messages.flow_matches`, or a text for
                `messages.server_matches` for a connection through a gateway; None: the latest
                decision.
        """

    async def choose(self, request: ChoiceRequest) -> DecisionMessage:
        """Decide on a transfer of a program that chooses its networks itself."""

    async def prefetching(self, request: PrefetchReport, uid: int) -> PrefetchingAnswer:
        """Store the state of a prefetching program. Return the networks, radios and prices."""

    async def transfer(self, report: TransferReport, uid: int) -> TurnMessage:
        """Store a user's report of a transfer with a deadline. ConfigError: it is not valid.

        Return at once if the turn differs from the one that the program has seen. Otherwise return
        when the turn changes, or after the `wait_s` of the report.
        """

    async def transfers(self) -> list[TransferInTable]:
        """Return all transfers with deadlines, the earliest first."""

    async def report_carried(self, report: CarriedReport, uid: int) -> None:
        """Store a proxy's report of carried connections. ConfigError: it is not valid."""

    async def hint(self, hint: HintRequest, uid: int) -> HintAccepted:
        """Store a user's hint for future transfers."""

    async def unhint(self, number: int, uid: int) -> None:
        """Remove a hint of this user (root: of any user).

        Errors: NotFoundError, PrivilegeError.
        """

    async def standing_budgets(self) -> list[BudgetMessage]:
        """Return all budgets with their states."""

    async def usage(self, since_unix_s: float) -> UsageMessage:
        """Return the usage since then, by network and by server."""

    async def set_budget(self, budget: Budget) -> BudgetMessage:
        """Add a budget, or replace the one of this name. ConfigError: it is not valid."""

    async def phone(self) -> PhoneMessage:
        """Return what metered networks are for."""

    async def prefer(self, phone: PhoneUse | None) -> PhoneMessage:
        """Say what metered networks are for; None: as the configuration says."""

    async def remove_budget(self, name: str) -> None:
        """Remove a budget.

        NotFoundError: it is unknown. ConfigError: it belongs to the configuration.
        """

    async def rules(self) -> list[RuleMessage]:
        """Return the user's rules and their effects."""

    async def changes(self, seen: int = -1, wait_s: float = 0.0) -> int:
        """Return the number of the rules, their addresses, the networks and walls of now.

        If it is `seen`, wait for another one, or so long.
        """

    async def add_rule(self, rule: RuleRequest) -> RuleMessage:
        """Add a rule, or replace that of the same host and port.

        ConfigError: there are too many.
        """

    async def remove_rule(self, number: int) -> None:
        """Remove a rule. NotFoundError: it is unknown."""

    async def recording(self) -> RecordingMessage:
        """Return the event log that is being written."""

    async def record(self, request: RecordingRequest, uid: int) -> RecordingMessage:
        """Begin an event log, or end it, as a user wishes.

        Errors: HistoryError: it cannot be begun. NotFoundError: there is none. PrivilegeError.
        """


class OpenConnections:
    """Limits on connections without a request (30 s each, 128 in all), and on requests of each user.

    A connection that is closed has a second to take the rest of its answer.
    `living` returns the connections of the server. `count_during` is a middleware that notes requests.
    """

    def __init__(
        self,
        living: Callable[[], Iterable[asyncio.BaseProtocol]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._living = living
        self._clock = clock
        self._asking: set[object] = set()
        self._users: Counter[int] = Counter()
        self._turns: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        self._beginning = asyncio.Semaphore(BEGUN_AT_ONCE)
        self._disk_users: Counter[int] = Counter()
        self._disk = asyncio.Semaphore(_DISK_AT_ONCE)
        self._idle_since_s: dict[object, float] = {}
        self._closing: dict[object, asyncio.Transport | None] = {}

    @web.middleware
    async def count_during(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        await request.read()  # a client that never completes its request counts as idle
        protocol, user, users = request.protocol, _asker(request), self._users
        if users[user] >= MAX_REQUESTS_OF_USER:
            raise HostError(f"{MAX_REQUESTS_OF_USER} requests of this user wait already")
        if user and users.total() - users[0] >= MAX_REQUESTS:
            raise HostError(f"{MAX_REQUESTS} requests wait already")
        self._asking.add(protocol)
        users[user] += 1
        try:
            await self.turn(user)
            return await handler(request)
        finally:
            self._asking.discard(protocol)
            users[user] -= 1
            if not users[user]:
                del users[user]
            self._idle_since_s.pop(protocol, None)

    async def turn(self, user: int) -> None:
        """Wait for a turn of the event loop in which no other request of a user begins.

        Few of all but root do: the daemon's own work and other users' requests wait for these, not for
        all that are ready.
        """
        async with (
            self._turns.setdefault(user, asyncio.Lock()),
            self._beginning if user else nullcontext(),
        ):
            await asyncio.sleep(0)

    @asynccontextmanager
    async def reading_disk(self, request: web.Request) -> AsyncIterator[None]:
        """Wait for a turn to read the disk. HostError: too many questions of this user wait."""
        user, users = _asker(request), self._disk_users
        if users[user] >= MAX_DISK_OF_USER:
            raise HostError(f"{MAX_DISK_OF_USER} such questions of this user wait already")
        users[user] += 1
        try:
            async with self._disk:
                yield
        finally:
            users[user] -= 1
            if not users[user]:
                del users[user]

    def close_idle(self) -> None:
        now_s = self._clock()
        there = [each for each in self._living() if isinstance(each, web.RequestHandler)]
        for each in self._closing.keys() & set(there):
            if (transport := self._closing[each]) is not None:
                transport.abort()
        self._closing = {}
        idle = [each for each in there if each not in self._asking]
        self._idle_since_s = {each: self._idle_since_s.get(each, now_s) for each in idle}
        idle.sort(key=self._idle_since_s.__getitem__)
        superfluous = max(0, len(there) - MOST)
        for number, each in enumerate(idle):
            idle_s = now_s - self._idle_since_s[each]
            # One that has just come is given the time to ask.
            if (number < superfluous and idle_s > 0.0) or idle_s >= IDLE_S:
                self._closing[each] = each.transport
                each.force_close()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_PERIOD_S)
            self.close_idle()


def short_lines(clock: Callable[[], float] = time.monotonic) -> Callable[[logging.LogRecord], bool]:
    """Return a filter that shortens and limits aiohttp's log of malformed requests.

    Otherwise any program that may connect could fill the log with tracebacks.
    """
    said_at_s, unsaid = float("-inf"), 0

    def keeps(record: logging.LogRecord) -> bool:
        nonlocal said_at_s, unsaid
        if not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError)):
            return True
        now_s = clock()
        if now_s - said_at_s < MALFORMED_PAUSE_S:
            unsaid += 1
            return False
        more = f" (and {unsaid} more before it)" if unsaid else ""
        said_at_s, unsaid = now_s, 0
        record.msg, record.args = f"a request that is no HTTP was refused{more}", ()
        record.exc_info = record.exc_text = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True

    return keeps


def http_log() -> logging.Logger:
    """Return aiohttp's log."""
    log = logging.getLogger("cedos.api.http")
    if not log.filters:
        log.addFilter(short_lines())
    return log


class ControlServer:
    """A server of a backend on a unix socket, during its `async with` block."""

    def __init__(self, backend: Backend, path: Path) -> None:
        self._backend = backend
        self._path = path
        self._runner: web.AppRunner | None = None
        self._inode: tuple[int, int] | None = None
        self._missing = False
        self._connections = OpenConnections(self._living)
        self._followers: dict[asyncio.Task[object] | None, int] = {}  # by task: its user
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "ControlServer":
        """Start to listen.

        AlreadyRunningError: a living daemon answers on this socket. PrivilegeError: the folder of the
        socket cannot be written. HostError: the socket cannot be made for another reason.
        """
        runner = self._runner = web.AppRunner(
            self._application(),
            access_log=None,
            logger=http_log(),
            shutdown_timeout=1.0,
            handle_signals=False,
        )
        try:
            await runner.setup()
            await self._listen(runner)
            self._closing = asyncio.create_task(self._connections.run(), name="idle connections")
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def keep(self) -> None:
        """Listen again if the socket was removed.

        systemd removes the folder of a service that fails to start, even if another daemon uses
        the folder.
        """
        if self._runner is None or self._path.exists():
            self._missing = False
            return
        try:
            await self._listen(self._runner)
        except CedosError as error:
            if not self._missing:
                _log.warning(
                    "the control socket was removed and cannot be made again", why=str(error)
                )
            self._missing = True
        else:
            _log.info("the control socket was removed; it is there again", path=str(self._path))

    async def _listen(self, runner: web.AppRunner) -> None:
        listening = _listening_socket(self._path)
        try:
            status = self._path.stat()
            await web.SockSite(runner, listening, backlog=64).start()
        except BaseException:
            listening.close()
            raise
        self._inode = (status.st_dev, status.st_ino)

    async def __aexit__(self, *_: object) -> None:
        # Remove the name first, so that no client connects any more. Keep the socket of another daemon.
        with suppress(OSError):
            status = self._path.stat()
            if (status.st_dev, status.st_ino) == self._inode:
                self._path.unlink()
        if self._closing is not None:
            self._closing.cancel()
        if self._runner is not None:
            await self._runner.cleanup()

    def _living(self) -> Iterable[asyncio.BaseProtocol]:
        server = self._runner.server if self._runner is not None else None
        return server.connections if server is not None else ()

    def _application(self) -> web.Application:
        application = web.Application(
            middlewares=[_errors_as_json, self._connections.count_during],
            client_max_size=MAX_BODY_BYTES,
        )
        asked, router = self._backend, application.router
        for path, ask in (
            ("status", asked.status),
            ("networks", asked.networks),
            ("flows", asked.flows),
            ("budgets", asked.standing_budgets),
            ("phone", asked.phone),
            ("transfers", asked.transfers),
            ("rules", asked.rules),
            ("changes", asked.changes),
            ("recording", asked.recording),
        ):
            router.add_get(f"/v1/{path}", _answering(ask))
        router.add_get("/v1/explain", self._explain)
        router.add_get("/v1/usage", self._usage)
        router.add_get("/v1/changes/follow", self._follow)
        application.on_shutdown.append(self._leave_followers)
        router.add_post("/v1/budgets", self._set_budget)
        for path, handler in (
            ("phone", _taking(PhoneRequest, "phone", lambda said, _: asked.prefer(said.phone))),
            ("choices", _taking(ChoiceRequest, "choice", lambda said, _: asked.choose(said))),
            ("prefetching", _taking(PrefetchReport, "prefetching", asked.prefetching)),
            ("transfers", _taking(TransferReport, "transfer", asked.transfer)),
            ("carried", _taking(CarriedReport, "carried", asked.report_carried)),
            ("recording", _taking(RecordingRequest, "recording", asked.record)),
            ("hints", _taking(HintRequest, "hint", asked.hint, status=201)),
            ("rules", _taking(RuleRequest, "rule", lambda said, _: asked.add_rule(said))),
        ):
            router.add_post(f"/v1/{path}", handler)
        for which, remove in (
            (r"budgets/{which:[A-Za-z0-9._-]{1,31}}", lambda name, _: asked.remove_budget(name)),
            (r"rules/{which:\d{1,9}}", lambda number, _: asked.remove_rule(int(number))),
            (r"hints/{which:\d{1,18}}", lambda number, uid: asked.unhint(int(number), uid)),
        ):
            router.add_delete(f"/v1/{which}", _removing(remove))
        return application

    async def _explain(self, request: web.Request) -> web.Response:
        if len(request.query.get("flow", "")) > LONGEST_FLOW:
            raise ConfigError(f"explain: a flow has {LONGEST_FLOW} characters at most")
        async with self._connections.reading_disk(request):
            return _json(await self._backend.explain(request.query.get("flow") or None))

    async def _usage(self, request: web.Request) -> web.Response:
        try:
            since_unix_s = float(request.query.get("since", "nan"))
        except ValueError:
            since_unix_s = nan
        if not isfinite(since_unix_s):
            raise ConfigError("usage: `since` is to be in seconds since the epoch")
        async with self._connections.reading_disk(request):
            return _json(await self._backend.usage(since_unix_s))

    async def _follow(self, request: web.Request) -> web.StreamResponse:
        """Write a line with each change, until the client leaves; and now and again, to notice that."""
        user, task, answer = _asker(request), asyncio.current_task(), web.StreamResponse()
        users = [*self._followers.values()]
        others = len(users) - users.count(0)
        if users.count(user) >= MAX_FOLLOWERS_OF_USER or (user and others >= MAX_FOLLOWERS):
            raise HostError(f"{users.count(user)} programs of this user, of {len(users)}, follow")
        self._followers[task] = user
        try:
            await answer.prepare(request)
            seen = -1
            while True:
                seen = await self._backend.changes(seen, FOLLOWED_S)
                await self._connections.turn(user)
                await answer.write(b"\n")
                await asyncio.sleep(_LINES_APART_S)
        except (ConnectionError, asyncio.CancelledError):  # the client has left, or the server ends
            return answer
        finally:
            del self._followers[task]

    async def _leave_followers(self, _application: web.Application) -> None:
        for task in self._followers:
            if task is not None:
                task.cancel()

    async def _set_budget(self, request: web.Request) -> web.Response:
        return _json(await self._backend.set_budget(parse_budget(await request.read())), status=201)


def _answering(ask: Callable[[], Awaitable[object]]) -> Handler:
    """Return the handler of a question without arguments."""

    async def handle(_request: web.Request) -> web.StreamResponse:
        return _json(await ask())

    return handle


def _taking(
    kind: type[T], what: str, take: Callable[[T, int], Awaitable[object]], status: int = 200
) -> Handler:
    """Return the handler of a request with a body, which `take` gets with the client's user."""

    async def handle(request: web.Request) -> web.StreamResponse:
        answer = await take(parse(await request.read(), kind, what), _asker(request))
        return web.Response(status=204) if answer is None else _json(answer, status)

    return handle


def _removing(remove: Callable[[str, int], Awaitable[None]]) -> Handler:
    """Return the handler of a removal; `remove` gets what the path names, and the client's user."""

    async def handle(request: web.Request) -> web.StreamResponse:
        await remove(request.match_info["which"], _asker(request))
        return web.Response(status=204)

    return handle


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except CedosError as error:
        return _error(str(error), type(error).__name__, _STATUS.get(type(error), 503))
    except web.HTTPRequestEntityTooLarge:
        return _error(f"a request may have {MAX_BODY_BYTES} bytes at most", "ConfigError", 413)
    except web.HTTPException as error:
        message = f"{request.method} {request.path}: {error.reason}"
        return _error(message, "NotFoundError", error.status)
    except web.RequestPayloadError:
        return _error("the request's body is no valid HTTP", "ConfigError", 400)
    except ConnectionError:  # in the middle of a request; the client does not read this
        return _error("the client has gone", "HostError", 400)
    except Exception:
        _log.exception("control request failed", path=request.path)
        return _error("the daemon failed at this; its log says why", "CedosError", 500)


def _asker(request: web.Request) -> int:
    """Return the user of the client, from the kernel."""
    asking = request.transport.get_extra_info("socket") if request.transport else None
    if asking is None:
        raise HostError("the client has gone")
    _, uid, _ = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)


def _json(message: object, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(message), status=status, content_type="application/json"
    )


def _error(message: str, kind: str, status: int) -> web.Response:
    return _json(ErrorMessage(error=message, kind=kind), status)


def _listening_socket(path: Path) -> socket.socket:
    """Return a socket bound to `path`. The socket of a dead daemon is replaced."""
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        _remove_stale(path)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(str(path))
            # No client can connect before `listen`, so the mode is set in time.
            own_file.change_mode(path, MODE)
        except BaseException:
            listening.close()
            raise
    except PermissionError as error:
        raise PrivilegeError(
            f"{path}: {error.strerror}; run as root, by the systemd unit,"
            " or with CEDOS_RUNTIME_DIR set to a folder of your own"
        ) from error
    except OSError as error:
        raise HostError(f"{path}: {error.strerror or error}") from error
    return listening


def _remove_stale(path: Path) -> None:
    if not path.exists():
        return
    if not path.is_socket():
        raise HostError(f"{path} is in the way: not a socket; remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
        except TimeoutError:
            raise AlreadyRunningError(f"a daemon holds {path} but is too busy to answer") from None
        else:
            raise AlreadyRunningError(f"a daemon answers on {path} already; see `cedos status`")
