"""The system bus, against a private bus daemon where one is installed."""

import asyncio
import os
from ipaddress import ip_address
from pathlib import Path

import pytest
from dbus_fast import Message, MessageType, Variant
from dbus_fast.aio import MessageBus

from cedos.host.monitor.bus import BusError, SystemBus
from cedos.host.monitor.resolvers import HostResolvers

RESOLVED = "org.freedesktop.resolve1"
_BUS = "org.freedesktop.DBus"


def servers(index, *address):
    """Return the one DNS server of an interface, as resolved tells it."""
    return Variant("a(iiay)", [[index, 2, bytes(address)]])


async def test_resolved_over_a_real_bus(address, make_service, tmp_path):
    resolved = await make_service(RESOLVED)
    manager = ("/org/freedesktop/resolve1", f"{RESOLVED}.Manager")
    resolved.set(*manager, DNS=servers(2, 10, 0, 1, 1))
    bus = SystemBus(address, timeout_s=0.5)
    resolvers = HostResolvers(bus, tmp_path / "absent")
    changed = asyncio.Event()
    try:
        await resolvers.start(changed.set)
        assert (await resolvers.read()).by_index == {2: (ip_address("10.0.1.1"),)}
        assert not changed.is_set()
        resolved.set(*manager, DNS=servers(3, 10, 0, 2, 1))
        await asyncio.wait_for(changed.wait(), 5)
        assert (await resolvers.read()).by_index == {3: (ip_address("10.0.2.1"),)}
        resolved.silent = True
        assert (await resolvers.read()).by_index == {}
        with pytest.raises(BusError, match=r"ServiceUnknown|NameHasNoOwner"):
            await bus.call("org.absent", "/", "org.absent", "Do")
        for path in ("/no path", "none", ""):  # as another service told it
            with pytest.raises(BusError, match="invalid"):
                await bus.properties(RESOLVED, path, RESOLVED)
    finally:
        await resolvers.close()
        await bus.close()


async def test_a_bus_that_lets_nobody_in_is_a_problem_until_it_does(address, tmp_path, monkeypatch):
    """Debian's lets no user in that systemd has made up, and nobody was told what is not known then."""
    path = tmp_path / "refusing"
    refused = asyncio.Event()

    async def refuse(reader, writer):
        if not refused.is_set():
            writer.transport.abort()
            return
        there_reader, there = await asyncio.open_unix_connection(address.removeprefix("unix:path="))
        async with asyncio.TaskGroup() as both:
            both.create_task(pumped(reader, there))
            both.create_task(pumped(there_reader, writer))

    async def pumped(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    bus = SystemBus(f"unix:path={path}", retry_s=0.0)
    async with await asyncio.start_unix_server(refuse, path):
        for user, remedy in ((61184, True), (1000, False)):
            monkeypatch.setattr("os.geteuid", lambda user=user: user)
            with pytest.raises(BusError):
                await bus.call(_BUS, "/org/freedesktop/DBus", _BUS, "GetId")
            assert bus.problem is not None
            assert f"refuses this program, which runs as user {user}" in bus.problem
            assert ("useradd" in bus.problem) == remedy
        refused.set()
        assert await bus.call(_BUS, "/org/freedesktop/DBus", _BUS, "GetId")
        assert bus.problem is None
        await bus.close()


async def test_an_absent_bus_is_left_in_peace_and_found_when_it_comes(address, tmp_path):
    path = tmp_path / "later"
    bus = SystemBus(f"unix:path={path}", retry_s=0.2)
    for _ in range(2):
        with pytest.raises(BusError, match="no system bus"):
            await bus.properties(_BUS, "/org/freedesktop/DBus", _BUS)
    path.symlink_to(tmp_path / "bus")
    with pytest.raises(BusError, match="no system bus"):
        await bus.properties(_BUS, "/org/freedesktop/DBus", _BUS)
    await asyncio.sleep(0.25)
    try:
        found = await bus.properties(_BUS, "/org/freedesktop/DBus", _BUS)
        assert "Features" in found
    finally:
        await bus.close()


async def test_a_strangers_signals_are_not_a_services_and_their_files_are_closed(address):
    """A user without privileges had the test page of captive portals fetched five times a second."""
    service, stranger = [
        await MessageBus(address, negotiate_unix_fd=True).connect() for _ in range(2)
    ]
    await service.request_name("org.x")
    bus, changed, ours = SystemBus(address), asyncio.Event(), os.dup(1)

    async def tells(sender, destination=None):
        changed.clear()
        await sender.send(
            Message(
                message_type=MessageType.SIGNAL,
                destination=destination,
                path="/x",
                interface=f"{_BUS}.Properties",
                member="PropertiesChanged",
                signature="sa{sv}ash",
                body=["org.x", {}, [], 0],
                unix_fds=[ours],
            )
        )
        # What has arrived before the answer to this has been heard by then.
        await sender.call(Message(_BUS, "/org/freedesktop/DBus", _BUS, "GetId"))
        await bus.call(_BUS, "/org/freedesktop/DBus", _BUS, "GetId")
        return changed.is_set()

    try:
        await bus.watch("org.x", "/x", "org.x", lambda _: changed.set())
        assert bus._bus is not None
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(5):
            assert await tells(service)
            assert not await tells(stranger)
            assert not await tells(stranger, bus._bus.unique_name)
        assert len(list(Path("/proc/self/fd").iterdir())) == before
    finally:
        os.close(ours)
        await bus.close()
        for each in (service, stranger):
            each.disconnect()
            await each.wait_for_disconnect()


async def test_who_never_answers_keeps_no_other_service_from_it(address, make_service):
    """After 128 calls that ModemManager left unanswered the bus passed on no call to any service."""
    hung, other = await make_service("org.hung"), await make_service("org.other")
    other.objects = {"/x": {"org.other": {"A": Variant("u", 1)}}}
    hung.silent = True
    bus, told = SystemBus(address, timeout_s=0.01), []
    before = len(list(Path("/proc/self/fd").iterdir()))
    try:
        for _ in range(200):
            with pytest.raises(BusError, match="no answer within"):
                await bus.properties("org.hung", "/x", "org.hung")
        bus._timeout_s = 2.0
        await bus.watch("org.other", "/x", "org.other", told.append)
        assert await bus.properties("org.other", "/x", "org.other") == {"A": 1}
        other.set("/x", "org.other", A=Variant("u", 2))
        await bus.properties("org.other", "/x", "org.other")
        assert told == ["/x"]
    finally:
        await bus.close()
    await asyncio.sleep(0.1)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


async def test_one_watch_hears_all_objects_below_a_path(address):
    """Add devices: each that NetworkManager ever had took one of 512 watches; then none was heard."""
    service, told = await MessageBus(address).connect(), []
    await service.request_name("org.x")
    bus = SystemBus(address)
    try:
        await bus.watch("org.x", "/x", "org.x", told.append)
        for path, interface in (
            *(("/x", "org.x"), ("/x/1", "org.x"), ("/xy", "org.x")),
            *(("/x/2", "org.y"), ("/x/2/3", "org.x")),
        ):
            message = signal(None, "s", interface)
            message.path = path
            await service.send(message)
        await service.call(Message(_BUS, "/org/freedesktop/DBus", _BUS, "GetId"))
        await bus.call(_BUS, "/org/freedesktop/DBus", _BUS, "GetId")
        assert told == ["/x", "/x/1", "/x/2/3"]
    finally:
        await bus.close()
        service.disconnect()
        await service.wait_for_disconnect()


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
        await bus.watch("org.x", "/x", "org.x", lambda _: changed.set())
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
