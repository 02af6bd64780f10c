"""`cedos explain --probes`: which networks are probed, which are not, and why."""

from collections.abc import Iterator, Sequence

from cedos.api.probing import ProbingMessage
from cedos.commands.console import render
from cedos.model import Direction

_RULES = {
    "value": "where the answer is expected to save more than it costs",
    "change": "when the passive indicators have changed enough (Delphi)",
    "fixed": "at a fixed rate",
}


def lines(probing: Sequence[ProbingMessage]) -> Iterator[str]:
    if not probing:
        yield "no network is up that could be probed"
        return
    yield f"Networks are probed {_RULES.get(probing[0].rule, probing[0].rule)}"
    for one in probing:
        way = "downwards" if one.direction is Direction.DOWN else "upwards"
        yield ""
        yield f"{one.network}, {way}: {'a probe is sent' if one.send else 'no probe is sent'} now"
        yield f"  Why: {one.why}"
        if one.gain_s is not None:
            yield f"  Expected to save {render.duration(one.gain_s)}"
        cost = "not to be had today" if one.cost_s is None else f"{render.worth(one.cost_s)} today"
        yield (
            f"  A probe takes {render.size(one.carried_bytes)} and {render.energy(one.energy_j)}:"
            f" {cost}"
        )
        if one.sent is None:
            yield "  None was sent yet"
        else:
            yield f"  The last one was sent {render.duration(one.sent.age_s)} ago: {one.sent.why}"
