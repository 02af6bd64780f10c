"""The BPF programs that redirect users' connections to the local proxy, as instructions. Pure.

The kernel runs them for each socket that connects, before anything is sent and before the socket has an
address of its own. They change its destination to the proxy. So the connection stays within the host,
and survives the loss of any network. (If its packets were redirected later, it would keep the network's
address and be lost with it.) If the program asks for its peer, it is told the destination that it asked
for.

How the proxy finds the destination of a connection: `connect_program` stores it by the socket's cookie
(`asked`); once the socket has its own port, `arrival_program` stores it by the two ports (`arrived`),
which the proxy knows of the connection that it accepts.

One socket sends datagrams to many destinations. So each destination (a *place*) gets a stand-in address
within this host, drawn at random, to which the datagram is sent instead; a table (`places`) has the
place of each address. Each user has a *share*: a table, which the address's last bits name, and a buffer
of the proxy. So one user's datagrams push out none of another's.

Addresses are those of IPv6, and IPv4's are ::ffff:a.b.c.d. Ports are in network order, in four bytes, as
the kernel has them.
"""

import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Final

from cedos.kernel.bpf import CONTEXT, EXIT, STACK, Assembly, Helper, Opcode
from cedos.model import Address

ADDRESS_BYTES: Final = 16
DIRECT_KEY_BYTES: Final = 4 + ADDRESS_BYTES
# Map value; the key is the socket's cookie. The destination (address, port), and the proxy's port to
# which the socket connects instead.
ASKED: Final = struct.Struct("=16sII")

# Map value; the key is the socket's own port and the proxy's port. The same fields, and the socket's
# cookie.
ARRIVED: Final = struct.Struct("=16sIIQ")

ARRIVED_KEY: Final = struct.Struct("=II")
# Map value; the key is an address of this host. A place (address, port), the sending user, and the
# socket's cookie.
PLACE: Final = struct.Struct("=16sIIQ")

# The networks of stand-in addresses: a part of loopback, and for IPv6 one that a route makes local.
PLACES4: Final = IPv4Network("127.128.0.0/10")
PLACES6: Final = IPv6Network("fd63:6564:6f73:7564::/64")

NUMBER: Final = struct.Struct("=I")
COOKIE: Final = struct.Struct("=Q")
_MAPPED: Final = bytes(10) + b"\xff\xff"
_MAPPED_WORD: Final = int.from_bytes(_MAPPED[8:], sys.byteorder, signed=True)
_LOOPBACK4: Final = int.from_bytes(ip_address("127.0.0.1").packed, sys.byteorder)
_LOOPBACK6: Final = int.from_bytes(ip_address("::1").packed[12:], sys.byteorder)

# Offsets of the fields of struct bpf_sock_addr, struct bpf_sock and struct bpf_sock_ops.
_USER_IP4, _USER_IP6, _USER_PORT, _TYPE, _PROTOCOL, _SOCKET = 4, 8, 24, 32, 36, 64
_BOUND_INTERFACE, _SOURCE4, _SOURCE6, _SOURCE_PORT = 0, 24, 28, 44
_OPERATION, _LOCAL_PORT, _CONNECTING = 0, 68, 3
_STREAM, _DATAGRAM, _TCP, _UDP = 1, 2, 6, 17
_QUIC_PORT: Final = 443
NAMES_PORT: Final = 53

_REFUSED: Final = "refused"

# Offsets on a program's stack, which grows downwards. The key of a map lies above the value to store.
_COOKIE_AT: Final = -8
_KEY4_AT: Final = -16
_ASKED_AT: Final = _KEY4_AT - ASKED.size  # address, port, the proxy's port
_DIRECT_AT: Final = _ASKED_AT - DIRECT_KEY_BYTES - 4
_ARRIVED_AT: Final = -64
_ARRIVED_KEY_AT: Final = -24
# A place begins like the asked destination, and its other fields reuse the room of `_KEY4_AT`.
_PLACE_AT: Final = _ASKED_AT
_WHOSE_AT: Final = _PLACE_AT + ADDRESS_BYTES + 4
_PLACE_COOKIE_AT: Final = _WHOSE_AT + 4
_SHARE_AT: Final = _PLACE_AT - 4
_HERE_AT: Final = _PLACE_AT - ADDRESS_BYTES - 8
# There are so many shares at most. What belongs to no place goes to the buffer behind theirs.
STRANGERS: Final = 16
_NETWORK_HEADER: Final = 1  # BPF_HDR_START_NET
_DRAWS: Final = 4  # attempts to draw a free address: at most one of sixty is taken
_ONLY_NEW: Final = 1  # BPF_NOEXIST


