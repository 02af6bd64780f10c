"""CBSP's evaluation again: `python -m emu.experiments.cbsp --out notebooks/results`."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

import click

from cedos.commands.console.render import echo
from emu import console
from emu.experiments.cbsp import cost, helpers, live
from emu.experiments.cbsp.video import SCHEDULERS, Setting, watch
from emu.runs import runs
from emu.statistics import trials_figure

PARTS: Final = ("helpers", "delta", "loss", "window", "rate", "idle", "cost", "live")
# The parts that are not simulated: computed, and measured on this machine, which takes five minutes.
_REAL: Final = ("cost", "live")
_LIVE_REPEATS: Final = 2
_SEEDS: Final = 4
_DELTAS_KBPS: Final = (0, 50, 100, 150, 200, 250, 300)
# Small and large differences between helpers. The paper does not say which it uses.
_FEW_KBPS: Final = (50, 250)

Cases = Mapping[str, Setting]


def cases(part: str) -> Cases:
    """Return the settings of a part, by name."""
    match part:
        case "delta":
            return {f"{delta}": Setting(delta_kbps=delta) for delta in _DELTAS_KBPS}
        case "loss":
            return {
                f"{delta}, {percent} %": Setting(delta_kbps=delta, loss=percent / 100)
                for delta in _FEW_KBPS
                for percent in (0, 1, 3, 5)
            }
        case "window":
            return {
                f"{delta}, {kilobytes} kB": Setting(delta_kbps=delta, window_bytes=1e3 * kilobytes)
                for delta in _FEW_KBPS
                for kilobytes in (8, 12, 32, 128, 500)
            }
        case "rate":
            return {
                f"{kbps}": Setting(delta_kbps=300, video_bps=1e3 * kbps)
                for kbps in (800, 1000, 1200, 1400, 1600)
            }
        case _:
            return {
                f"{ms}": Setting(delta_kbps=50, period_s=ms / 1000)
                for ms in (250, 300, 350, 380, 400)
            }


def watched(setting: Setting, scheduler: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Return the figures of a setting; of the first seed also what a picture shows of its course."""
    trials = [watch(setting, scheduler, seed) for seed in seeds]

    def of(key: str, values: Sequence[float], digits: int = 4) -> dict[str, Any]:
        return trials_figure(key, values, digits)

    return {
        **of("pci", [each.pci for each in trials]),
        **of("startup_s", [each.startup_s for each in trials]),
        **of("out_of_order_share", [each.out_of_order_share for each in trials]),
        **of("order_wait_s", [each.order_wait_s for each in trials]),
        **of("restarts", [sum(each.restarts) for each in trials], 2),
        **of("fastest_restarts", [each.restarts[0] for each in trials], 2),
        **of("busy_share", [sum(each.busy) / len(each.busy) for each in trials]),
    }


def course(setting: Setting, scheduler: str) -> dict[str, Any]:
    """Return what happened in the first 20 seconds: helpers in use, and congestion windows."""
    found = watch(setting, scheduler, 1)
    return {
        "busy": [round(each, 2) for each in found.busy[:200]],
        "windows": found.windows[:1000],
    }


def figures(part: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Return `{"cases": {CASE: {SCHEDULER: figures}}, "course": {SCHEDULER: ...}}` of a part."""
    settings = cases(part)
    with ProcessPoolExecutor(2) as pool:
        asked = {
            (name, scheduler): pool.submit(watched, setting, scheduler, seeds)
            for name, setting in settings.items()
            for scheduler in SCHEDULERS
        }
        found: dict[str, Any] = {
            "cases": {
                name: {each: asked[name, each].result() for each in SCHEDULERS} for name in settings
            }
        }
    drawn = {"delta": "50", "idle": "380"}.get(part)
    if drawn is not None:
        found["course"] = {each: course(settings[drawn], each) for each in SCHEDULERS}
    return found


@click.command()
@click.option("--out", required=True, type=click.Path(path_type=Path, file_okay=False))
@click.argument("parts", nargs=-1, type=click.Choice(PARTS))
def main(out: Path, parts: tuple[str, ...]) -> None:
    """Simulate or measure; writes `cbsp_PART.json` to a folder. PARTS: all without."""
    console.make_folder(out, "--out")
    drawn = range(1, _SEEDS + 1)
    for part in parts or PARTS:
        match part:
            case "helpers":
                found = helpers.figures(drawn)
            case "cost":
                found = cost.figures()
            case "live":
                found = live.figures(_LIVE_REPEATS)
            case _:
                found = figures(part, drawn)
        known = {"host": runs.describe(1), "simulated": part not in _REAL, "seeds": _SEEDS}
        text = json.dumps(known | found, indent=1, allow_nan=False)
        file = out / f"cbsp_{part}.json"
        console.write(file, text + "\n")
        echo(f"{part}: {file}")


if __name__ == "__main__":
    main()
