"""What the objects of generated pages contain: real references, and noise up to the wanted size.

Bodies are cheap for a browser to work on (comments, pictures of one pixel, beside their noise), so that
loading a page measures networks and not this machine's processor. Fonts are noise: they are fetched as
fonts are, and then refused.
"""

import base64
import random
import struct
import zlib
from collections.abc import Sequence

from emu.workloads.web.model import Object

HTML = "text/html"
CSS = "text/css"
SCRIPT = "text/javascript"
IMAGE = "image/png"
FONT = "font/woff2"
DATA = "application/json"
BEACON = ""

_COMMENTS = {HTML: ("<!--", "-->"), CSS: ("/*", "*/"), SCRIPT: ("/*", "*/"), DATA: ('["', '"]')}


def body(objects: Sequence[Object], number: int) -> bytes:
    """The body of `objects[number]`: exactly `size_bytes`, the same at every call.

    Raises:
        ValueError: the object is smaller than what it refers to needs (`least_bytes`).
    """
    wanted = objects[number]
    skeleton = _skeleton(objects, number)
    left = wanted.size_bytes - len(skeleton)
    if left < 0:
        raise ValueError(
            f"{wanted.host}{wanted.path}: {-left} bytes too small for what it asks for"
        )
    draw = random.Random(f"{wanted.host}{wanted.path}")
    if wanted.mime == IMAGE:
        return skeleton[:-12] + _png_chunk(b"noIs", draw.randbytes(left - 12)) + skeleton[-12:]
    if wanted.mime not in _COMMENTS:
        return skeleton + draw.randbytes(left)
    begin, end = _COMMENTS[wanted.mime]
    inside = left - len(begin) - len(end)
    if inside < 0:
        return skeleton + b" " * left
    noise = base64.b64encode(draw.randbytes(inside * 3 // 4 + 3))[:inside]
    return skeleton + begin.encode() + noise + end.encode()


def least_bytes(objects: Sequence[Object], number: int) -> int:
    """The size below which an object has no room for its references."""
    mime = objects[number].mime
    extra = {IMAGE: 12, DATA: 4}.get(mime, 0)
    return len(_skeleton(objects, number)) + extra


def _skeleton(objects: Sequence[Object], number: int) -> bytes:
    wanted = objects[number]
    if wanted.mime == HTML:
        return _html(objects, number).encode()
    if wanted.mime == CSS:
        return _css(objects, number).encode()
    if wanted.mime == SCRIPT:
        return _script(objects, number).encode()
    return _PIXEL if wanted.mime == IMAGE else b""


def _address(wanted: Object) -> str:
    return f"//{wanted.host}{wanted.path}"


def _html(objects: Sequence[Object], number: int) -> str:
    head = ["<!doctype html>", "<meta charset=utf-8>", "<title>page</title>"]
    head.append('<link rel=icon href="data:,">')
    body: list[str] = []
    for child in objects[number].children:
        wanted = objects[child]
        address = _address(wanted)
        if wanted.mime == CSS:
            head.append(f'<link rel=stylesheet href="{address}">')
        elif wanted.mime == SCRIPT:
            # As pages do: some are waited for, some come when they come.
            how = ("", " async", " defer")[child % 3]
            (body if how == "" else head).append(f'<script{how} src="{address}"></script>')
        elif wanted.mime == IMAGE:
            body.append(f'<img src="{address}" width=60 height=60 alt="">')
    for child, wanted in enumerate(objects):
        # Style sheets' fonts and backgrounds are fetched only where something uses them.
        if wanted.mime == FONT:
            body.append(f"<p class=f{child}>text</p>")
        elif wanted.mime == IMAGE:
            body.append(f"<i class=b{child}></i>")
    return "\n".join([*head, "<body>", *body, "</body>"])


def _css(objects: Sequence[Object], number: int) -> str:
    rules = []
    for child in objects[number].children:
        address = _address(objects[child])
        if objects[child].mime == FONT:
            rules.append(f'@font-face{{font-family:f{child};src:url("{address}")}}')
            rules.append(f".f{child}{{font-family:f{child},serif}}")
        else:
            rules.append(f'.b{child}{{display:block;background-image:url("{address}")}}')
    return "\n".join(rules)


def _script(objects: Sequence[Object], number: int) -> str:
    lines = []
    for child in objects[number].children:
        wanted = objects[child]
        address = _address(wanted)
        if wanted.mime == SCRIPT:
            lines.append(
                "document.head.appendChild(Object.assign(document.createElement('script'),"
                f"{{src:'{address}'}}));"
            )
        elif wanted.mime == IMAGE:
            lines.append(f"new Image().src='{address}';")
        elif wanted.mime == DATA:
            lines.append(f"fetch('{address}').then(r=>r.arrayBuffer()).catch(()=>0);")
        else:
            lines.append(f"fetch('{address}',{{mode:'no-cors'}}).catch(()=>0);")
    return "\n".join(lines)


def _png_chunk(kind: bytes, data: bytes) -> bytes:
    check = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)


_PIXEL = (
    b"\x89PNG\r\n\x1a\n"
    + _png_chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
    + _png_chunk(b"IDAT", zlib.compress(b"\x00\x80\x80\x80"))
    + _png_chunk(b"IEND", b"")
)
