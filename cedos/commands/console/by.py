"""`--by`: until when something is wanted, as people say it."""

from datetime import datetime
from typing import Any, Final

import click

from cedos.config import amounts

BY_HELP: Final = (
    "Wanted by then: 18:00, 2h, 1d, tomorrow (its morning, 8:00), friday 18:00, 2026-12-01."
)


class By(click.ParamType[float]):
    """Seconds since the epoch: `18:00`, `2h`, `tomorrow`, `2026-12-01 18:00`."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        try:
            return amounts.by(value, datetime.now()).timestamp()
        except ValueError as error:
            self.fail(str(error), param, ctx)