@dataclass(frozen=True, slots=True)
class RedirectTables:
    """Open BPF maps, by file number."""

    users: int  # the shares of redirected users, by the user's number
    direct: int  # networks that are left alone
    asked: int  # destinations of connections, by the socket's cookie (`ASKED`)
    arrived: int  # the same by ports (`ARRIVED`)
    places: int  # tables of places, by share; in these by stand-in address (`PLACE`)
    shares: int  # their number, a power of two
    sent_to: int  # stand-in addresses, by their place with the socket's cookie and no user
    # Places that sent to a user's port before it sent to them; they are answered directly.
    heard: int


@dataclass(frozen=True, slots=True)
class Here:
    """The sockets that the programs look at: of one network namespace, without the proxy's own."""

    netns_cookie: int
    own_process: int


@dataclass(frozen=True, slots=True)
class LedDatagrams:
    """The proxy's port for datagrams of both families; `six` False: those by IPv6 are left alone."""

    port: int
    six: bool


@dataclass(frozen=True, slots=True)
class LedTo:
    """A port on each loopback address; None: IPv6 is left alone."""

    port4: int
    port6: int | None


def connect_program(
    version: int,
    here: Here,
    tables: RedirectTables,
    proxy: LedTo,
    names: LedTo,
    datagrams: LedDatagrams,
    *,
    closed: bool = False,
    sending: bool = False,
) -> bytes:
    """Return the program for sockets that connect, or (`sending`) send without having connected.

    It redirects TCP to the proxy, or to `names` if it is for a resolver, and datagrams to the stand-in
    addresses of their places. It refuses QUIC, so that browsers take TCP. What cannot be redirected is
    left alone, or with `closed` refused.
    """
    code = Assembly()
    otherwise = _REFUSED if closed else EXIT
    code.unless_here(here.netns_cookie)
    # Refuse a program that names the stand-in address of another socket: it would fill the buffer of that
    # one's user. (An IPv6 socket that is connected to an IPv4 address names its own.)
    code.unless(_USER_PORT, kernel_port(datagrams.port), "no_stand_in")
    _put_cookie(code)
    _put_destination(code, version)
    _look_up_place(code, tables, _ASKED_AT, "no_stand_in")
    _unless_own(code, _REFUSED)
    code.label("no_stand_in")
    _unless_chosen(code, here, tables)
    _put_destination(code, version)
    # DNS comes before the check for direct destinations: a resolver is nearly always nearby, but the
    # names that it is asked for are not.
    code.unless(_USER_PORT, kernel_port(NAMES_PORT), "no_question")
    code.unless(_PROTOCOL, _UDP, "question_by_tcp")
    _unless_bound_to_interface(code)
    if sending and version == 6:
        # To fe80::1%wlan0 or a group: the kernel has taken the interface already, and would send to it
        # whatever address is put here.
        code.put(Opcode.LOAD, 2, CONTEXT, _USER_IP6)
        code.put(Opcode.AND, 2, immediate=int.from_bytes(b"\xff\0\0\0", sys.byteorder))
        group = int.from_bytes(b"\xff\0\0\0", sys.byteorder)
        code.jump(Opcode.IF_EQUAL, otherwise, 2, immediate=group)
        code.put(Opcode.LOAD, 2, CONTEXT, _USER_IP6)
        code.put(Opcode.AND, 2, immediate=int.from_bytes(b"\xff\xc0\0\0", sys.byteorder))
        code.jump(
            Opcode.IF_EQUAL, otherwise, 2, immediate=int.from_bytes(b"\xfe\x80\0\0", sys.byteorder)
        )
    code.jump(Opcode.JUMP, "question")
    code.label("question_by_tcp")
    _unless_bound(code, version)
    _lead(code, version, tables.asked, names, "name_", otherwise)
    code.jump(Opcode.JUMP, EXIT)
    code.label("no_question")
    _unless_direct(code, tables)
    # A TCP socket: redirect it to the proxy.
    code.unless(_TYPE, _STREAM, "datagram")
    _unless_bound(code, version)
    code.unless(_PROTOCOL, _TCP)
    _lead(code, version, tables.asked, proxy, "", otherwise)
    code.jump(Opcode.JUMP, EXIT)
    code.label("datagram")
    code.unless(_TYPE, _DATAGRAM)
    code.unless(_PROTOCOL, _UDP)
    # A UDP socket. Those of calls are bound to an address of each network, and are redirected all the
    # same; those bound to an interface are left alone.
    _unless_bound_to_interface(code)
    code.unless(_USER_PORT, kernel_port(_QUIC_PORT), "no_quic")
    _unless_bound(code, version, "no_quic")
    code.jump(Opcode.JUMP, _REFUSED)
    code.label("no_quic")
    # Leave port 0 alone: the C library connects there to learn its own address.
    code.put(Opcode.LOAD, 2, CONTEXT, _USER_PORT)
    code.jump(Opcode.IF_EQUAL, EXIT, 2)
    code.label("question")
    _lead_datagram(code, version, tables, datagrams, otherwise)
    code.jump(Opcode.JUMP, EXIT)
    code.label(_REFUSED)  # return 0, which makes the kernel refuse
    code.put(Opcode.SET, 0, immediate=0)
    code.put(Opcode.RETURN)
    return code.code()


