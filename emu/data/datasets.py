"""Transfer data sets: what was known at an instant, and how long every strategy then took.

One row per place, start, size and direction, as Parquet or CSV; the columns are those of
`ORDER`. Other data sets can be read too: context columns may be missing, columns that
are not known are kept apart and reported, and what is wrong is named by file, row and column.
"""

import csv
import io
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from cedos.errors import DataSetError
from emu import console
from predictors.inputs import AGE_COLUMNS, CONTEXT_COLUMNS, NETWORKS, STRATEGIES

TEXTS = ("place", "group", "scenario", "direction")
TIMES = tuple(f"t_{name}_s" for name in STRATEGIES)
CENSORED = tuple(f"censored_{name}" for name in STRATEGIES)
# The rest of Delphi's Table 2, for studies of data. No predictor uses them.
OTHER_INDICATORS = tuple(
    f"{network}_{name}"
    for network in NETWORKS
    for name in (
        *("udp_max_bps", "udp_min_bps", "udp_mdev_bps"),
        *("udp_gap_mean_s", "udp_gap_p50_s", "udp_gap_p90_s"),
    )
)
# Whether the train had a result, which explains empty cells. It is no indicator.
ANSWERED = tuple(f"{network}_udp_answered" for network in NETWORKS)

# The columns in writing order.
ORDER = (
    *("place", "group", "scenario", "start_s", "size_bytes", "direction"),
    *(column for pair in zip(TIMES, CENSORED, strict=True) for column in pair),
    *CONTEXT_COLUMNS,
    *OTHER_INDICATORS,
    *ANSWERED,
)

_NUMBERS = frozenset(ORDER) - frozenset(TEXTS)
_POSITIVE = frozenset({"size_bytes", *TIMES} | {n for n in AGE_COLUMNS if "_age_" not in n})
_SHARES = frozenset(
    name for name in _NUMBERS if name.endswith(("_loss", "_available", "_chan_util"))
)
_NOTHING = frozenset({"", "nan", "none", "null", "na"})
_SHOWN = 3
# A few kB of Parquet may stand for any number of rows, or repeat any text in each of them.
MOST_ROWS = 500_000
MOST_COLUMNS = 1_000
LONGEST_TEXT = 200
_WORDS = {"true": 1.0, "false": 0.0}
_DIRECTIONS = {"down": 0.0, "up": 1.0}


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set in memory; every array has one entry per row."""

    source: str  # where it came from
    # `place`, `group` (the place where it was missing) and, if there, `scenario`.
    texts: Mapping[str, NDArray[np.str_]]
    # All other known columns as float64, NaN where empty; `direction_up` is 0 or 1.
    numbers: Mapping[str, NDArray[np.float64]]
    ignored: tuple[str, ...] = ()  # columns that are not known, by name

    def __len__(self) -> int:
        return len(self.texts["place"])

    @property
    def strategies(self) -> tuple[str, ...]:
        nothing = np.zeros(0)
        return tuple(
            name
            for name in STRATEGIES
            if np.isfinite(self.numbers.get(f"t_{name}_s", nothing)).any()
        )

    @property
    def times_s(self) -> dict[str, NDArray[np.float64]]:
        """Completion times by strategy; where censored, the limit."""
        return {name: self.numbers[f"t_{name}_s"] for name in self.strategies}

    @property
    def censored(self) -> dict[str, NDArray[np.bool_]]:
        nothing = np.zeros(len(self))
        return {
            name: self.numbers.get(f"censored_{name}", nothing) == 1.0 for name in self.strategies
        }

    @property
    def columns(self) -> dict[str, NDArray[np.float64]]:
        """Columns that predictors may look at: size, direction and context."""
        wanted = ("size_bytes", "direction_up", *CONTEXT_COLUMNS)
        return {name: self.numbers[name] for name in wanted if name in self.numbers}

    @property
    def indicators(self) -> dict[str, NDArray[np.float64]]:
        """Columns known at the instant, whether or not predictors look at them."""
        wanted = (*CONTEXT_COLUMNS, *OTHER_INDICATORS)
        return {name: self.numbers[name] for name in wanted if name in self.numbers}

    def without(self, columns: Collection[str]) -> "DataSet":
        """Return the same rows, as if these columns had been unknown."""
        kept = {name: column for name, column in self.numbers.items() if name not in columns}
        return DataSet(self.source, self.texts, kept, self.ignored)

    def take(self, rows: NDArray[Any]) -> "DataSet":
        return DataSet(
            self.source,
            {name: column[rows] for name, column in self.texts.items()},
            {name: column[rows] for name, column in self.numbers.items()},
            self.ignored,
        )

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the rows as `write` takes them; a number that is unknown is left out."""
        names = [name for name in (*self.texts, *self.numbers) if name != "direction_up"]
        columns = [
            (self.texts[name] if name in self.texts else self.numbers[name]).tolist()
            for name in names
        ]
        rows = []
        for up, *values in zip(self.numbers["direction_up"].tolist(), *columns, strict=True):
            row = {
                name: value
                for name, value in zip(names, values, strict=True)
                if isinstance(value, str) or not math.isnan(value)
            }
            rows.append(row | {"direction": "up" if up else "down"})
        return rows


