"""The rates and round trips of the paths, for steering."""

from collections.abc import Iterable

from cedos.daemon.flows.living_flow import LivingFlow
from cedos.model import Context
from cedos.selector.decision.features import RATES


def measured_paths(
    context: Context, flows: Iterable[LivingFlow] = ()
) -> dict[str, tuple[float, float]]:
    """Return network -> (highest rate of late in bit/s, round trip in s), where both are known.

    The round trip is the longest of the least ones that living receiving flows have seen: what is
    far away needs more on its way than what answers the pings.
    """
    longest_s: dict[str, float] = {}
    for flow in flows:
        for path in flow.paths.values():
            sample = path.sample
            if path.network and sample and sample.rtt_min_s and sample.bytes_down:
                longest_s[path.network] = max(sample.rtt_min_s, longest_s.get(path.network, 0.0))
    found = {}
    for name, known in context.networks.items():
        rates = [known[key].value for key in RATES if key in known]
        if rates and "rtt_min_s" in known:
            rtt_s = max(known["rtt_min_s"].value, longest_s.get(name, 0.0))
            found[name] = (max(rates), rtt_s)
    return found
