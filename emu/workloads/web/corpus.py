"""A seeded corpus of sites whose pages weigh, and depend on themselves, as real ones do.

Published figures that the draws follow:

- Web Almanac 2024, "Page Weight" (HTTP Archive, desktop home pages, medians): 71 requests, 2,652 KB;
  18 images of 1,054 KB together, 24 scripts of 613 KB, fonts 131 KB, style sheets 78 KB, HTML 18 KB.
- Web Almanac 2019, "Page Weight": the 90th percentile has 179 requests and more than 6 MB.
- Delphi, Table 1 (home pages of 500 sites): 85 % of answers have a Content-Length, 6 % are chunked
  (median 100 KB, section 4), the rest has neither.

Our own assumptions: about 40 % of objects are on hosts shared by sites, the shape of the tree (HTML asks
for style sheets, scripts and pictures; style sheets for fonts and pictures; scripts for scripts,
pictures, data and beacons), and log-normal sizes within each kind.

Bodies have real references, and noise up to the wanted size. They are cheap for a browser to work on
(comments, pictures of one pixel), so that loading a page measures networks and not the processor.
"""

import base64
import dataclasses
import math
import random
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from emu.testbed.wiring import SERVER_ADDRESSES


@dataclass(frozen=True, slots=True)
class Object:
    """An answer of a web server."""

    host: str  # server name
    path: str  # on that host, from `/` on
    size_bytes: int  # of the body, exactly
    chunked: bool  # sent in chunks, without Content-Length (over HTTP/1.1), as dynamic answers are
    mime: str  # media type; "" for a beacon, which is answered by 204 and no body
    # Numbers in `Page.objects` of what a browser asks for because of this object.
    children: tuple[int, ...] = ()

    def url(self, *, tls: bool = False) -> str:
        return f"{'https' if tls else 'http'}://{self.host}{self.path}"


@dataclass(frozen=True, slots=True)
class Page:
    """A page; `objects[0]` is its document, from which all others can be reached."""

    objects: tuple[Object, ...]

    @property
    def document(self) -> Object:
        return self.objects[0]

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.objects)


@dataclass(frozen=True, slots=True)
class Site:
    """Pages of one owner; some of their objects are on hosts that other sites use too."""

    name: str
    pages: tuple[Page, ...]


@dataclass(frozen=True, slots=True)
class Corpus:
    sites: tuple[Site, ...]

    @property
    def pages(self) -> tuple[Page, ...]:
        return tuple(page for site in self.sites for page in site.pages)

    def objects(self) -> Iterator[Object]:
        for page in self.pages:
            yield from page.objects

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(sorted({each.host for each in self.objects()}))


HTML = "text/html"
CSS = "text/css"
SCRIPT = "text/javascript"
IMAGE = "image/png"
FONT = "font/woff2"
DATA = "application/json"
BEACON = ""

_COMMENTS = {HTML: ("<!--", "-->"), CSS: ("/*", "*/"), SCRIPT: ("/*", "*/"), DATA: ('["', '"]')}