def read(path: Path) -> DataSet:
    """Read a data set, CSV or Parquet by the file's own beginning.

    DataSetError: it cannot be read, or a value makes no sense; names file, row and column.
    """
    try:
        with path.open("rb") as file:
            parquet = file.read(4) == b"PAR1"
        raw = _read_parquet(path) if parquet else _read_csv(path)
    except MemoryError:  # one of Arrow's, too, which is told elsewhere (`console.reading_others`)
        raise
    except (OSError, pa.ArrowException, UnicodeDecodeError, csv.Error) as error:
        raise DataSetError(
            f"{path}: cannot be read: {getattr(error, 'strerror', '') or error}"
        ) from error
    return from_columns(raw, str(path))


def from_columns(raw: Mapping[str, Sequence[Any]], source: str) -> DataSet:
    """Make a data set of columns of anything: texts, numbers, None. Errors as `read`."""
    for name in ("place", "size_bytes", "direction"):
        if name not in raw:
            raise DataSetError(f"{source}: column {name} is missing; it has {_some(raw)}")
    if not any(name in raw for name in TIMES):
        raise DataSetError(f"{source}: none of the columns {', '.join(TIMES)} is there")
    if not len(raw["place"]):
        raise DataSetError(f"{source}: it has no rows")
    undecisive = (*OTHER_INDICATORS, *ANSWERED)
    numbers = {
        name: _numbers(raw[name], name, source)
        for name in ORDER
        if name in raw and name in _NUMBERS and name not in undecisive
    }
    for name in undecisive:
        # Nothing is decided by them: one that makes no sense is no reason to refuse all the rest.
        with suppress(DataSetError):
            if name in raw:
                numbers[name] = _numbers(raw[name], name, source)
    for row, size in enumerate(numbers["size_bytes"], 1):
        if math.isnan(size):
            raise DataSetError(f"{source}: row {row}, column size_bytes: it is empty")
    numbers["direction_up"] = np.array(
        [_direction(value, row, source) for row, value in enumerate(raw["direction"], 1)]
    )
    place = _texts(raw["place"])
    texts = {"place": place}
    if "group" in raw:
        group = _texts(raw["group"])
        texts["group"] = np.where(group == "", place, group)
    else:
        texts["group"] = place
    if "scenario" in raw:
        texts["scenario"] = _texts(raw["scenario"])
    known = {"direction", *texts, *numbers}
    ignored = tuple(name for name in raw if name not in known)
    return DataSet(source, texts, numbers, ignored)


def joined(sets: Sequence[DataSet]) -> DataSet:
    """Several data sets as one; what one of them lacks is empty in its rows."""
    if len(sets) == 1:
        return sets[0]
    source = ", ".join(each.source for each in sets)
    texts = {name: np.concatenate([_text(each, name) for each in sets]) for name in sets[0].texts}
    names = dict.fromkeys(name for each in sets for name in each.numbers)
    numbers = {
        name: np.concatenate([each.numbers.get(name, np.full(len(each), np.nan)) for each in sets])
        for name in names
    }
    ignored = tuple(dict.fromkeys(name for each in sets for name in each.ignored))
    return DataSet(source, texts, numbers, ignored)


