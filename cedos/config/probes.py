"""`[probes]`: what is asked of networks, and whom."""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from cedos.config.section import Interval, Section

PROBE_PORT = 7007
"""The usual port of a probe server."""


def endpoint(value: str) -> tuple[IPv4Address | IPv6Address, int]:
    """The address and port of a probe server.

    The port may be missing. Errors: ValueError, it is neither `ADDRESS:PORT` nor `[ADDRESS]:PORT`.
    """
    match = re.fullmatch(r"(?:\[([^\]]+)\]|([^:]+))(?::(\d{1,5}))?", value)
    try:
        if match is None:
            raise ValueError(value)
        address, port = ip_address(match[1] or match[2]), int(match[3] or PROBE_PORT)
    except ValueError as error:
        raise ValueError(
            f'"{value}": "192.0.2.1:7007" or "[2001:db8::1]:7007" would be right'
        ) from error
    if not 0 < port < 65536:
        raise ValueError(f'"{value}": ports go from 1 to 65535')
    return address, port


def _target(
    value: str, name: str, family: type[IPv4Address] | type[IPv6Address], example: str
) -> None:
    if value == "gateway":
        return
    try:
        right = isinstance(ip_address(value), family)
    except ValueError:
        right = False
    if not right:
        version = "IPv4" if family is IPv4Address else "IPv6"
        raise ValueError(
            f'{name} must be an {version} address such as "{example}", or "gateway", not "{value}"'
        )


class ProbesConfig(Section, frozen=True, kw_only=True):
    """Active probes: pings and DNS questions; with a `server`, UDP trains and short transfers too."""

    enabled: bool = True
    target: str = "1.1.1.1"
    target_ipv6: str = "2606:4700:4700::1111"
    interval_s: Interval = 2.0
    idle_interval_s: Interval = 30.0
    asleep_interval_s: Interval = 300.0
    timeout_s: Annotated[float, Meta(ge=0.1, le=60)] = 2.0
    dns: bool = True
    dns_name: Annotated[
        str, Meta(pattern=r"^([A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{1,63}\.?$", max_length=253)
    ] = "example.com"
    portal_url: Annotated[str, Meta(max_length=2000)] = "http://network-test.debian.org/nm"
    portal_body: Annotated[str, Meta(max_length=1000)] = "NetworkManager is online"
    server: str = ""
    key_file: Path | None = None
    train_packets: Annotated[int, Meta(ge=2, le=200)] = 50
    train_packet_bytes: Annotated[int, Meta(ge=64, le=1452)] = 1200
    tcp: bool = False
    tcp_bytes: Annotated[int, Meta(ge=1_000, le=10_000_000)] = 100_000
    rule: Literal["value", "change", "fixed"] = "value"
    full_interval_s: Interval = 30.0
    threshold: Annotated[float, Meta(ge=0, le=100)] = 0.5
    seconds_per_joule: Annotated[float, Meta(ge=0, le=1000)] = 0.01
    seconds_per_mb: Annotated[float, Meta(ge=0, le=1000)] = 0.2

    def __post_init__(self) -> None:
        _target(self.target, "target", IPv4Address, "1.1.1.1")
        _target(self.target_ipv6, "target_ipv6", IPv6Address, "2606:4700:4700::1111")
        if self.server:
            endpoint(self.server)
            if self.key_file is None:
                raise ValueError(
                    "server needs key_file, the key that `cedos probe-server --new-key` made"
                )
        if self.portal_url and not self.portal_url.startswith("http://"):
            raise ValueError(
                'portal_url must be an http:// URL such as "http://network-test.debian.org/nm"'
                f' (nobody but a portal would answer https wrongly), or "", not "{self.portal_url}"'
            )
        if self.idle_interval_s < self.interval_s:
            raise ValueError(
                f"idle_interval_s ({self.idle_interval_s:g}) must not be shorter than"
                f" interval_s ({self.interval_s:g})"
            )
