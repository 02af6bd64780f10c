"""A private message bus, and services on it that a test plays."""

import shutil
import subprocess

import pytest
from dbus_fast import ErrorType, Message, MessageType
from dbus_fast.aio import MessageBus

CONFIGURATION = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>session</type><listen>unix:path={path}</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*"/><allow receive_sender="*"/><allow own="*"/>
</policy></busconfig>
"""


@pytest.fixture
def address(tmp_path):
    """The address of a bus daemon of this test's own."""
    if shutil.which("dbus-daemon") is None:
        pytest.skip("no dbus-daemon installed")
    (tmp_path / "bus.conf").write_text(CONFIGURATION.format(path=tmp_path / "bus"))
    command = ["dbus-daemon", f"--config-file={tmp_path}/bus.conf", "--nofork", "--print-address"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout.readline()
        yield f"unix:path={tmp_path}/bus"
        daemon.terminate()


class Service:
    """A service on the bus: objects with typed properties, and methods with canned results."""

    def __init__(self, bus):
        # Path -> interface -> property -> Variant.
        self.objects = {}
        # (path, member) -> (signature, body), or a function of the message's body that gives them.
        self.methods = {}
        self.silent = False  # it hangs: nothing is answered
        # Every call that came in: (path, member, body).
        self.calls = []
        self._bus = bus

    def answer(self, message):
        if message.message_type is not MessageType.METHOD_CALL or message.path is None:
            return None
        self.calls.append((message.path, message.member or "", list(message.body)))
        if self.silent:
            return True
        if message.member == "GetManagedObjects":
            return Message.new_method_return(message, "a{oa{sa{sv}}}", [self.objects])
        if message.member == "GetAll" and message.path in self.objects:
            found = self.objects[message.path].get(message.body[0], {})
            return Message.new_method_return(message, "a{sv}", [found])
        if message.member == "Get" and message.path in self.objects:
            found = self.objects[message.path].get(message.body[0], {})
            if message.body[1] in found:
                return Message.new_method_return(message, "v", [found[message.body[1]]])
        method = self.methods.get((message.path, message.member or ""))
        if method is None:
            return Message.new_error(message, ErrorType.UNKNOWN_OBJECT.value, "no such thing")
        signature, body = method(message.body) if callable(method) else method
        return Message.new_method_return(message, signature, body)

    def set(self, path, interface, **properties):
        """Changes properties, and tells so."""
        self.objects.setdefault(path, {}).setdefault(interface, {}).update(properties)
        self._bus.send(
            Message.new_signal(
                path,
                "org.freedesktop.DBus.Properties",
                "PropertiesChanged",
                "sa{sv}as",
                [interface, properties, []],
            )
        )


@pytest.fixture
async def make_service(address):
    """`await make_service("org.freedesktop.login1")` is such a service on the bus."""
    opened = []

    async def make(name):
        bus = await MessageBus(address).connect()
        opened.append(bus)
        service = Service(bus)
        bus.add_message_handler(service.answer)
        await bus.request_name(name)
        return service

    yield make
    for bus in opened:
        bus.disconnect()
        await bus.wait_for_disconnect()
