"""An inbox whose messages are fetched ahead of time (dissertation, 3.3.2.1), by IMAP (RFC 9051).

The list of messages comes with their sizes, so that hints have them. Messages are fetched in parts, so
that one that was interrupted goes on where it ended, and without being marked as read: that is for the
program that shows them.
"""

import contextlib
import imaplib
import re
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from cedos.model import Urgency
from cedos.prefetch.bound import connected
from cedos.prefetch.turn import FetchError, NotThereError, Turn

if TYPE_CHECKING:
    from cedos.prefetch.prefetcher import Future, Prefetcher

T = TypeVar("T")
_PART_BYTES = 64 * 1024
_TIMEOUT_S = 30.0
_FAREWELL_S = 1.0
_FLAGS = re.compile(rb"FLAGS \(([^)]*)\)")
_UIDVALIDITY = "UIDVALIDITY"


@dataclass(frozen=True, slots=True)
class MailMessage:
    """One message of a mailbox; `uid` names it for ever, within one `validity` of the mailbox."""

    uid: int
    size_bytes: int
    validity: int
    seen: bool
    flagged: bool


@dataclass(frozen=True, slots=True)
class MailAccount:
    """Where an inbox is, and who may see it; `tls` None: not secured at all."""

    host: str
    user: str
    password: str
    port: int = 993
    mailbox: str = "INBOX"
    tls: ssl.SSLContext | None = None


class _ImapConnection(imaplib.IMAP4):
    def __init__(self, account: MailAccount, interface: str | None, background: bool) -> None:
        self._account = account
        self._interface = interface
        self._background = background
        super().__init__(account.host, account.port, timeout=_TIMEOUT_S)

    def _create_socket(self, timeout: float | None = None) -> socket.socket:
        plain = connected(
            self._account.host,
            self._account.port,
            self._interface,
            background=self._background,
            timeout_s=timeout or _TIMEOUT_S,
        )
        if self._account.tls is None:
            return plain
        try:
            return self._account.tls.wrap_socket(plain, server_hostname=self._account.host)
        except BaseException:
            plain.close()
            raise


