"""Bodies of HTTP as the origin meant them, out of what it packed them in. Pure."""

import zlib
from typing import Final

_GZIP: Final = 16 + zlib.MAX_WBITS
_PLAIN: Final = (b"", b"identity")
_DEFLATE: Final = 8


def unpacked(coding: bytes, body: bytes, longest: int) -> bytes | None:
    """By its `Content-Encoding`; None: it is another, not all of it, more than it, or too long.

    Of gzip one member is read, as servers send it.
    """
    coding = coding.lower()
    if coding in _PLAIN:
        return body if len(body) <= longest else None
    if coding in (b"gzip", b"x-gzip"):
        window = _GZIP
    elif coding == b"deflate":
        window = zlib.MAX_WBITS if _has_header(body) else -zlib.MAX_WBITS
    else:
        return None
    unpacking = zlib.decompressobj(wbits=window)
    try:
        found = unpacking.decompress(body, longest + 1)
    except zlib.error:
        return None
    whole = unpacking.eof and not unpacking.unused_data
    return found if whole and len(found) <= longest else None


def _has_header(body: bytes) -> bool:
    """Some servers send deflate without that of zlib (RFC 1950) around it, and players take both."""
    return (
        len(body) >= 2 and body[0] & 0x0F == _DEFLATE and int.from_bytes(body[:2], "big") % 31 == 0
    )
