"""Generated sites: what a page is made of, and who asks for what."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Object:
    """One answer of a web server.

    Attributes:
        host: server name.
        path: on that host, from `/` on.
        size_bytes: of the body, exactly.
        chunked: sent in chunks, without Content-Length (over HTTP/1.1), as dynamic answers are.
        mime: media type; "" for a beacon, which is answered by 204 and no body.
        children: numbers in `Page.objects` of what a browser asks for because of this object.
    """

    host: str
    path: str
    size_bytes: int
    chunked: bool
    mime: str
    children: tuple[int, ...] = ()

    def url(self, *, tls: bool = False) -> str:
        return f"{'https' if tls else 'http'}://{self.host}{self.path}"


@dataclass(frozen=True, slots=True)
class Page:
    """One page; `objects[0]` is its document, from which all others can be reached."""

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
