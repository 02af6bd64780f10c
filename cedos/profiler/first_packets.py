"""The packet filter: lets only packets through whose payload begins something with a size or a name.

These are HTTP/1.x requests and responses and TLS ClientHellos, over TCP on any port, over IPv4 and
IPv6. Bulk data is dropped in the kernel after one load and a dozen compares: of 10 MB over HTTP two
packets reach the daemon. Offsets count from the network header, as on a packet socket of type
SOCK_DGRAM, so the program does not depend on the kind of link.
"""

from cedos.profiler.bpf import PACKET_TYPE, PROTOCOL, VLAN_TAG_PRESENT, Assembler

SNAP_BYTES = 2048
"""How much of a packet is handed over: a head of HTTP with its cookies, a post-quantum ClientHello."""

BEGINNINGS = (
    b"HTTP",
    b"GET ",
    b"POST",
    b"PUT ",
    b"HEAD",
    b"PATC",
    b"DELE",
    b"OPTI",
    b"CONN",
)
"""The first four bytes of a response, and of a request by its method."""

_ETHERTYPE_IPV4, _ETHERTYPE_IPV6 = 0x0800, 0x86DD
_TCP = 6
_FOR_THIS_HOST, _OUTGOING = 0, 4
_IPV6_HEADER_BYTES = 40
# Hop-by-hop options (the kernel itself adds them to IPv6 packets over 64 KB), routing, destination.
_IPV6_EXTENSIONS = (0, 43, 60)
_IPV6_EXTENSIONS_FOLLOWED = 2


def program(snap_bytes: int = SNAP_BYTES) -> bytes:
    """The filter's bytecode, an array of `struct sock_filter`; at most `snap_bytes` get through."""
    code = Assembler()
    # Neither broadcast nor, on a promiscuous interface, what other hosts tell each other.
    code.load(PACKET_TYPE, 4)
    code.if_equal(_FOR_THIS_HOST, then="ours")
    code.if_equal(_OUTGOING, otherwise="drop")
    code.label("ours")
    # What carries a tag is seen again, without it, on the VLAN's own interface.
    code.load(VLAN_TAG_PRESENT, 4)
    code.if_equal(0, otherwise="drop")
    code.load(PROTOCOL, 4)
    code.if_equal(_ETHERTYPE_IPV4, then="ipv4")
    code.if_equal(_ETHERTYPE_IPV6, then="ipv6", otherwise="drop")
    code.label("ipv4")
    _find_tcp_in_ipv4(code)
    code.jump("tcp")
    code.label("ipv6")
    _find_tcp_in_ipv6(code)
    code.label("tcp")
    _accept_beginnings(code)
    code.label("accept")
    code.give(snap_bytes)
    code.label("drop")
    code.give(0)
    return code.assemble()


def _find_tcp_in_ipv4(code: Assembler) -> None:
    """Goes on with X at the TCP header, or drops."""
    code.load(9, 1)
    code.if_equal(_TCP, otherwise="drop")
    code.load(6, 2)
    code.if_any_bit(0x1FFF, then="drop")  # a later fragment has no TCP header
    code.load_x_header_length(0)


def _find_tcp_in_ipv6(code: Assembler) -> None:
    """Goes on with X at the TCP header, or drops."""
    code.load_x(_IPV6_HEADER_BYTES)
    code.load(6, 1)
    for depth in range(_IPV6_EXTENSIONS_FOLLOWED):
        code.if_equal(_TCP, then="tcp")
        extension = f"extension-{depth}"
        for number in _IPV6_EXTENSIONS[:-1]:
            code.if_equal(number, then=extension)
        code.if_equal(_IPV6_EXTENSIONS[-1], then=extension, otherwise="drop")
        code.label(extension)
        # Its first byte names what follows, its second its own length in units of 8 bytes after 8.
        code.load(0, 1, indexed=True)
        code.save(0)
        code.load(1, 1, indexed=True)
        code.add(1)
        code.shift_left(3)
        code.add_x()
        code.to_x()
        code.recall(0)
    code.if_equal(_TCP, otherwise="drop")


def _accept_beginnings(code: Assembler) -> None:
    """With X at the TCP header: accepts or drops by the first bytes of the payload."""
    code.load(12, 1, indexed=True)
    code.mask(0xF0)
    code.shift_right(2)
    code.add_x()
    code.to_x()
    code.load(0, 4, indexed=True)
    for beginning in BEGINNINGS:
        code.if_equal(int.from_bytes(beginning, "big"), then="accept")
    # TLS: a record of type handshake, version 3.0 to 3.7, with a ClientHello under 64 KB.
    code.mask(0xFFFFF800)
    code.if_equal(0x16030000, otherwise="drop")
    code.load(5, 2, indexed=True)
    code.if_equal(0x0100, otherwise="drop")
