"""Messages of the control socket in JSON: ages instead of clock readings, addresses as text.

`None` means unknown. Times and sizes are in SI units.
"""

from math import isfinite
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from cedos.controller.rule import RuleRequest
from cedos.errors import ConfigError
from cedos.model import (
    CarriedConnection,
    Context,
    Decision,
    Direction,
    Evaluation,
    FlowKey,
    Indicator,
    Label,
    Network,
    NetworkKind,
    NetworkLife,
    PhoneUse,
    SizeEstimate,
    Strategy,
    Transfer,
    is_address,
)
from predictors.base import Calibration

FILE_NAME: Final = r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z"


class ControlMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the daemon. Receivers ignore fields that they do not know."""


class IndicatorMessage(ControlMessage, frozen=True, kw_only=True):
    value: float | None
    age_s: float
    active: bool = False
    synthetic: bool = False

    @classmethod
    def of(cls, indicator: Indicator, now_s: float) -> "IndicatorMessage":
        return cls(
            value=_finite(indicator.value),
            age_s=max(0.0, now_s - indicator.measured_at_s),
            active=indicator.active,
            synthetic=indicator.synthetic,
        )


Indicators = dict[str, IndicatorMessage]


class NetworkMessage(ControlMessage, frozen=True, kw_only=True):
    """A network and the daemon's knowledge of it.

    `barred` says why no connection is led to it (a hard budget is spent) and whether programs are
    kept off it; "": it is not barred. `lacks` says why it is down. `predicted` compares
    predictions with transfers over it; None: there were none. `life` is its state, and `why` the
    reason in words. Of a helper, `leads_to` is its gateway, `price_per_gb` the money for 10^9 bytes, and
    `carried_bytes` what went over helpers of this name since the daemon's start.
    """

    name: str
    interface: str
    kind: NetworkKind
    metered: bool
    up: bool
    lacks: str = ""
    ip_versions: list[int] = []
    addresses: list[str] = []
    gateways: list[str] = []
    resolvers: list[str] = []
    indicators: Indicators = {}
    access_point: str | None = None
    barred: str = ""
    predicted: Calibration | None = None
    life: NetworkLife = NetworkLife.UNKNOWN
    why: str = ""
    leads_to: str | None = None
    price_per_gb: float = 0.0
    carried_bytes: int = 0
    neighbour: str = ""  # the helper's name, where it is known

    @classmethod
    def of(
        cls,
        network: Network,
        context: Context | None,
        now_s: float,
        barred: str = "",
        predicted: Calibration | None = None,
        carried_bytes: int = 0,
        neighbour: str = "",
    ) -> "NetworkMessage":
        known = context.networks.get(network.name, {}) if context else {}
        attached = context.attachments.get(network.name) if context else None
        verdict = context.verdicts.get(network.name) if context else None
        return cls(
            name=network.name,
            interface=network.interface,
            kind=network.kind,
            metered=network.metered,
            up=network.up,
            lacks=network.lacks if network.carrier else "no carrier",
            ip_versions=[version for version in (4, 6) if network.carries(version)],
            addresses=[str(address) for address in network.addresses],
            gateways=[str(address) for address in network.gateways],
            resolvers=[str(address) for address in network.resolvers],
            indicators={name: IndicatorMessage.of(one, now_s) for name, one in known.items()},
            access_point=f"{attached.name} {attached.point}".strip() if attached else None,
            barred=barred,
            predicted=predicted,
            life=verdict.life if verdict is not None else NetworkLife.UNKNOWN,
            why=verdict.why if verdict is not None else "",
            leads_to=None if network.leads_to is None else str(network.leads_to),
            price_per_gb=network.money_per_mb * 1e3,
            carried_bytes=carried_bytes,
            neighbour=neighbour,
        )

    @property
    def egress(self) -> str:
        """Return the name of its paths in sessions, as `Network.egress`."""
        if self.leads_to is None:
            return self.interface
        return f"{self.interface}/{self.addresses[0].partition('/')[0]}"


class HostDefaultMessage(ControlMessage, frozen=True, kw_only=True):
    """The host's own default of an IP version.

    `interface` is empty where the host refuses everything; `what` says what leads there, in words.
    """

    interface: str
    what: str


class OtherDefaultMessage(ControlMessage, frozen=True, kw_only=True):
    """The way of connections of an IP version that the default network lacks.

    `network` None: they are refused. `why` in words; `tcp_alone`: its datagrams are refused, so that
    programs prefer the other version.
    """

    network: str | None
    why: str
    tcp_alone: bool = False


class DefaultMessage(ControlMessage, frozen=True, kw_only=True):
    """The network of new connections, with the reason. None: cedos leaves the choice to the host.

    By IP version ("4", "6"): `vpn` is the VPN that carries all connections, `host_defaults` what else the
    host's own default leads to. cedos leaves both alone. `others` has the versions that `network` lacks.
    """

    network: str | None
    reason: str
    age_s: float | None = None
    decision: int | None = None
    vpn: dict[str, str] = {}
    host_defaults: dict[str, HostDefaultMessage] = {}
    others: dict[str, OtherDefaultMessage] = {}


class SubflowMessage(ControlMessage, frozen=True, kw_only=True):
    flow: str
    network: str | None
    backup: bool = False
    rtt_s: float | None = None
    delivery_rate_bps: float | None = None


class FlowMessage(ControlMessage, frozen=True, kw_only=True):
    """A living flow; `token` identifies an MPTCP connection, None for other flows.

    `flow` is the 4-tuple of the first path as `flow_text` formats it.
    """

    flow: str
    strategy: Strategy | None
    subflows: list[SubflowMessage]
    token: int | None = None
    server_name: str | None = None
    age_s: float | None = None
    bytes_down: int | None = None
    bytes_up: int | None = None
    size: SizeEstimate | None = None
    decision: int | None = None


MOST_TOLD: Final = 256


# The longest text of a problem in a report.
MOST_PROBLEM: Final = 300


_Text = Annotated[str, Meta(min_length=1, max_length=253)]


class CarriedReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A proxy's report of the connections that it carries through its gateway, once a second.

    The daemon itself sees one session only.
    """

    # The proxy's number, new with each start.
    program: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    gateway: _Text  # its name, as it was joined
    # Addresses of the gateway to which the session is connected now.
    addresses: Annotated[tuple[_Text, ...], Meta(max_length=16)] = ()
    # Those that changed or ended, and others while there is room.
    connections: Annotated[tuple[CarriedConnection, ...], Meta(max_length=MOST_TOLD)] = ()
    # Why the gateway lets this client in no more, in words; empty: it does.
    problem: Annotated[str, Meta(max_length=MOST_PROBLEM)] = ""


