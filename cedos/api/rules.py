"""Messages about a user's rules."""

import msgspec

from cedos.api.messages import ControlMessage
from cedos.controller.rule import RuleRequest


class RuleMessage(ControlMessage, frozen=True, kw_only=True):
    """A rule and its effect now.

    Attributes:
        network: the network of such connections; None: they are refused.
        why: the reason as text.
        vpn: by IP version ("4", "6"), the VPN that carries these connections instead.
        host_defaults: by IP version, the interface of the host's own default that does.
        refused: by IP version, why its connections are refused.
    """

    number: int
    rule: RuleRequest
    network: str | None
    why: str
    vpn: dict[str, str] = msgspec.field(default_factory=dict)
    host_defaults: dict[str, str] = msgspec.field(default_factory=dict)
    refused: dict[str, str] = msgspec.field(default_factory=dict)
