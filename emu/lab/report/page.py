"""The page of one or several runs: figures with their intervals, and the timeline of each."""

import base64
import html
import json
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from cedos.errors import DataSetError
from emu import policies
from emu.console import written
from emu.lab.report import comparison, reliability, timeline, verdict
from emu.lab.report.table import caption, columns, disturbed, is_best
from emu.lab.runs import runs

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 1rem auto; max-width: 72rem; padding: 0 1rem }
h1 { font-size: 1.4rem; line-height: 1.25 }
.wide { overflow-x: auto }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }
td small { color: #666; display: block; white-space: nowrap }
.best { font-weight: 600 }
.said { font-size: 1.1rem; max-width: 46rem }
.caution { background: #fff3cd; padding: .5rem 1rem; border-radius: .3rem }
img { max-width: 100%; height: auto }
.wide img { min-width: 44rem }
details { margin: 1rem 0 }
pre { overflow-x: auto; background: #f6f6f6; padding: 1rem }
"""
_TELEPHONE = "(max-width: 600px)"


def write(directories: Sequence[Path], out: Path | None = None) -> Path:
    """Draw the page of the runs into `out`, by default `report.html` of the first folder.

    The page holds its pictures. Each run's pictures also go into its own folder (`.png` and `.svg`).

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
        if comparison.has_pair(run):
            _save(comparison.draw(run), directory / "comparison")
            _save(comparison.draw(run, narrow=True), directory / "comparison-narrow")
        for repeat in range(run.scenario.repeats):
            _save(timeline.draw(run, repeat), directory / f"timeline{_suffix(repeat)}")
        if drawn := reliability.draw(run):
            _save(drawn, directory / "reliability")
        sections.append(_section(run))
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


def _suffix(repeat: int) -> str:
    return f"-{repeat}" if repeat else ""


def _save(figure: Figure, file: Path) -> None:
    figure.savefig(file.with_suffix(".png"), dpi=110)
    figure.savefig(file.with_suffix(".svg"))
    plt.close(figure)


def _section(run: runs.Recorded) -> str:
    scenario, directory = run.scenario, run.directory
    parts = [f"<h1>{html.escape(run.title)}</h1>"]
    if run.environment["synthetic"]:
        parts.append(
            "<p class=caution>The traces of this place are synthetic: generated, not measured.</p>"
        )
    if comparison.has_pair(run):
        narrow, wide = (directory / f"comparison{end}.svg" for end in ("-narrow", ""))
        parts.append(
            f"<picture><source media='{_TELEPHONE}' srcset='{_embedded(narrow)}'>"
            f"{_picture(wide, 'each transfer, Linux as it is and cedos with a gateway')}</picture>"
        )
    said = " ".join(verdict.sentences(run))
    if said:
        parts.append(f"<p class=said>{html.escape(said)}</p>")
    parts.append(f"<div class=wide>{_table(run)}</div>")
    parts.append(
        f"<p>{run.duration_s:g} s from second {scenario.start_s:g}, "
        f"{scenario.repeats} repetition{'s' * (scenario.repeats != 1)}. {html.escape(caption(run))}"
        " Bold: the best of its column; below: its 95 % interval.</p>"
    )
    parts += [f"<p class=caution>{html.escape(line)}</p>" for line in disturbed(run)]
    parts += [
        f"<div class=wide>{_picture(directory / f'timeline{_suffix(repeat)}.svg', 'timeline')}</div>"
        for repeat in range(scenario.repeats)
    ]
    if any(row["alone"] for row in run.predictions):
        parts.append(_picture(directory / "reliability.svg", "expected against actual times"))
    facts = html.escape(json.dumps(run.environment, indent=2))
    parts.append(f"<details><summary>environment</summary><pre>{facts}</pre></details>")
    return "\n".join(parts)


def _embedded(file: Path) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(file.read_bytes()).decode()


def _picture(file: Path, words: str) -> str:
    return f"<img src='{_embedded(file)}' alt='{words}'>"


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
        rows.append(f"<tr><td>{html.escape(policies.title(name))}</td>{''.join(cells)}</tr>")
    return "<table>" + "\n".join(rows) + "</table>"