def body(objects: Sequence[Object], number: int) -> bytes:
    """Return the body of `objects[number]`: exactly `size_bytes`, the same at every call.

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
    """Return the size below which an object has no room for its references."""
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


__all__ = ["Corpus", "Object", "Page", "Site", "addresses", "generate", "nginx_servers", "write"]

REQUESTS_MEDIAN = 71
_REQUESTS_SIGMA = math.log(179 / REQUESTS_MEDIAN) / 1.2816
_REQUESTS = (8, 400)
_LARGEST_BYTES = 4_000_000

# Share of a page's requests beside its document, median bytes, sigma of their logarithm.
_KINDS = {
    IMAGE: (0.26, 17_000, 1.55),
    SCRIPT: (0.34, 12_000, 1.23),
    CSS: (0.11, 5_000, 1.1),
    FONT: (0.05, 28_000, 0.55),
    DATA: (0.15, 3_000, 1.6),
    BEACON: (0.09, 0, 0.0),
}
_HTML = (18_000, 0.9)
_CHUNKED_SHARE_OF_DATA = 0.31
_CHUNKED = (100_000, 1.0)

_SHARED_HOSTS = tuple(f"shared{number}.example" for number in range(1, 25))
_SHARED = {IMAGE: 0.2, SCRIPT: 0.6, CSS: 0.2, FONT: 0.6, DATA: 0.4, BEACON: 1.0}
_OWN = {IMAGE: "images", SCRIPT: "static", CSS: "static", FONT: "static", DATA: "www"}
_SUFFIX = {HTML: "html", CSS: "css", SCRIPT: "js", IMAGE: "png", FONT: "woff2", DATA: "json"}


def generate(*, sites: int, pages: int = 1, seed: int = 1, first: int = 1) -> Corpus:
    """Draw sites `first` and following, of `pages` pages each.

    Each depends on the seed and its own number alone.
    """
    return Corpus(
        tuple(
            Site(f"site{number}", tuple(_page(number, page, seed) for page in range(pages)))
            for number in range(first, first + sites)
        )
    )


def write(corpus: Corpus, folder: Path) -> None:
    """Write every body into `folder/HOST/PATH`, readable by all users (nginx's worker is one)."""
    for page in corpus.pages:
        for number, each in enumerate(page.objects):
            if each.mime == BEACON:
                continue
            file = folder / each.host / each.path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(body(page.objects, number))
    for directory in (folder, *(each for each in folder.rglob("*") if each.is_dir())):
        directory.chmod(0o755)


def addresses(corpus: Corpus) -> dict[str, str]:
    """Return an address of the emulated server for each host, so that sites are different places."""
    return {
        host: SERVER_ADDRESSES[number % len(SERVER_ADDRESSES)]
        for number, host in enumerate(corpus.hosts)
    }


def nginx_servers(corpus: Corpus, folder: Path, *, tls: bool, http2: bool = False) -> str:
    """Return `server` blocks for nginx's `http` block that serve what `write` wrote into `folder`.

    `tls`: also on port 443, with the certificate of the enclosing block.
    """
    types = " ".join(f"{mime} {suffix};" for mime, suffix in _SUFFIX.items())
    listen = f"listen 443 ssl{' http2' if http2 else ''};" if tls else ""
    # Server-side includes send a body as it is, but in chunks: nginx no longer knows its length.
    return f"""
  server_names_hash_bucket_size 128;
  server_names_hash_max_size 4096;
  server {{
    listen 80;
    {listen}
    server_name {" ".join(corpus.hosts)};
    root {folder}/$host;
    types {{ {types} }}
    etag off;
    add_header Access-Control-Allow-Origin * always;
    add_header Timing-Allow-Origin * always;
    location /live/ {{ ssi on; ssi_types *; }}
    location /none/ {{ return 204; }}
  }}
"""


def _page(site: int, page: int, seed: int) -> Page:
    draw = random.Random(f"{seed}/{site}/{page}")
    count = round(draw.lognormvariate(math.log(REQUESTS_MEDIAN), _REQUESTS_SIGMA))
    count = min(max(count, _REQUESTS[0]), _REQUESTS[1])
    mimes = draw.choices(list(_KINDS), [share for share, _, _ in _KINDS.values()], k=count - 3)
    # Whatever else a page has, something must ask for what only style sheets and scripts ask for.
    mimes = sorted([CSS, SCRIPT, *mimes], key=list(_ORDER).index)
    objects = [
        Object(f"www.site{site}.example", f"/live/p{page}/0.html", _size(draw, *_HTML), True, HTML)
    ]
    asked: list[list[int]] = [[]]
    for number, mime in enumerate(mimes, 1):
        objects.append(_object(draw, site, page, number, mime))
        asked.append([])
        asked[_parent(draw, objects, mime)].append(number)
    objects = [
        dataclasses.replace(each, children=tuple(children))
        for each, children in zip(objects, asked, strict=True)
    ]
    return Page(
        tuple(
            each
            if each.mime == BEACON
            else dataclasses.replace(
                each, size_bytes=max(each.size_bytes, least_bytes(objects, number))
            )
            for number, each in enumerate(objects)
        )
    )


# Resources that request others come first.
_ORDER = (CSS, SCRIPT, IMAGE, FONT, DATA, BEACON)


def _object(draw: random.Random, site: int, page: int, number: int, mime: str) -> Object:
    shared = draw.random() < _SHARED[mime]
    # A few hosts are everywhere, many are rare.
    weights = [1 / rank for rank in range(1, len(_SHARED_HOSTS) + 1)]
    host = draw.choices(_SHARED_HOSTS, weights)[0] if shared else f"{_OWN[mime]}.site{site}.example"
    place = f"s{site}/p{page}/{number}"
    if mime == BEACON:
        return Object(host, f"/none/{place}", 0, False, mime)
    chunked = mime == DATA and draw.random() < _CHUNKED_SHARE_OF_DATA
    size_bytes = _size(draw, *(_CHUNKED if chunked else _KINDS[mime][1:]))
    path = f"/{'live/' if chunked else ''}{place}.{_SUFFIX[mime]}"
    return Object(host, path, size_bytes, chunked, mime)


def _parent(draw: random.Random, objects: list[Object], mime: str) -> int:
    kind = {
        CSS: HTML,
        SCRIPT: draw.choices((HTML, SCRIPT), (0.65, 0.35))[0],
        IMAGE: draw.choices((HTML, CSS, SCRIPT), (0.5, 0.15, 0.35))[0],
        FONT: CSS,
        DATA: SCRIPT,
        BEACON: SCRIPT,
    }[mime]
    able = [number for number, each in enumerate(objects[:-1]) if each.mime == kind]
    return draw.choice(able) if able else 0


def _size(draw: random.Random, median_bytes: float, sigma: float) -> int:
    return min(round(draw.lognormvariate(math.log(median_bytes), sigma)), _LARGEST_BYTES)
