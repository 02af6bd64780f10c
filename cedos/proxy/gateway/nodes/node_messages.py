"""What one node says to another about a connection that it passes on: a question and an answer. Pure.

    <- version, challenge
    -> length, sealed: nonce, the client's address, its first message
    <- sealed: nonce, whether its session lives there, the client's id

Both are sealed by the key that all nodes of a gateway have, under names of which the challenge and the
nonce are part: who has not the key can neither ask nor answer, nor say again what was said once.
"""

from ipaddress import IPv6Address, ip_address
from typing import Final

from cedos.proxy.gateway.nodes.sealed_values import ADDED_BYTES, SealedValues
from cedos.session.protocol.crypto import HOST_ID_BYTES
from cedos.session.protocol.handshake.messages import GREETING_BYTES, HEADER_BYTES
from cedos.session.sockets.shared_flows import HeardFlow

NONCE_BYTES: Final = 16
GREETING: Final = b"\x01"
CHALLENGE_BYTES: Final = len(GREETING) + NONCE_BYTES
ANSWER_BYTES: Final = ADDED_BYTES + NONCE_BYTES + 1 + HOST_ID_BYTES
LENGTH_BYTES: Final = 2

_ADDRESS_BYTES: Final = 16
_HEAD_BYTES: Final = NONCE_BYTES + _ADDRESS_BYTES
_LEAST: Final = ADDED_BYTES + _HEAD_BYTES
_MOST: Final = _LEAST + HEADER_BYTES + GREETING_BYTES
_LIVES, _PROVED = 1, 2


def question(
    values: SealedValues, challenge: bytes, nonce: bytes, address: str, hello: bytes
) -> bytes:
    """`challenge`: as it came. ValueError: the address is none, or the message too long."""
    sealed = values.seal(
        values.name("question", challenge), nonce + packed_address(address) + hello
    )
    if len(sealed) > _MOST:
        raise ValueError(f"a first message of {len(hello)} bytes")
    return len(sealed).to_bytes(LENGTH_BYTES, "big") + sealed


def sealed_bytes(length: bytes) -> int:
    """Of the question that follows. ValueError: no node asks so."""
    found = int.from_bytes(length, "big")
    if not _LEAST < found <= _MOST:
        raise ValueError(f"a question of {found} bytes")
    return found


def asked(values: SealedValues, challenge: bytes, sealed: bytes) -> tuple[bytes, str, bytes]:
    """Nonce, the client's address, its first message. ValueError: no node of this gateway asks now."""
    plain = values.open(values.name("question", challenge), sealed)
    if len(plain) <= _HEAD_BYTES:
        raise ValueError("a question that is cut short")
    address = shown_address(plain[NONCE_BYTES:_HEAD_BYTES])
    return plain[:NONCE_BYTES], address, plain[_HEAD_BYTES:]


def answer(values: SealedValues, challenge: bytes, nonce: bytes, heard: HeardFlow) -> bytes:
    flags = _LIVES * heard.lives + _PROVED * heard.proved
    plain = nonce + bytes([flags]) + heard.host
    return values.seal(values.name("answer", challenge), plain)


def answered(values: SealedValues, challenge: bytes, nonce: bytes, sealed: bytes) -> HeardFlow:
    """ValueError: no node of this gateway answers so."""
    plain = values.open(values.name("answer", challenge), sealed)
    if plain[:NONCE_BYTES] != nonce or len(plain) != NONCE_BYTES + 1 + HOST_ID_BYTES:
        raise ValueError("it answers another question")
    flags = plain[NONCE_BYTES]
    return HeardFlow(bool(flags & _LIVES), bool(flags & _PROVED), plain[NONCE_BYTES + 1 :])


def packed_address(address: str) -> bytes:
    """IPv4 as mapped into IPv6; without a scope. ValueError: it is no address."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address):
        return found.packed
    return bytes(10) + b"\xff\xff" + found.packed


def shown_address(packed: bytes) -> str:
    found = IPv6Address(packed)
    return str(found.ipv4_mapped or found)