def peer_name_program(version: int, tables: RedirectTables, datagrams: LedDatagrams) -> bytes:
    """Return the program for sockets that are asked for their peer."""
    code = Assembly()
    _put_cookie(code)
    code.look_up(tables.asked, _COOKIE_AT, "no_connection")
    _show(code, version)
    code.jump(Opcode.JUMP, EXIT)
    code.label("no_connection")
    _show_place(code, version, tables, datagrams, EXIT)
    return code.code()


def sender_program(
    version: int,
    here: Here,
    tables: RedirectTables,
    datagrams: LedDatagrams,
    *,
    closed: bool = False,
) -> bytes:
    """Return the program for sockets that receive a datagram: it shows the place instead of the stand-in.

    It also notes hosts that send to a chosen user's socket first: the socket answers them directly. With
    `closed` it does not: a neighbour can send under the address of any host that is about to be called.
    """
    code = Assembly()
    _put_cookie(code)
    _show_place(code, version, tables, datagrams, EXIT if closed else "outside")
    if not closed:
        code.jump(Opcode.JUMP, EXIT)
        # From no stand-in address: if the host may be redirected, note that it has spoken first
        # (`heard`). A resolver is never asked directly.
        code.label("outside")
        code.unless_here(here.netns_cookie)
        code.put(Opcode.LOAD, 2, CONTEXT, _USER_PORT)
        code.jump(Opcode.IF_EQUAL, EXIT, 2, immediate=kernel_port(NAMES_PORT))
        _unless_chosen(code, here, tables)
        _put_destination(code, version)
        _unless_direct(code, tables)
        _put_own_port(code)
        _put_in(code, tables.heard, _PLACE_AT, _HERE_AT)
    return code.code()


def buffer_program(version: int, tables: RedirectTables) -> bytes:
    """Return the program that chooses the receiving socket of a datagram, by number: its share.

    A datagram to an address that stands for no place, from a neighbour say, goes to `STRANGERS`.
    """
    code = Assembly()
    if version == 4:
        for word, number in enumerate((0, 0, _MAPPED_WORD)):
            code.put(Opcode.STORE_NUMBER, STACK, offset=_HERE_AT + 4 * word, immediate=number)
    offset, size = (16, 4) if version == 4 else (24, 16)
    code.put(Opcode.COPY, 1, CONTEXT)
    code.put(Opcode.SET, 2, immediate=offset)
    code.set_stack(3, _HERE_AT + ADDRESS_BYTES - size)
    code.put(Opcode.SET, 4, immediate=size)
    code.put(Opcode.SET, 5, immediate=_NETWORK_HEADER)
    code.call(Helper.LOAD_FROM_HEADER)
    code.jump(Opcode.IF_NOT, EXIT, 0)
    _look_up_place(code, tables, _HERE_AT)
    code.put(Opcode.LOAD, 0, STACK, _SHARE_AT)
    code.put(Opcode.RETURN)
    return code.code(at_exit=STRANGERS)