def _text(data: DataSet, name: str) -> NDArray[np.str_]:
    return data.texts.get(name, np.full(len(data), "", dtype=np.str_))


def measured_together(data: DataSet) -> NDArray[np.bool_]:
    """Which rows hold the times of all strategies, where alone choices can be judged.

    DataSetError: none.
    """
    known = [np.isfinite(time_s) for time_s in data.times_s.values()]
    found = np.logical_and.reduce(known) if known else np.zeros(len(data), dtype=np.bool_)
    if not found.any():
        raise DataSetError(
            f"{data.source}: no row holds the times of all its strategies, which are "
            f"{', '.join(data.strategies) or 'none'}"
        )
    return np.asarray(found)


def _some(names: Iterable[str]) -> str:
    """Return the first few names, which show what went wrong (another separator, no header)."""
    first = [repr(name) for name in names]
    return ", ".join(first[:_SHOWN]) + (" ..." if len(first) > _SHOWN else "") or "none"


def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as CSV if the file is called so, else as Parquet.

    Known columns come first and in the order of `ORDER`, others follow; what a row lacks stays empty.
    DataSetError: there are no rows, or the file cannot be written.
    """
    rows = list(rows)
    found = dict.fromkeys(name for row in rows for name in row)
    if not rows:
        raise DataSetError(f"{path}: there are no rows to write")
    names = [name for name in ORDER if name in found]
    names += [name for name in found if name not in ORDER]
    try:
        if path.suffix == ".csv":
            text = io.StringIO(newline="")
            writer = csv.DictWriter(text, names)
            writer.writeheader()
            writer.writerows({name: _plain(row.get(name)) for name in names} for row in rows)
            content = text.getvalue().encode()
        else:
            columns = {name: _column(name, [row.get(name) for row in rows]) for name in names}
            content = parquet(pa.table(columns))
    except pa.ArrowException as error:
        raise DataSetError(f"{path}: cannot be written: {error}") from error
    console.write(path, content)


def parquet(table: pa.Table, **options: Any) -> bytes:
    """Return a table as the content of a file; errors are Arrow's."""
    written = io.BytesIO()
    pq.write_table(table, written, compression="zstd", **options)
    return written.getvalue()


def _read_parquet(path: Path) -> dict[str, Sequence[Any]]:
    schema = must_be_bounded(path)
    known = [name for name in schema.names if name in ORDER]
    for name in known:
        if pa.types.is_nested(schema.field(name).type):
            raise DataSetError(f"{path}: column {name} holds lists, not values")
    # As a dictionary each text is there once.
    table = pq.read_table(path, columns=known, read_dictionary=known, partitioning=None)
    # Of other columns only the names are told.
    nothing: dict[str, Sequence[Any]] = dict.fromkeys(schema.names, ())
    return nothing | {name: _values(path, name, table[name]) for name in known}


def must_be_bounded(path: Path) -> pa.Schema:
    """Return the schema of a Parquet file; DataSetError: it declares too much to be read."""
    with pq.ParquetFile(path) as file:
        meta, schema = file.metadata, file.schema_arrow
        groups = range(meta.num_row_groups)
        rows = max(meta.num_rows, sum(meta.row_group(group).num_rows for group in groups))
        _must_be_bounded(path, schema.names, rows)
        return schema


def _values(path: Path, name: str, column: pa.ChunkedArray) -> Sequence[Any]:
    """Return a column's values; numbers as an array, where an empty one is NaN."""
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        numbers: Sequence[Any] = column.cast(pa.float64()).to_numpy()
        return numbers
    values: list[Any] = []
    if not pa.types.is_dictionary(column.type):
        values += column.to_pylist()
        return values
    for chunk in column.chunks:
        words = chunk.dictionary.to_pylist()
        for word in words:
            _must_be_short(path, name, word)
        values += [None if each is None else words[each] for each in chunk.indices.to_pylist()]
    return values


