"""The shipped prior of whole TLS and QUIC connections, made from generated pages by arithmetic.

`python -m emu.workloads.web.size_priors` prints what `cedos.profiler.priors.WHOLE` is to hold. A
page asks one connection for all that it needs of a host (`visits.plan` says what that is, with its
cache). Beside the bodies come 0.8 KB of handshake and 160 bytes for the head of each answer
(measured by regression over 894 connections of curl 7.88 to nginx 1.22 with HTTP/2 and a
certificate of half a kilobyte), and 3 KB for a real chain of certificates, which is our assumption.
There are no uploads in these pages.
"""

from collections import defaultdict
from math import log

from cedos.profiler.priors import Prior
from emu.workloads.web import corpus
from emu.workloads.web.visits import plan

SEED = 1
_SITES, _PAGES, _VISITS = 60, 3, 300
_HANDSHAKE_BYTES, _CERTIFICATES_BYTES, _HEAD_BYTES = 800, 3_000, 160


def made() -> Prior:
    """What a connection with an unknown host carries to the client."""
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
    """The log-normal distribution with the sizes' median and 90 % interval, rounded."""
    ordered = sorted(sizes)
    low, middle, high = (ordered[round(q * (len(ordered) - 1))] for q in (0.05, 0.5, 0.95))
    return Prior(float(f"{middle:.2g}"), round((log(high) - log(low)) / (2 * 1.645), 1))


if __name__ == "__main__":
    print(made())