def arrival_program(tables: RedirectTables) -> bytes:
    """Return the program for sockets that have got their own port, by which the proxy knows them."""
    code = Assembly()
    code.unless(_OPERATION, _CONNECTING)
    _put_cookie(code)
    # Copy the entry of `asked` (register 0 points to it) and the cookie into `arrived`.
    code.look_up(tables.asked, _COOKIE_AT)
    for word in range(0, ASKED.size, 4):
        code.put(Opcode.LOAD, 2, 0, word)
        code.put(Opcode.STORE, STACK, 2, _ARRIVED_AT + word)
    # The last word copied, still in register 2, is the proxy's port: the second half of the key.
    code.put(Opcode.STORE, STACK, 2, _ARRIVED_KEY_AT + 4)
    code.put(Opcode.LOAD_WIDE, 2, STACK, _COOKIE_AT)
    code.put(Opcode.STORE_WIDE, STACK, 2, _ARRIVED_AT + ASKED.size)
    code.put(Opcode.LOAD, 2, CONTEXT, _LOCAL_PORT)
    code.put(Opcode.STORE, STACK, 2, _ARRIVED_KEY_AT)
    _put_in(code, tables.arrived, _ARRIVED_KEY_AT, _ARRIVED_AT)
    return code.code()


def kernel_port(port: int) -> int:
    return int.from_bytes(struct.pack("!H", port) + bytes(2), sys.byteorder)


def port_of(kernel: int) -> int:
    (port,) = struct.unpack_from("!H", kernel.to_bytes(4, sys.byteorder))
    return int(port)


def address_bytes(address: Address) -> bytes:
    return address.packed if address.version == 6 else _MAPPED + address.packed


def address_of(packed: bytes) -> Address:
    return ip_address(packed[12:] if packed.startswith(_MAPPED) else packed)


def share_of(address: bytes, shares: int) -> int:
    """Return the share that a stand-in address lies in."""
    return address[-1] & (shares - 1)


def direct_key(network: IPv4Network | IPv6Network) -> bytes:
    """Return a network as the key of the table of direct destinations."""
    more = 8 * len(_MAPPED) if network.version == 4 else 0
    return struct.pack("=I", network.prefixlen + more) + address_bytes(network.network_address)


def _unless_chosen(code: Assembly, here: Here, tables: RedirectTables) -> None:
    """Go on only for sockets that are chosen and not the proxy's own."""
    code.call(Helper.CURRENT_PROCESS)
    code.put(Opcode.SHIFT_RIGHT, 0, immediate=32)
    code.jump(Opcode.IF_EQUAL, EXIT, 0, immediate=here.own_process)
    code.call(Helper.CURRENT_USER)
    code.put(Opcode.STORE, STACK, 0, _KEY4_AT)
    code.look_up(tables.users, _KEY4_AT)


def _unless_direct(code: Assembly, tables: RedirectTables) -> None:
    """Go on only for destinations that do not go direct."""
    code.put(Opcode.STORE_NUMBER, STACK, offset=_DIRECT_AT, immediate=8 * ADDRESS_BYTES)
    code.look_up(tables.direct, _DIRECT_AT, "far")
    code.jump(Opcode.JUMP, EXIT)
    code.label("far")


def _show_place(
    code: Assembly, version: int, tables: RedirectTables, datagrams: LedDatagrams, otherwise: str
) -> None:
    """Replace a stand-in address in the context by its place, if it was made for this socket."""
    code.unless(_USER_PORT, kernel_port(datagrams.port), otherwise)
    _put_destination(code, version)
    _look_up_place(code, tables, _ASKED_AT, otherwise)
    _unless_own(code, otherwise)
    _show(code, version)