class Inbox:
    """A mailbox; its methods block and may be called from any thread.

    A log-in is several round trips: connections are kept, one per network and use at a time.
    """

    def __init__(self, account: MailAccount) -> None:
        self._account = account
        self._lock = threading.Lock()
        self._idle: dict[tuple[str | None, bool], list[tuple[_ImapConnection, int]]] = {}

    def messages(self, limit: int | None = None) -> list[MailMessage]:
        """The messages, the newest first, at most `limit` of them. Errors: FetchError."""

        def ask(connection: _ImapConnection, validity: int) -> list[MailMessage]:
            _, answer = connection.uid("SEARCH", "ALL")
            uids = sorted((int(uid) for uid in (answer[0] or b"").split()), reverse=True)[:limit]
            if not uids:
                return []
            wanted = ",".join(map(str, uids))
            _, lines = connection.uid("FETCH", wanted, "(UID RFC822.SIZE FLAGS)")
            found = [_message(line, validity) for line in lines if isinstance(line, bytes)]
            known = {message.uid: message for message in found if message is not None}
            return [known[uid] for uid in uids if uid in known]

        return self._use(None, False, ask)

    def prefetch(
        self,
        prefetcher: "Prefetcher",
        *,
        limit: int | None = None,
        cls: Callable[[MailMessage], str] = lambda message: (
            "flagged" if message.flagged else "inbox"
        ),
        messages: list[MailMessage] | None = None,
    ) -> "dict[int, Future[bytes]]":
        """Hints the unread messages, the newest first.

        Args:
            prefetcher: that of the running loop (see `messages` for its thread).
            limit: at most so many.
            cls: the class of a message (`Prefetcher.prefetch`).
            messages: those of the mailbox where they are known already.

        Returns:
            the handles by UID; keep them, or the prefetches are cancelled.
        """
        known = self.messages() if messages is None else messages
        unread = [message for message in known if not message.seen][:limit]
        return {
            message.uid: prefetcher.prefetch(
                MessageFetcher(self, message), size=message.size_bytes, cls=cls(message)
            )
            for message in unread
        }

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, {}
        for kept in idle.values():
            for connection, _ in kept:
                _end(connection)

    def part(self, message: MailMessage, offset: int, turn: Turn) -> bytes:
        """The bytes of a message from `offset` on, at most 64 KB; empty: it ends there.

        Raises:
            NotThereError: it was deleted.
            FetchError: it did not come.
        """

        def ask(connection: _ImapConnection, validity: int) -> bytes:
            if validity != message.validity:
                raise NotThereError(f"message {message.uid}: the mailbox was made anew")
            with turn.woken_by(lambda: _interrupt(connection)):
                _, lines = connection.uid(
                    "FETCH", str(message.uid), f"(BODY.PEEK[]<{offset}.{_PART_BYTES}>)"
                )
            for line in lines:
                if isinstance(line, tuple):
                    return bytes(line[1])
            if offset and any(isinstance(line, bytes) and b"BODY[]" in line for line in lines):
                return b""  # what lies beyond the end is no literal
            # (Of a message that somebody deleted meanwhile a server may send nothing at all.)
            raise NotThereError(f"message {message.uid} is not there any more")

        background = turn.label.urgency is Urgency.BACKGROUND
        return self._use(turn.interface, background, ask)

    def _use(
        self, interface: str | None, background: bool, ask: Callable[[_ImapConnection, int], T]
    ) -> T:
        key = (interface, background)
        with self._lock:
            kept = self._idle.get(key)
            one = kept.pop() if kept else None
        if one is not None:
            # The server may have ended it meanwhile: that says nothing about the message.
            with contextlib.suppress(imaplib.IMAP4.abort, OSError, EOFError):
                return self._asked(key, one, ask)
        try:
            return self._asked(key, self._open(interface, background), ask)
        except (imaplib.IMAP4.error, OSError, EOFError) as error:
            raise FetchError(
                f"{self._account.user} at {self._account.host}: {error or type(error).__name__}"
            ) from error

    def _asked(
        self,
        key: tuple[str | None, bool],
        one: tuple[_ImapConnection, int],
        ask: Callable[[_ImapConnection, int], T],
    ) -> T:
        try:
            answer = ask(*one)
        except NotThereError:
            self._keep(key, one)
            raise
        except BaseException:
            _end(one[0], politely=False)
            raise
        self._keep(key, one)
        return answer

    def _keep(self, key: tuple[str | None, bool], one: tuple[_ImapConnection, int]) -> None:
        with self._lock:
            self._idle.setdefault(key, []).append(one)

    def _open(self, interface: str | None, background: bool) -> tuple[_ImapConnection, int]:
        connection = _ImapConnection(self._account, interface, background)
        try:
            connection.login(self._account.user, self._account.password)
            status, answer = connection.select(f'"{self._account.mailbox}"', readonly=True)
            if status != "OK":
                raise NotThereError(f"there is no mailbox {self._account.mailbox}: {answer[0]!r}")
            validity = connection.response(_UIDVALIDITY)[1]
            return connection, int(validity[0] or 0) if validity else 0
        except BaseException:
            _end(connection, politely=False)
            raise


class MessageFetcher:
    """Fetches one message, in parts; what it has is kept from one attempt to the next."""

    def __init__(self, inbox: Inbox, message: MailMessage) -> None:
        self._inbox = inbox
        self._message = message
        self._content = bytearray()

    @property
    def title(self) -> str:
        return f"message {self._message.uid}"

    def fetch(self, turn: Turn) -> bytes:
        """The whole message. Errors: those of `Inbox.part`."""
        content = self._content
        turn.received(len(content), self._message.size_bytes)
        while True:
            turn.turn_blocking()
            part = self._inbox.part(self._message, len(content), turn)
            if turn.stopped:
                turn.turn_blocking()
            content += part
            turn.received(len(content), self._message.size_bytes)
            if len(part) < _PART_BYTES:
                return bytes(content)


def _message(line: bytes, validity: int) -> MailMessage | None:
    r"""`3 (UID 7 RFC822.SIZE 1234 FLAGS (\Seen))`, in any order of its parts."""
    uid, size = (
        re.search(rb"\bUID (\d{1,10})\b", line),
        re.search(rb"\bRFC822\.SIZE (\d{1,15})\b", line),
    )
    if uid is None or size is None:
        return None
    found = _FLAGS.search(line)
    flags = found[1].lower().split() if found else []
    return MailMessage(
        int(uid[1]), int(size[1]), validity, b"\\seen" in flags, b"\\flagged" in flags
    )


def _interrupt(connection: _ImapConnection) -> None:
    """Makes a thread that reads from it fail at once; that thread closes it."""
    with contextlib.suppress(OSError):
        connection.socket().shutdown(socket.SHUT_RDWR)


def _end(connection: _ImapConnection, *, politely: bool = True) -> None:
    with contextlib.suppress(Exception):
        if politely:
            # A network that is gone does not answer a farewell.
            connection.socket().settimeout(_FAREWELL_S)
            connection.logout()
    with contextlib.suppress(Exception):
        connection.shutdown()
