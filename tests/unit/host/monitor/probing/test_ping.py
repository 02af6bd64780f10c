import socket

from hypothesis import given
from hypothesis import strategies as st

from cedos.host.monitor.probing import ping


def test_the_checksum_of_a_known_packet():
    # RFC 1071's example: the one's complement sum of these words is 0xddf2.
    assert ping.checksum(bytes.fromhex("0001f203f4f5f6f7")) == ~0xDDF2 & 0xFFFF


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF))
def test_echoes_and_replies(identifier, sequence):
    for version, kind in ((4, 0), (6, 129)):
        echo = ping.echo(version, identifier, sequence)
        assert ping.parse_reply(version, echo, with_header=False) is None
        reply = bytes((kind,)) + echo[1:]
        found = ping.parse_reply(version, reply, with_header=False)
        assert found == (identifier, sequence)
    assert ping.checksum(ping.echo(4, identifier, sequence)) == 0
    header = bytes((0x46,)) + bytes(23)  # an IP header with options
    reply = b"\0" + ping.echo(4, identifier, sequence)[1:]
    assert ping.parse_reply(4, header + reply, with_header=True) == (identifier, sequence)


class EndlessReplies:
    """A socket with a reply to another's echo at each call."""

    def __init__(self):
        self.calls = 0
        self._ends = socket.socketpair()

    def recvmsg(self, *_):
        self.calls += 1
        assert self.calls < 1_000
        return bytes(8), [], 0, ("192.0.2.1", 0)

    def bind(self, _): ...

    def getsockname(self):
        return "", 7

    def fileno(self):
        return self._ends[0].fileno()

    def close(self):
        for each in self._ends:
            each.close()


async def test_replies_without_end_leave_turns_to_other_tasks(monkeypatch):
    replies = EndlessReplies()
    monkeypatch.setattr(ping, "_open", lambda *_: (replies, False))
    opened = ping.PingSocket("lo", 4, lambda *_: None)
    opened._readable()
    assert replies.calls > 0
    opened.close()
