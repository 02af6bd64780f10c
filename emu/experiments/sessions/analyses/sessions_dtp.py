"""DTP's Figures 9(a) and 9(c): throughput and energy of downloads across disruptions (see `dtp`)."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from emu.experiments.sessions import bundles, dtp
from emu.experiments.sessions.batches import in_batches
from emu.lab.data.folds import Progress
from emu.places.places import Places
from emu.statistics import student_ci95

_CELLULAR: Final = "tcp-cellular"


def run(
    places: Places,
    *,
    sizes_mb: Sequence[float] = (77, 154, 308),
    scale: float = 20.0,
    rate_mbps: float = 3.0,
    rtt_ms: float = 20.0,
    cellular_rtt_ms: float = 150.0,
    trials: int = 3,
    at_once: int = 12,
    progress: Progress = lambda share, what: None,
) -> dict[str, Any]:
    """Measures every protocol with every size.

    `places`: not needed; the setting is the paper's.
    `sizes_mb`: of the downloads before scaling.
    `scale`: times and sizes are divided by it.
    `rate_mbps`: of every access point.
    `cellular_rtt_ms`: over 3G, where the largest download is made by plain TCP without disruptions.
    `at_once`: so many downloads at the same time, each in namespaces of its own.

    Returns:
        `{"sizes": {MB: {"bound_s", "protocols": {NAME: {"seconds", "mbps", "mbps_ci95", "energy_j",
        ...}}}}}`; `tcp-cellular` is among the protocols of the largest size.
    """
    names = [name for name in dtp.PROTOCOLS if name != "bundles" or bundles.installed()]
    plans = {size: dtp.plan(size, scale, 1e6 * rate_mbps, rtt_ms / 1e3) for size in sizes_mb}
    largest = max(sizes_mb)
    beside = dtp.undisturbed(plans[largest], cellular_rtt_ms / 1e3)
    tasks = {}
    for trial in range(trials):
        tasks[largest, _CELLULAR, trial] = partial(dtp.measure, "tcp-restart", beside)
        for size in sorted(sizes_mb, reverse=True):
            for name in names:
                tasks[size, name, trial] = partial(dtp.measure, name, plans[size])
    found = in_batches(tasks, at_once, progress)
    sizes: dict[str, Any] = {}
    for size, plan in plans.items():
        protocols = {}
        for name in [*names, _CELLULAR] if size == largest else names:
            runs = [found[size, name, trial] for trial in range(trials)]
            rates = [
                8 * plan.size_bytes / 1e6 / each["seconds"] for each in runs if each["seconds"]
            ]
            mbps, mbps_ci95 = student_ci95(rates) if rates else (None, [None, None])
            energy_j, energy_j_ci95 = student_ci95([each["energy_j"] for each in runs])
            protocols[name] = {
                "seconds": [each["seconds"] and round(each["seconds"], 3) for each in runs],
                "mbps": mbps,
                "mbps_ci95": mbps_ci95,
                "energy_j": energy_j,
                "energy_j_ci95": energy_j_ci95,
                "runs": runs,
            }
        sizes[f"{size:g}"] = {
            "bytes": plan.size_bytes,
            "bound_s": round(plan.bound_s(), 3),
            "protocols": protocols,
        }
    return {
        "scale": scale,
        "rate_mbps": rate_mbps,
        "rtt_ms": rtt_ms,
        "phone": dtp.PHONE,
        "trials": trials,
        "contacts_s": [[round(t, 2) for t in each] for each in plans[sizes_mb[0]].contacts],
        "sizes": sizes,
    }