def _look_up_place(
    code: Assembly, tables: RedirectTables, address_at: int, otherwise: str = EXIT
) -> None:
    """Load the address of a place into register 0, and put its share onto the stack."""
    code.put(Opcode.LOAD_BYTE, 2, STACK, address_at + ADDRESS_BYTES - 1)
    code.put(Opcode.AND, 2, immediate=tables.shares - 1)
    code.put(Opcode.STORE, STACK, 2, _SHARE_AT)
    code.look_up(tables.places, _SHARE_AT, otherwise)
    code.look_up_within(address_at, otherwise)


def _unless_own(code: Assembly, otherwise: str) -> None:
    """Go on only if the place to which register 0 points is that of the cookie on the stack."""
    code.put(Opcode.LOAD_WIDE, 2, 0, PLACE.size - 8)
    code.put(Opcode.LOAD_WIDE, 3, STACK, _COOKIE_AT)
    code.jump(Opcode.IF_NOT_REGISTER, otherwise, 2, 3)


def _put_own_port(code: Assembly) -> None:
    """Complete the key of `heard` on the stack: a place, the socket's own port, and its user.

    Of another user's socket with that port the host would see this host's address.
    """
    code.call(Helper.CURRENT_USER)
    code.put(Opcode.STORE, STACK, 0, _PLACE_COOKIE_AT)
    code.put(Opcode.STORE_NUMBER, STACK, offset=_PLACE_COOKIE_AT + 4, immediate=0)
    code.put(Opcode.LOAD_WIDE, 3, CONTEXT, _SOCKET)
    code.put(Opcode.LOAD, 2, 3, _SOURCE_PORT)
    code.put(Opcode.STORE, STACK, 2, _WHOSE_AT)


def _lead_datagram(
    code: Assembly, version: int, tables: RedirectTables, datagrams: LedDatagrams, otherwise: str
) -> None:
    """Send the datagram to the stand-in address that its place has, or gets now."""
    # 1. The place may have an address already: take it if that still stands for it.
    _put_cookie(code)
    code.put(Opcode.STORE_WIDE, STACK, 0, _PLACE_COOKIE_AT)
    code.put(Opcode.STORE_NUMBER, STACK, offset=_WHOSE_AT, immediate=0)
    code.look_up(tables.sent_to, _PLACE_AT, "new")
    for word in range(0, ADDRESS_BYTES, 4):
        code.put(Opcode.LOAD, 2, 0, word)
        code.put(Opcode.STORE, STACK, 2, _HERE_AT + word)
    _look_up_place(code, tables, _HERE_AT, "new")
    _unless_own(code, "new")
    for word in range(0, ADDRESS_BYTES + 4, 4):
        code.put(Opcode.LOAD, 2, 0, word)
        code.put(Opcode.LOAD, 3, STACK, _PLACE_AT + word)
        code.jump(Opcode.IF_NOT_REGISTER, "new", 2, 3)
    code.jump(Opcode.JUMP, "has_address")
    code.label("new")
    # 2. A host that has spoken first gets its datagrams directly.
    _put_own_port(code)
    code.look_up(tables.heard, _PLACE_AT, "not_heard")
    code.jump(Opcode.JUMP, EXIT)
    code.label("not_heard")
    # 3. Draw an address of the place's family and the user's share, and enter it into both tables.
    _put_cookie(code)
    code.put(Opcode.STORE_WIDE, STACK, 0, _PLACE_COOKIE_AT)
    code.call(Helper.CURRENT_USER)
    code.put(Opcode.STORE, STACK, 0, _WHOSE_AT)
    code.look_up(tables.users, _WHOSE_AT, otherwise)
    code.put(Opcode.LOAD, 2, 0)
    code.put(Opcode.STORE, STACK, 2, _SHARE_AT)
    if version == 6:
        _unless_mapped(code, STACK, _PLACE_AT, "place_ipv6")
    _put_in_places(code, tables, PLACES4, _DRAWS, otherwise)
    if version == 6:
        code.label("place_ipv6")
        _put_in_places(code, tables, PLACES6, 1 if datagrams.six else 0, otherwise)
    code.label("drawn")
    code.put(Opcode.STORE_NUMBER, STACK, offset=_WHOSE_AT, immediate=0)
    _put_in(code, tables.sent_to, _PLACE_AT, _HERE_AT)
    code.label("has_address")
    # 4. Write the address and the proxy's port into the context: the datagram is sent there.
    fields = {_USER_IP4: 12} if version == 4 else {_USER_IP6 + at: at for at in range(0, 16, 4)}
    for field, at in fields.items():
        code.put(Opcode.LOAD, 2, STACK, _HERE_AT + at)
        code.put(Opcode.STORE, CONTEXT, 2, field)
    code.put(Opcode.SET, 2, immediate=_as_signed(kernel_port(datagrams.port)))
    code.put(Opcode.STORE, CONTEXT, 2, _USER_PORT)


