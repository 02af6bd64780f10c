"""Visits to generated pages again and again, and what a connection carries in them.

Which page is next follows published habits: 58 % of visits are to a page that was visited before
(Tauscher and Greenberg, 1997), a popular page thus becoming more so; the others are to a new page of
any site. The browser's cache is our own assumption: 60 % of style sheets, scripts, pictures and fonts
stay in it once they were fetched, all else is fetched at each visit. A page is fetched by curl as a
browser does it: over HTTP up to six connections to a host, over TLS one to each host, HTTP/2. Bodies are
holes, since their content is nothing to a profiler.

`python -m emu.workloads.web.visits` prints the shipped prior of whole TLS and QUIC connections, which
`cedos.host.profiler.priors.WHOLE` is to hold. Beside the bodies come 0.8 KB of handshake and 160 bytes
for the head of each answer (measured by regression over 894 connections of curl 7.88 to nginx 1.22 with
HTTP/2 and a certificate of half a kilobyte), and 3 KB for a real chain of certificates, our assumption.
"""

import json
import random
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path

from cedos.errors import EmulationError
from cedos.host.profiler.sizes import Prior
from emu.testbed.netns import Namespace
from emu.workloads.web import corpus
from emu.workloads.web.corpus import CSS, FONT, IMAGE, SCRIPT, Corpus, Object, Page

_REVISITS = 0.58
_CACHED = 0.6
_STATIC = frozenset({CSS, SCRIPT, IMAGE, FONT})
_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Visit:
    """A page load: what is fetched, in this order, and whether the page was visited before."""

    objects: tuple[Object, ...]
    again: bool


@dataclass(frozen=True, slots=True)
class Fetched:
    """An answer as curl had it: bytes of the body, and its connection.

    The kernel gives the same local port to connections to different addresses, so that it takes both.
    """

    url: str
    status: int
    body_bytes: int
    remote_ip: str
    local_port: int


def plan(corpus: Corpus, count: int, seed: int = 1) -> Iterator[Visit]:
    """Return the next `count` visits, fewer where there are no new pages left."""
    draw = random.Random(seed)
    new = list(corpus.pages)
    draw.shuffle(new)
    visited: list[Page] = []
    cache: set[str] = set()
    for _ in range(count):
        again = bool(visited) and draw.random() < _REVISITS
        if not again and not new:
            return
        page = draw.choice(visited) if again else new.pop()
        visited.append(page)
        yield Visit(tuple(each for each in page.objects if each.url() not in cache), again)
        for each in page.objects:
            if each.mime in _STATIC and random.Random(each.url()).random() < _CACHED:
                cache.add(each.url())


def write_holes(corpus: Corpus, folder: Path) -> None:
    """Write as `corpus.write` does, with bodies of zeros that take no space."""
    for each in corpus.objects():
        file = folder / each.host / each.path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as hole:
            hole.truncate(each.size_bytes)


def load(
    client: Namespace, objects: Sequence[Object], addresses: Mapping[str, str], *, tls: bool
) -> list[Fetched]:
    """Fetch a page's objects and return what was had, in the order of their ends.

    EmulationError: curl could not.
    """
    port = 443 if tls else 80
    hosts = {each.host for each in objects}
    lines = [f'resolve = "{host}:{port}:{addresses[host]}"' for host in hosts]
    for each in objects:
        lines += [f'url = "{each.url(tls=tls)}"', 'output = "/dev/null"']
    curl = ["curl", "-sS", "-Z", "-k", "-K", "-", "-w", "%{json}\\n"]
    curl += ["--http2"] if tls else ["--http1.1", "--parallel-max", "30"]
    pipe = subprocess.PIPE
    done = client.popen(*curl, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    output, errors = done.communicate("\n".join(lines), timeout=_TIMEOUT_S)
    if done.returncode != 0:
        raise EmulationError(f"curl: {errors.strip() or done.returncode}")
    return [
        Fetched(
            facts["url_effective"],
            facts["response_code"],
            facts["size_download"],
            facts["remote_ip"],
            facts["local_port"],
        )
        for facts in map(json.loads, output.splitlines())
    ]


SEED = 1
_SITES, _PAGES, _VISITS = 60, 3, 300
_HANDSHAKE_BYTES, _CERTIFICATES_BYTES, _HEAD_BYTES = 800, 3_000, 160


def made() -> Prior:
    """Return the prior of what a connection with an unknown host carries to the client."""
    carried = []
    for visit in plan(corpus.generate(sites=_SITES, pages=_PAGES, seed=SEED), _VISITS, SEED):
        bodies: dict[str, list[int]] = defaultdict(list)
        for each in visit.objects:
            bodies[each.host].append(each.size_bytes + _HEAD_BYTES)
        carried += [
            _HANDSHAKE_BYTES + _CERTIFICATES_BYTES + sum(sizes) for sizes in bodies.values()
        ]
    return fitted(carried)


def fitted(sizes: list[int]) -> Prior:
    """Return the log-normal distribution with the sizes' median and 90 % interval, rounded."""
    ordered = sorted(sizes)
    low, middle, high = (ordered[round(q * (len(ordered) - 1))] for q in (0.05, 0.5, 0.95))
    return Prior(float(f"{middle:.2g}"), round((log(high) - log(low)) / (2 * 1.645), 1))


if __name__ == "__main__":
    print(made())
