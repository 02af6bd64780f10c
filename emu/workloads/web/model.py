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
        """Where it is."""
        return f"{'https' if tls else 'http'}://{self.host}{self.path}"


@dataclass(frozen=True, slots=True)
class Page:
    """One page; `objects[0]` is its document, from which all others can be reached."""

    objects: tuple[Object, ...]

    @property
    def document(self) -> Object:
        """The HTML that a browser is sent to."""
        return self.objects[0]

    @property
    def size_bytes(self) -> int:
        """All bodies together."""
        return sum(each.size_bytes for each in self.objects)


@dataclass(frozen=True, slots=True)
class Site:
    """Pages of one owner; some of their objects are on hosts that other sites use too."""

    name: str
    pages: tuple[Page, ...]


@dataclass(frozen=True, slots=True)
class Corpus:
    """Sites that are served together."""

    sites: tuple[Site, ...]

    @property
    def pages(self) -> tuple[Page, ...]:
        """All pages, site by site."""
        return tuple(page for site in self.sites for page in site.pages)

    def objects(self) -> Iterator[Object]:
        """All objects of all pages."""
        for page in self.pages:
            yield from page.objects

    @property
    def hosts(self) -> tuple[str, ...]:
        """All server names, sorted."""
        return tuple(sorted({each.host for each in self.objects()}))
