"""`cedos explain --probes`: which networks are probed, which are not, and why."""

from collections.abc import Iterator, Sequence

from cedos.api.probing import ProbingMessage
from cedos.commands.console import render
from cedos.model import Direction

_RULES = {
    "value": "when the answer should save more than it costs",
    "change": "when the passive indicators have changed enough (Delphi)",
    "fixed": "at a fixed rate",
}


def lines(probing: Sequence[ProbingMessage]) -> Iterator[str]:
    if not probing:
        yield "no usable network to probe"
        return
    yield f"Networks are probed {_RULES.get(probing[0].rule, probing[0].rule)}"
    for one in probing:
        way = "download" if one.direction is Direction.DOWN else "upload"
        yield ""
        yield f"{one.network}, {way}: {'a probe is due' if one.send else 'no probe'} now"
        yield f"  Why: {render.sentence(one.why)}"
        cost = (
            "a budget has none of that to spare"
            if one.cost_s is None
            else f"worth {render.worth(one.cost_s)} of waiting at the prices now"
        )
        yield (
            f"  It takes {render.size(one.carried_bytes)} and {render.energy(one.energy_j)}:"
            f" {cost}."
        )
        if one.sent is None:
            yield "  None was sent yet (pings are sent by a schedule of their own)."
        else:
            yield (
                f"  The last one was sent {render.ago(one.sent.age_s)}. The reason then:"
                f" {render.sentence(one.sent.why)}"
            )
