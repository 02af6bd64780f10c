"""Messages and open files between two processes of ours."""

import errno
import os
import socket
import threading

import pytest

from cedos.host.privileged.wire import PartChannel


@pytest.fixture
def ends():
    one, other = socket.socketpair()
    near, far = PartChannel(one), PartChannel(other)
    yield near, one, far
    near.close()
    far.close()


def test_large_messages_come_whole(ends):
    near, _, far = ends
    message = ["tracked", [[256, bytes(1000)]] * 3000]
    sending = threading.Thread(target=near.send, args=(message,))
    sending.start()
    assert far.receive() == (message, None)
    sending.join()


def test_an_open_file_comes_with_its_message(ends):
    near, _, far = ends
    reading, writing = os.pipe()
    near.send(["file", None], writing)
    os.close(writing)
    message, file = far.receive()
    assert message == ["file", None]
    assert file is not None
    os.write(file, b"x")
    os.close(file)
    assert os.read(reading, 2) == b"x"
    os.close(reading)


def test_the_other_ends_end(ends):
    near, _, far = ends
    near.close()
    with pytest.raises(EOFError):
        far.receive()
    with pytest.raises(EOFError):
        far.send("x" * 1000)


def test_a_length_that_cannot_be(ends):
    _, raw, far = ends
    raw.sendall(b"\xff\xff\xff\xff")
    with pytest.raises(ValueError, match="message of"):
        far.receive()


def test_a_message_that_the_other_end_would_not_take_is_not_begun(ends):
    """The rest of it was read as the answers to later questions."""
    near, _, far = ends
    with pytest.raises(OSError, match="an answer of") as raised:
        near.send(["done", bytes(1 << 26)])
    assert raised.value.errno == errno.EMSGSIZE
    near.send(["done", 1])
    assert far.receive() == (["done", 1], None)
