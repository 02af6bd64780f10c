"""Whether networks are probed, and why, over the control socket."""

from cedos.api.messages import ControlMessage
from cedos.model import Direction


class SentProbeMessage(ControlMessage, frozen=True, kw_only=True):
    """The last probe that was sent: how long ago, and why."""

    age_s: float
    why: str


class ProbingMessage(ControlMessage, frozen=True, kw_only=True):
    """What the rule says of one network and direction now.

    Attributes:
        rule: `value`, `change` (Delphi's) or `fixed`.
        gain_s: seconds that an answer is expected to save; None: the rule does not weigh that.
        cost_s: what a probe is worth today; None: a budget that is spent forbids it.
        change: of the passive indicators since the last probe, in ranges; None: it is not looked at.
        threshold: the change that is enough; None: likewise.
        sent: the last one; None: there was none.
    """

    network: str
    direction: Direction
    rule: str
    send: bool
    why: str
    gain_s: float | None
    cost_s: float | None
    energy_j: float
    carried_bytes: float
    change: float | None
    threshold: float | None
    sent: SentProbeMessage | None
