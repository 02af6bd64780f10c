"""An inbox of a real Dovecot, fetched ahead of time in parts."""

import imaplib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cedos.prefetch.blocking import BlockingPrefetcher
from cedos.prefetch.imap import Inbox, MailAccount, MessageFetcher
from cedos.prefetch.turn import FetchError, NotThereError
from emu.testbed.programs.mail import PASSWORD, USER, MailServer

SERVER = "198.18.0.2"
SIZES = (900, 40_000, 65_536, 131_072, 300_001)
ACCOUNT = MailAccount(SERVER, USER, PASSWORD, port=143)


@pytest.fixture
def server(wires: Any) -> Iterator[MailServer]:
    with MailServer(wires.server, wires.directory / "mail", SERVER, SIZES) as server:
        yield server


@pytest.fixture
def inbox(wires: Any, server: MailServer) -> Iterator[Inbox]:
    with wires.client.entered():
        inbox = Inbox(ACCOUNT)
        yield inbox
        inbox.close()


@pytest.fixture
def prefetcher(wires: Any) -> Iterator[BlockingPrefetcher]:
    with wires.client.entered(), BlockingPrefetcher(wires, every_s=0.05) as mine:
        yield mine


def until(true: Callable[[], Any]) -> None:
    for _ in range(1000):
        if true():
            return
        time.sleep(0.01)
    pytest.fail("it did not happen")


def test_the_newest_messages_come_first_with_their_sizes(inbox: Inbox) -> None:
    found = inbox.messages()
    assert [message.uid for message in found] == [5, 4, 3, 2, 1]
    assert [message.size_bytes for message in found] == list(reversed(SIZES))
    assert not any(message.seen for message in found)
    assert [message.uid for message in inbox.messages(limit=2)] == [5, 4]


def test_an_inbox_is_there_before_it_is_read(
    inbox: Inbox, prefetcher: BlockingPrefetcher, server: MailServer, wires: Any
) -> None:
    wires.up["lte0"] = False
    handles = inbox.prefetch(prefetcher)
    assert list(handles) == [5, 4, 3, 2, 1]
    until(lambda: all(handle.ready for handle in handles.values()))
    for uid, handle in handles.items():
        assert handle.get() == server.text(uid)
    # Nobody has read anything yet.
    assert not any(message.seen for message in inbox.messages())
    assert wires.counted("wlan0") > sum(SIZES)
    assert wires.counted("lte0") < 5_000


def test_what_was_interrupted_goes_on_over_the_other_network(
    inbox: Inbox, prefetcher: BlockingPrefetcher, server: MailServer, wires: Any
) -> None:
    message = inbox.messages()[0]
    parts: list[tuple[str | None, int]] = []
    real = inbox.part

    def part(*arguments: Any) -> bytes:
        parts.append((arguments[2].interface, arguments[1]))
        if len(parts) == 3:
            wires.lose("wlan0")
        return real(*arguments)

    inbox.part = part
    future = prefetcher.prefetch(MessageFetcher(inbox, message), size=message.size_bytes)
    until(lambda: future.ready)
    assert future.get() == server.text(5)
    # The third part was asked for again; the two before it were not.
    assert [offset for _, offset in parts].count(0) == 1
    assert parts[2] == ("wlan0", 131_072)
    assert ("lte0", 131_072) in parts


def test_what_was_deleted_is_not_there(
    wires: Any, inbox: Inbox, prefetcher: BlockingPrefetcher, server: MailServer
) -> None:
    message = inbox.messages()[0]
    with imaplib.IMAP4(SERVER, 143) as other:
        other.login(USER, PASSWORD)
        other.select()
        other.uid("STORE", "5", "+FLAGS", r"(\Deleted)")
        other.expunge()
    with pytest.raises(NotThereError):
        prefetcher.prefetch(MessageFetcher(inbox, message)).get(timeout_s=10)


def test_a_connection_that_the_server_ended_is_opened_anew(
    inbox: Inbox, prefetcher: BlockingPrefetcher, server: MailServer, wires: Any
) -> None:
    message = inbox.messages()[4]
    server.close()
    with pytest.raises(FetchError):
        prefetcher.prefetch(MessageFetcher(inbox, message)).get(timeout_s=10)
    with server:
        future = prefetcher.prefetch(MessageFetcher(inbox, message))
        assert future.get(timeout_s=10) == server.text(1)


@pytest.mark.parametrize(
    ("account", "message"),
    [
        (MailAccount(SERVER, USER, "wrong", port=143), "uthentication"),
        (MailAccount(SERVER, USER, PASSWORD, port=144), "refused"),
        (MailAccount(SERVER, USER, PASSWORD, port=143, mailbox="none"), "none"),
    ],
)
def test_what_is_wrong_is_told(
    wires: Any, server: MailServer, account: MailAccount, message: str
) -> None:
    with wires.client.entered(), pytest.raises(FetchError, match=message):
        Inbox(account).messages()