class PhoneMessage(ControlMessage, frozen=True, kw_only=True):
    """The use of metered networks; `source`: `configuration` or `command`."""

    phone: PhoneUse
    source: str = "command"


class PhoneRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A wish for the use of metered networks; None: as the configuration says."""

    phone: PhoneUse | None


class StatusMessage(ControlMessage, frozen=True, kw_only=True):
    """The summary for `cedos status`.

    `problems` has a sentence for each problem, `budget_problems` and `rule_problems` those about
    these. `flows` and `carried` (connections through a gateway) have the largest; `other_flows` and
    `other_carried` count the others. `closed` has sentences about stuck connections that the daemon
    closed lately.
    `reasons` has the reasons of the decisions that the flows and connections follow, by number.
    """

    version: str
    pid: int
    uptime_s: float
    dry_run: bool
    objective: str
    networks: list[NetworkMessage]
    default: DefaultMessage
    flows: list[FlowMessage]
    problems: list[str]
    other_flows: int = 0
    budget_problems: list[str] = []
    rule_problems: list[str] = []
    decisions: int = 0
    config_file: str | None = None
    carried: list[CarriedConnection] = []
    other_carried: int = 0
    closed: list[str] = []
    reasons: dict[int, str] = {}


class TransferMessage(ControlMessage, frozen=True, kw_only=True):
    size: SizeEstimate
    direction: Direction
    label: Label
    deadline_s: float | None
    flow: str | None
    server_name: str | None

    @classmethod
    def of(cls, transfer: Transfer) -> "TransferMessage":
        return cls(
            size=transfer.size,
            direction=transfer.direction,
            label=transfer.label,
            deadline_s=transfer.deadline_s,
            flow=flow_text(transfer.flow) if transfer.flow else None,
            server_name=transfer.server_name,
        )


class EvaluationMessage(ControlMessage, frozen=True, kw_only=True):
    """The expected cost of a strategy; None: it is unbounded."""

    strategy: Strategy
    time_s: float | None
    time_low_s: float | None
    time_high_s: float | None
    energy_j: float | None
    metered_bytes: float | None
    cost: float | None

    @classmethod
    def of(cls, evaluation: Evaluation) -> "EvaluationMessage":
        return cls(
            strategy=evaluation.strategy,
            time_s=_finite(evaluation.time_s),
            time_low_s=_finite(evaluation.time_low_s),
            time_high_s=_finite(evaluation.time_high_s),
            energy_j=_finite(evaluation.energy_j),
            metered_bytes=_finite(evaluation.metered_bytes),
            cost=_finite(evaluation.cost),
        )


class NowMessage(ControlMessage, frozen=True, kw_only=True):
    """The networks over which a living flow received data lately, and what is wrong with its networks."""

    networks: list[str]
    why: str = ""


class DecisionMessage(ControlMessage, frozen=True, kw_only=True):
    """A decision; `context` is by network and indicator, with ages at the time of the decision.

    `direct`: whether the connection goes around the gateway, if a proxy asked. `gateway`: the
    decision is about all data that this gateway carries, and explains one connection of them.
    `now`: where a living flow is that was asked about; `began`: its first decision, if that was
    another one.
    """

    number: int
    made_unix_s: float
    transfer: TransferMessage
    context: dict[str, Indicators]
    evaluations: list[EvaluationMessage]
    choice: Strategy
    objective: str
    reason: str
    direct: bool | None = None
    gateway: str | None = None
    now: NowMessage | None = None
    began: "DecisionMessage | None" = None

    @classmethod
    def of(
        cls, decision: Decision, *, direct: bool | None = None, gateway: str | None = None
    ) -> "DecisionMessage":
        at_s = decision.context.at_s
        return cls(
            number=decision.number,
            made_unix_s=decision.made_unix_s,
            transfer=TransferMessage.of(decision.transfer),
            context={
                network: {name: IndicatorMessage.of(one, at_s) for name, one in known.items()}
                for network, known in decision.context.networks.items()
            },
            evaluations=[EvaluationMessage.of(one) for one in decision.evaluations],
            choice=decision.choice,
            objective=decision.objective,
            reason=decision.reason,
            direct=direct,
            gateway=gateway,
        )


class ErrorMessage(ControlMessage, frozen=True, kw_only=True):
    """The reason for a refusal; `kind` is the name of a class in `cedos.errors`."""

    error: str
    kind: str


T = TypeVar("T")


def parse(body: bytes, kind: type[T], what: str) -> T:
    """Parse a request from JSON. ConfigError: it is not valid; the message has the field."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{what}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{what}: not valid JSON: {error}") from error