def _put_in_places(
    code: Assembly,
    tables: RedirectTables,
    within: IPv4Network | IPv6Network,
    draws: int,
    otherwise: str,
) -> None:
    """Give the place on the stack a free address and go on at `drawn`; if none, at `otherwise`."""
    for _ in range(draws):
        _draw(code, within, tables.shares)
        code.look_up(tables.places, _SHARE_AT, otherwise)
        code.put(Opcode.COPY, 1, 0)
        _put(code, _HERE_AT, _PLACE_AT, _ONLY_NEW)
        code.jump(Opcode.IF_EQUAL, "drawn", 0)
    code.jump(Opcode.JUMP, otherwise)


def _draw(code: Assembly, within: IPv4Network | IPv6Network, shares: int) -> None:
    """Put a random address of a network, within the share on the stack, onto the stack."""
    first, mask = address_bytes(within.network_address), within.hostmask.packed.rjust(16, b"\0")
    for word in range(0, ADDRESS_BYTES, 4):
        fixed, drawn = (
            int.from_bytes(each[word : word + 4], sys.byteorder) for each in (first, mask)
        )
        if drawn:
            code.call(Helper.RANDOM)
            code.put(Opcode.AND, 0, immediate=_as_signed(drawn))
            code.put(Opcode.OR, 0, immediate=_as_signed(fixed))
            code.put(Opcode.STORE, STACK, 0, _HERE_AT + word)
        else:
            code.put(
                Opcode.STORE_NUMBER, STACK, offset=_HERE_AT + word, immediate=_as_signed(fixed)
            )
    last = _HERE_AT + ADDRESS_BYTES - 1
    code.put(Opcode.LOAD_BYTE, 2, STACK, last)
    code.put(Opcode.AND, 2, immediate=256 - shares)
    code.put(Opcode.LOAD, 3, STACK, _SHARE_AT)
    code.put(Opcode.OR_REGISTER, 2, 3)
    code.put(Opcode.STORE_BYTE, STACK, 2, last)


def _show(code: Assembly, version: int) -> None:
    """Write the address and port to which register 0 points into the context."""
    if version == 4:
        code.put(Opcode.LOAD, 2, 0, 12)
        code.put(Opcode.STORE, CONTEXT, 2, _USER_IP4)
    else:
        for word in range(0, ADDRESS_BYTES, 4):
            code.put(Opcode.LOAD, 2, 0, word)
            code.put(Opcode.STORE, CONTEXT, 2, _USER_IP6 + word)
    code.put(Opcode.LOAD, 2, 0, ADDRESS_BYTES)
    code.put(Opcode.STORE, CONTEXT, 2, _USER_PORT)


def _put_cookie(code: Assembly) -> None:
    code.call_on_context(Helper.SOCKET_COOKIE)
    code.put(Opcode.STORE_WIDE, STACK, 0, _COOKIE_AT)


def _put_destination(code: Assembly, version: int) -> None:
    """Store the destination on the stack: address and port, and the address as a key of `direct`."""
    for word in range(0, ADDRESS_BYTES, 4):
        if version == 6 or word == ADDRESS_BYTES - 4:
            code.put(Opcode.LOAD, 2, CONTEXT, _USER_IP4 if version == 4 else _USER_IP6 + word)
        else:
            code.put(Opcode.SET, 2, immediate=_MAPPED_WORD if word == 8 else 0)
        code.put(Opcode.STORE, STACK, 2, _ASKED_AT + word)
        code.put(Opcode.STORE, STACK, 2, _DIRECT_AT + 4 + word)
    code.put(Opcode.LOAD, 2, CONTEXT, _USER_PORT)
    code.put(Opcode.STORE, STACK, 2, _ASKED_AT + ADDRESS_BYTES)


