"""Messages of others to a bus connection, over a private bus daemon."""

import asyncio
import os
from pathlib import Path

import pytest
from dbus_fast import Message, MessageType
from dbus_fast.aio import MessageBus

from cedos.host.monitor.bus import BusError, SystemBus

_BUS = "org.freedesktop.DBus"


def signal(destination, signature, body, files=()):
    """A signal that properties have changed."""
    return Message(
        message_type=MessageType.SIGNAL,
        destination=destination,
        path="/x",
        interface=f"{_BUS}.Properties",
        member="PropertiesChanged",
        signature=signature,
        body=[body],
        unix_fds=list(files),
    )


async def test_what_a_stranger_sends_is_not_parsed_and_what_services_send_is(address):
    """30 MB of numbers took the daemon's loop for five seconds, and more memory than its unit has."""
    service, stranger = [
        await MessageBus(address, negotiate_unix_fd=True).connect() for _ in range(2)
    ]
    bus, parsed, changed = SystemBus(address), list[Message](), asyncio.Event()
    large = [0] * 500_000
    ours = os.dup(1)

    def answer(message):
        if message.member == "Small":
            return Message.new_method_return(message, "u", [7])
        return (
            Message.new_method_return(message, "ai", [large]) if message.member == "Large" else None
        )

    service.add_message_handler(answer)
    await service.request_name("org.x")
    try:
        await bus.watch("org.x", "/x", "org.x", changed.set)
        bus._bus.add_message_handler(parsed.append)
        name = bus._bus.unique_name
        before = len(list(Path("/proc/self/fd").iterdir()))
        stranger._sock.setblocking(True)  # the library's own sending fails when the bus is busy
        for _ in range(20):
            await stranger.send(signal(name, "ai", large))
            await stranger.send(signal(name, "s", "org.x"))
            await stranger.send(signal(name, "h", 0, (ours,)))
            await stranger.send(Message(name, "/x", "org.x", "Call", signature="ai", body=[large]))
        stranger._sock.setblocking(False)
        await stranger.call(Message(_BUS, "/org/freedesktop/DBus", _BUS, "GetId"))
        assert await bus.call("org.x", "/x", "org.x", "Small") == [7]
        assert {each.message_type for each in parsed} == {MessageType.METHOD_RETURN}
        assert len(list(Path("/proc/self/fd").iterdir())) == before
        # A service that answers with too much has not answered, and what follows is read as before.
        with pytest.raises(BusError, match="no answer"):
            await bus.call("org.x", "/x", "org.x", "Large")
        assert await bus.call("org.x", "/x", "org.x", "Small") == [7]
        assert not changed.is_set()
        await service.send(signal(None, "s", "org.x"))
        await asyncio.wait_for(changed.wait(), 5)
    finally:
        os.close(ours)
        await bus.close()
        for each in (service, stranger):
            each.disconnect()
            await each.wait_for_disconnect()