def _must_be_bounded(path: Path, names: Sequence[str], rows: int) -> None:
    if len(names) > MOST_COLUMNS:
        raise DataSetError(f"{path}: it has {len(names)} columns; {MOST_COLUMNS} may be")
    if len(set(names)) != len(names):
        raise DataSetError(f"{path}: a column appears twice")
    longest = max(map(len, names), default=0)
    if longest > LONGEST_TEXT:
        raise DataSetError(f"{path}: a column's name has {longest} letters; {LONGEST_TEXT} may be")
    if rows > MOST_ROWS:
        raise DataSetError(f"{path}: it has {rows} rows; {MOST_ROWS} may be")


def _must_be_short(path: Path, name: str, text: Any) -> None:
    if isinstance(text, str | bytes) and len(text) > LONGEST_TEXT:
        raise DataSetError(
            f"{path}: column {name}: a text has {len(text)} letters; {LONGEST_TEXT} may be"
        )


def _read_csv(path: Path) -> Mapping[str, Sequence[Any]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        names = [name.strip() for name in next(reader, [])]
        columns: dict[str, list[Any]] = {name: [] for name in names}
        _must_be_bounded(path, names, 0)
        for number, values in enumerate((row for row in reader if row), 1):
            if len(values) != len(names):
                raise DataSetError(
                    f"{path}: row {number} has {len(values)} values for {len(names)} columns"
                )
            if number > MOST_ROWS:
                raise DataSetError(f"{path}: it has more than {MOST_ROWS} rows")
            for (name, column), value in zip(columns.items(), values, strict=True):
                if name in ORDER:
                    _must_be_short(path, name, value)
                column.append(value)
    return columns


def _numbers(values: Sequence[Any], name: str, source: str) -> NDArray[np.float64]:
    found = np.empty(len(values))
    for index, value in enumerate(values):
        try:
            number = _number(value)
        except (TypeError, ValueError) as error:
            raise DataSetError(
                f"{source}: row {index + 1}, column {name}: {value!r} is no number"
            ) from error
        wrong = None
        if math.isinf(number):
            wrong = "is infinite"
        elif name in _POSITIVE and number <= 0.0:
            wrong = "must be more than 0"
        elif name in (*CENSORED, *ANSWERED) and number not in {0.0, 1.0} and not math.isnan(number):
            wrong = "must be 0 or 1"
        elif name in _SHARES and not (math.isnan(number) or 0.0 <= number <= 1.0):
            wrong = "must be from 0 to 1"
        elif name.endswith(("_bps", "_rtt_s", "_rtt_min_s", "_dns_s", "_age_s")) and number < 0.0:
            wrong = "must not be negative"
        if wrong:
            raise DataSetError(f"{source}: row {index + 1}, column {name}: {number:g} {wrong}")
        found[index] = number
    return found


def _number(value: Any) -> float:
    if isinstance(value, str):
        text = value.strip().lower()
        if text in _NOTHING:
            return math.nan
        return _WORDS[text] if text in _WORDS else float(text)
    return math.nan if value is None else float(value)


def _direction(value: Any, row: int, source: str) -> float:
    try:
        return _DIRECTIONS[str(value).strip()]
    except KeyError as error:
        raise DataSetError(
            f"{source}: row {row}, column direction: {value!r} is neither down nor up"
        ) from error


def _texts(values: Sequence[Any]) -> NDArray[np.str_]:
    return np.array(["" if value is None else str(value) for value in values], dtype=np.str_)


def _plain(value: Any) -> Any:
    """CSV's spelling: nothing for unknown, 0 and 1 for no and yes."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return int(value) if isinstance(value, bool) else value


def _column(name: str, values: list[Any]) -> pa.Array:
    """Parquet's types: censored as yes or no, sizes as integers."""
    values = [None if isinstance(value, float) and math.isnan(value) else value for value in values]
    if name in TEXTS:
        return pa.array(values, pa.string())
    if name in CENSORED:
        return pa.array([None if value is None else bool(value) for value in values], pa.bool_())
    if name == "size_bytes":
        return pa.array([int(value) for value in values], pa.int64())
    return pa.array(values, pa.float64() if name in _NUMBERS else None)
