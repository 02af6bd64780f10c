"""Reads a feed, over whatever network there is; one that costs nothing if it can."""

from urllib.parse import urlsplit

from cedos.errors import WebError
from cedos.files.podcasts import feed
from cedos.files.podcasts.leading_networks import LeadingNetworks
from cedos.files.web_getting import read


async def read_feed(url: str, networks: LeadingNetworks, proxy: str | None) -> feed.Feed:
    """A feed as it is now.

    Raises:
        WebError: it did not come this time.
        TransferError: it is no feed, or not there.
    """
    interface = None
    if proxy is None:
        leading = await networks.to(urlsplit(url).hostname or "")
        first = min(leading, key=lambda each: each.metered, default=None)
        if first is None:
            raise WebError("no network leads to the server")
        interface = first.interface
    return feed.parse(await read(url, feed.MOST_BYTES, interface, proxy))
