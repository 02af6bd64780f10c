"""The page of one or several runs: figures with their intervals, and the timeline of each."""

import html
import json
import os
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt

from cedos.errors import DataSetError
from emu.console import written
from emu.lab.report import reliability, timeline
from emu.lab.report.table import caption, columns, disturbed, is_best
from emu.lab.runs import runs

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }
td small { color: #777; display: block; white-space: nowrap }
.best { font-weight: 600 }
.caution { background: #fff3cd; padding: .5rem 1rem; border-radius: .3rem }
img { max-width: 100% }
details { margin: 1rem 0 }
pre { overflow-x: auto; background: #f6f6f6; padding: 1rem }
"""


def write(directories: Sequence[Path], out: Path | None = None) -> Path:
    """Draws the page of the runs into `out`, by default `report.html` of the first folder.

    Each run's picture goes into its own folder as `timeline.png` (and `.svg`).

    Raises:
        DataSetError: a folder that is no finished run, or there is no room for a picture or the page.
    """
    page = out or directories[0] / "report.html"
    try:
        return _write(directories, page)
    except OSError as error:
        names = " ".join(map(str, directories))
        raise DataSetError(
            f"{page} is not drawn: {error.strerror or error}; then: cedos-emu report {names}"
            + (f" --out {out}" if out else "")
        ) from error


def _write(directories: Sequence[Path], page: Path) -> Path:
    sections = []
    for directory in directories:
        run = runs.read(directory)
        for repeat in range(run.scenario.repeats):
            figure = timeline.draw(run, repeat)
            suffix = f"-{repeat}" if repeat else ""
            figure.savefig(directory / f"timeline{suffix}.png", dpi=110)
            figure.savefig(directory / f"timeline{suffix}.svg")
            plt.close(figure)
        drawn = reliability.draw(run)
        if drawn is not None:
            drawn.savefig(directory / "reliability.png", dpi=110)
            drawn.savefig(directory / "reliability.svg")
            plt.close(drawn)
        sections.append(_section(run, page.parent))
    titles = " · ".join(runs.read(directory).title for directory in directories)
    written.write(
        page,
        "<!doctype html>\n<html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width'>"
        f"<title>{html.escape(titles)}</title><style>{_STYLE}</style>\n"
        + "\n".join(sections)
        + "\n</html>\n",
    )
    return page


def _section(run: runs.Recorded, beside: Path) -> str:
    scenario = run.scenario
    parts = [f"<h1>{html.escape(run.title)}</h1>"]
    if run.environment["synthetic"]:
        parts.append(
            "<p class=caution>The traces of this place are synthetic: generated, not measured.</p>"
        )
    parts.append(
        f"<p>{run.duration_s:g} s from second {scenario.start_s:g}, "
        f"{scenario.repeats} repetition{'s' * (scenario.repeats != 1)}. {html.escape(caption(run))}"
        " Bold: the best of its column; below: its 95 % interval.</p>"
    )
    parts.append(_table(run))
    parts += [f"<p class=caution>{html.escape(line)}</p>" for line in disturbed(run)]
    for repeat in range(scenario.repeats):
        picture = run.directory / f"timeline{f'-{repeat}' if repeat else ''}.svg"
        source = os.path.relpath(picture, beside)
        parts.append(f"<img src='{html.escape(source)}' alt='timeline of the run'>")
    if any(row["alone"] for row in run.predictions):
        source = os.path.relpath(run.directory / "reliability.svg", beside)
        parts.append(f"<img src='{html.escape(source)}' alt='expected against actual times'>")
    facts = html.escape(json.dumps(run.environment, indent=2))
    parts.append(f"<details><summary>environment</summary><pre>{facts}</pre></details>")
    return "\n".join(parts)


def _table(run: runs.Recorded) -> str:
    shown = columns(run)
    head = "".join(f"<th>{html.escape(heading)}</th>" for _, heading, _ in shown)
    rows = [f"<tr><th>policy</th>{head}</tr>"]
    for name, figures in run.summary["policies"].items():
        cells = []
        for key, _, form in shown:
            best = " class=best" if is_best(run, key, figures[key]) else ""
            interval = figures.get(f"{key}_ci95")
            small = (
                f"<small>{form.format(interval[0])} to {form.format(interval[1])}</small>"
                if interval
                else ""
            )
            cells.append(f"<td{best}>{form.format(figures[key])}{small}</td>")
        rows.append(f"<tr><td>{html.escape(name)}</td>{''.join(cells)}</tr>")
    return "<table>" + "\n".join(rows) + "</table>"
