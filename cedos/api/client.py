"""The client of the control socket. It imports little, because commands start with it."""

import grp
import http.client
import socket
import struct
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec

from cedos import errors
from cedos.api.budgets import BudgetMessage, UsageMessage
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
)
from cedos.api.programs import (
    ChoiceRequest,
    HintAccepted,
    PrefetchingAnswer,
)
from cedos.api.transfers import TransferInTable, TransferReport, TurnMessage
from cedos.controller.hint import HintRequest, PrefetchReport
from cedos.controller.rule import RuleRequest
from cedos.errors import CedosError, DaemonUnreachableError, NoDaemonError, PrivilegeError
from cedos.model import Budget, PhoneUse

MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
T = TypeVar("T")


class _ControlConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # With Python's time-out the kernel refuses if the queue is full. With SO_SNDTIMEO connect waits.
        wait = struct.pack("@ll", int(self.timeout or 0), int((self.timeout or 0) % 1 * 1e6))
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
        try:
            self.sock.connect(str(self._path))
        except BlockingIOError:
            raise TimeoutError from None
        self.sock.settimeout(self.timeout)


class ControlClient:
    """A client of the daemon behind the control socket at `path`, with one connection a request.

    Every method raises the CedosError that the daemon raised, DaemonUnreachableError if no daemon
    answers within `timeout_s` (NoDaemonError: none runs), and PrivilegeError if the socket may not be
    opened.
    """

    def __init__(self, path: Path, timeout_s: float = 5.0) -> None:
        self._path = path
        self._timeout_s = timeout_s

    def status(self) -> StatusMessage:
        return self._ask("GET", "/v1/status", StatusMessage)

    def networks(self) -> list[NetworkMessage]:
        return self._ask("GET", "/v1/networks", list[NetworkMessage])

    def flows(self) -> list[FlowMessage]:
        return self._ask("GET", "/v1/flows", list[FlowMessage])

    def explain(self, flow: str | None = None) -> DecisionMessage:
        """Return the latest decision about a flow, or of all; see `Backend.explain`."""
        query = f"?flow={quote(flow, safe='')}" if flow else ""
        return self._ask("GET", f"/v1/explain{query}", DecisionMessage)

    def choose(self, request: ChoiceRequest) -> DecisionMessage:
        return self._ask("POST", "/v1/choices", DecisionMessage, msgspec.json.encode(request))

    def hint(self, hint: HintRequest) -> HintAccepted:
        return self._ask("POST", "/v1/hints", HintAccepted, msgspec.json.encode(hint))

    def unhint(self, number: int) -> None:
        self._exchange("DELETE", f"/v1/hints/{number}", None)

    def phone(self) -> PhoneMessage:
        return self._ask("GET", "/v1/phone", PhoneMessage)

    def prefer(self, phone: PhoneUse | None) -> PhoneMessage:
        request = msgspec.json.encode(PhoneRequest(phone=phone))
        return self._ask("POST", "/v1/phone", PhoneMessage, request)

    def budgets(self) -> list[BudgetMessage]:
        return self._ask("GET", "/v1/budgets", list[BudgetMessage])

    def usage(self, since_unix_s: float) -> UsageMessage:
        """Return the usage since then (seconds since the epoch)."""
        return self._ask("GET", f"/v1/usage?since={since_unix_s}", UsageMessage)

    def rules(self) -> list[RuleMessage]:
        return self._ask("GET", "/v1/rules", list[RuleMessage])

    def changes(self) -> int:
        """Return a number: it is another one once rules, their addresses, networks or walls are."""
        return self._ask("GET", "/v1/changes", int)

    def add_rule(self, rule: RuleRequest) -> RuleMessage:
        return self._ask("POST", "/v1/rules", RuleMessage, msgspec.json.encode(rule))

    def remove_rule(self, number: int) -> None:
        self._exchange("DELETE", f"/v1/rules/{number}", None)

    def recording(self) -> RecordingMessage:
        return self._ask("GET", "/v1/recording", RecordingMessage)

    def record(self, request: RecordingRequest) -> RecordingMessage:
        body = msgspec.json.encode(request)
        return self._ask("POST", "/v1/recording", RecordingMessage, body)

    def set_budget(self, budget: Budget) -> BudgetMessage:
        return self._ask("POST", "/v1/budgets", BudgetMessage, msgspec.json.encode(budget))

    def remove_budget(self, name: str) -> None:
        self._exchange("DELETE", f"/v1/budgets/{quote(name, safe='')}", None)

    def prefetching(self, request: PrefetchReport) -> PrefetchingAnswer:
        return self._ask("POST", "/v1/prefetching", PrefetchingAnswer, msgspec.json.encode(request))

    def transfer(self, report: TransferReport) -> TurnMessage:
        """Report a transfer with a deadline.

        Return its turn at once, or once the turn has changed.
        """
        return self._ask("POST", "/v1/transfers", TurnMessage, msgspec.json.encode(report))

    def transfers(self) -> list[TransferInTable]:
        return self._ask("GET", "/v1/transfers", list[TransferInTable])

    def report_carried(self, report: CarriedReport) -> None:
        self._exchange("POST", "/v1/carried", msgspec.json.encode(report))

    def _ask(self, method: str, target: str, kind: type[T], body: bytes | None = None) -> T:
        return self._decode(self._exchange(method, target, body), kind)

    def _exchange(self, method: str, target: str, body: bytes | None) -> bytes:
        connection = _ControlConnection(self._path, self._timeout_s)
        try:
            connection.request(method, target, body)
            answer = connection.getresponse()
            content = answer.read(MAX_ANSWER_BYTES)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise self._unreachable("") from error
        except PermissionError as error:
            raise PrivilegeError(
                f"you may not open {self._path}; run as root{self._or_join()}"
            ) from error
        except TimeoutError as error:
            raise self._unreachable(f"no answer for {self._timeout_s:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(str(error) or type(error).__name__) from error
        finally:
            connection.close()
        if answer.status >= 400:
            raise self._refusal(answer.status, content)
        return content

    def _or_join(self) -> str:
        try:
            group = grp.getgrgid(self._path.stat().st_gid).gr_name
        except (OSError, KeyError):
            return ", or join the group it belongs to"
        return (
            f", or join its group (`sudo usermod -aG {group} $USER`; log in again)"
            if group != "root"
            else ""
        )

    def _refusal(self, status: int, content: bytes) -> CedosError:
        try:
            message = msgspec.json.decode(content, type=ErrorMessage)
        except (ValueError, RecursionError):
            return CedosError(f"{self._path}: the daemon refused this ({status})")
        kind = getattr(errors, message.kind, None)
        if isinstance(kind, type) and issubclass(kind, CedosError):
            return kind(message.error)
        return CedosError(message.error)

    def _decode(self, content: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(content, type=kind)
        except (ValueError, RecursionError) as error:
            raise CedosError(
                f"{self._path}: an answer of another version of cedos ({error}); restart the daemon"
            ) from error

    def _unreachable(self, why: str) -> DaemonUnreachableError:
        # Imported here, so that programs that only ask load little.
        from cedos.api.lock import running_pid  # noqa: PLC0415
        from cedos.config.directories import PID_FILE  # noqa: PLC0415

        reason = f" ({why})" if why else ""
        if (pid := running_pid(self._path.with_name(PID_FILE))) is not None:
            return DaemonUnreachableError(
                f"the daemon (process {pid}) does not answer{reason}: it is starting, ending or stuck"
            )
        kind = DaemonUnreachableError if why else NoDaemonError
        return kind(
            f"no daemon answers on {self._path}{reason}; start one with `cedos up`"
            " or `systemctl start cedos`"
        )