def _unless_bound_to_interface(code: Assembly) -> None:
    code.put(Opcode.LOAD_WIDE, 3, CONTEXT, _SOCKET)
    code.put(Opcode.LOAD, 2, 3, _BOUND_INTERFACE)
    code.jump(Opcode.IF_NOT, EXIT, 2)


def _unless_bound(code: Assembly, version: int, otherwise: str = EXIT) -> None:
    """Go on only if the program has bound the socket neither to an interface nor to an address.

    ::ffff:0.0.0.0 is none: the word of ffff does not count (no host's address has that alone).
    """
    code.put(Opcode.LOAD_WIDE, 3, CONTEXT, _SOCKET)
    words = (_SOURCE6, _SOURCE6 + 4, _SOURCE6 + 12) if version == 6 else (_SOURCE4,)
    for field in (_BOUND_INTERFACE, *words):
        code.put(Opcode.LOAD, 2, 3, field)
        code.jump(Opcode.IF_NOT, otherwise, 2)


def _unless_mapped(code: Assembly, base: int, at: int, otherwise: str) -> None:
    """Go on only for an IPv4 address (::ffff:a.b.c.d), to which an IPv6 socket may send, too."""
    for word, number in enumerate((0, 0, _MAPPED_WORD)):
        code.put(Opcode.LOAD, 2, base, at + 4 * word)
        # Comparisons are of 64 bits: a negative number would not be equal.
        code.set_wide(3, number & 0xFFFFFFFF)
        code.jump(Opcode.IF_NOT_REGISTER, otherwise, 2, 3)


def _lead(code: Assembly, version: int, table: int, to: LedTo, labels: str, otherwise: str) -> None:
    """Store the socket's destination in a table, and replace it; if that fails, go on at `otherwise`."""
    ipv6 = f"{labels}ipv6" if to.port6 is not None else otherwise
    if version == 4:
        _lead_to(code, table, to.port4, {_USER_IP4: _LOOPBACK4}, otherwise)
        return
    _unless_mapped(code, CONTEXT, _USER_IP6, ipv6)
    _lead_to(code, table, to.port4, {_USER_IP6 + 12: _LOOPBACK4}, otherwise)
    if to.port6 is None:
        return
    code.jump(Opcode.JUMP, EXIT)
    code.label(ipv6)
    words = dict.fromkeys(range(_USER_IP6, _USER_IP6 + 12, 4), 0)
    _lead_to(code, table, to.port6, words | {_USER_IP6 + 12: _LOOPBACK6}, otherwise)


def _lead_to(
    code: Assembly, table: int, port: int, words: Mapping[int, int], otherwise: str
) -> None:
    led = _as_signed(kernel_port(port))
    code.put(Opcode.STORE_NUMBER, STACK, offset=_ASKED_AT + ADDRESS_BYTES + 4, immediate=led)
    _put_cookie(code)
    _put_in(code, table, _COOKIE_AT, _ASKED_AT)
    code.jump(Opcode.IF_NOT, otherwise, 0)
    for field, number in {_USER_PORT: led, **words}.items():
        code.put(Opcode.SET, 2, immediate=_as_signed(number))
        code.put(Opcode.STORE, CONTEXT, 2, field)


def _put_in(code: Assembly, file: int, key_at: int, value_at: int) -> None:
    code.set_map(1, file)
    _put(code, key_at, value_at)


def _put(code: Assembly, key_at: int, value_at: int, how: int = 0) -> None:
    """Put a value into the map in register 1."""
    code.set_stack(2, key_at)
    code.set_stack(3, value_at)
    code.put(Opcode.SET, 4, immediate=how)
    code.call(Helper.MAP_UPDATE)


def _as_signed(number: int) -> int:
    """Return an unsigned number of 32 bits as the signed one of an instruction."""
    return number - (1 << 32) if number >= 1 << 31 else number
