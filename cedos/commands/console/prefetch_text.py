"""`cedos explain --prefetch`: what programs fetch ahead of time, what they do not, and why."""

from collections.abc import Iterator, Sequence

from cedos.api.prefetching import ItemMessage, ProgramMessage
from cedos.commands.console import render

_COUNTS = (
    ("waiting", "wait"),
    ("running", "under way"),
    ("ready", "fetched, not used yet"),
    ("consumed", "used"),
)


def lines(programs: Sequence[ProgramMessage]) -> Iterator[str]:
    if not programs:
        yield "no program prefetches now (programs can, with `cedos.prefetch`)"
    for number, each in enumerate(programs):
        if number:
            yield ""
        counts = ", ".join(
            f"{each.counts[state]} {words}" for state, words in _COUNTS if each.counts.get(state)
        )
        yield f"{render.plain(each.program)} (process {each.pid}): {counts or 'nothing is hinted'}"
        if each.items:
            header = ("ITEM", "LEFT", "LIKELY", "SAVES", "ENERGY", "METERED", "GAIN")
            rows = [(item, _row(item)) for item in each.items]
            table = render.table(header, [row for _, row in rows], indent="  ")
            yield table[0]
            for (item, _), line in zip(rows, table[1:], strict=True):
                yield line
                yield f"    {render.plain(item.why)}"


def _row(item: ItemMessage) -> tuple[str, ...]:
    return (
        render.plain(f"{item.title} [{item.cls}]" if item.cls else item.title),
        render.size(item.size_bytes),
        f"{item.likely:.0%}",
        render.duration(item.saves_s),
        render.energy(item.energy_j),
        render.size(item.metered_bytes),
        render.duration(item.gain_s),
    )