def _finite(value: float) -> float | None:
    """Return None for infinity and NaN, which JSON lacks."""
    return value if isfinite(value) else None


def flow_text(key: FlowKey) -> str:
    """Format a 4-tuple: `tcp 192.168.43.2:5000 > [2001:db8::1]:443`."""
    local = server_text(str(key.local), key.local_port)
    remote = server_text(str(key.remote), key.remote_port)
    return f"{key.protocol} {local} > {remote}"


def server_text(server: str, port: int) -> str:
    """Format one end: `example.org:443`, `[2001:db8::1]:443`."""
    return f"[{server}]:{port}" if ":" in server else f"{server}:{port}"


def server_matches(wanted: str, server: str, port: int) -> bool:
    """Return whether `wanted` is the address, the name or the end of it, with or without the port."""
    wanted, server = wanted.strip().lower(), server.lower()
    texts = server, server_text(server, port)
    if wanted in texts:
        return True
    return any(_names(wanted, text) for text in texts) and not is_address(server)


def _names(wanted: str, name: str) -> bool:
    return wanted == name or name.endswith(f".{wanted}")


def flow_matches(wanted: str, key: FlowKey, server_name: str | None = None) -> bool:
    """Return whether a person who wrote `wanted` means this flow.

    `wanted` may be a 4-tuple as `flow_text` formats it, with or without the protocol, one end of
    it, an address, a local port, or a server's name or its end (`example.org` for
    `www.example.org`).
    """
    wanted = wanted.strip().lower()
    text = flow_text(key).lower()
    local, _, remote = text.partition(" ")[2].partition(" > ")
    named = server_name is not None and _names(wanted, server_name.lower())
    return named or wanted in {
        text,
        f"{local} > {remote}",
        local,
        remote,
        str(key.local).lower(),
        str(key.remote).lower(),
        str(key.local_port),
    }


class RuleMessage(ControlMessage, frozen=True, kw_only=True):
    """A rule and its effect now."""

    number: int
    rule: RuleRequest
    network: str | None  # the network of such connections; None: they are refused
    why: str  # the reason as text
    # By IP version ("4", "6"), the VPN that carries these connections instead.
    vpn: dict[str, str] = {}
    # By IP version whose connections the host itself refuses.
    host_defaults: dict[str, str] = {}
    refused: dict[str, str] = {}  # by IP version, why its connections are refused


class RecordingRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A wish to begin an event log, or to end it."""

    on: bool  # begin; else: end
    # Its name in the daemon's folder of logs; None: the time.
    file: Annotated[str, Meta(pattern=FILE_NAME)] | None = None
    names: bool = False  # with the names of hosts as they are, which only root may wish


class RecordingMessage(ControlMessage, frozen=True, kw_only=True):
    """The event log that is being written, or was ended just now."""

    on: bool  # it is being written
    files: tuple[str, ...] = ()  # the oldest first; none: there is no log
    since_unix_s: float | None = None
    size_bytes: int = 0
    events: int = 0  # since it began; the oldest files may be gone
    names: bool = False  # it has the names of hosts as they are
    problem: str = ""  # why it is not written any more, in words
