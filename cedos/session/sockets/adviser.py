"""Who chooses the networks of a session that dials."""

from typing import NamedTuple

from cedos.session.io.advice import Chooser
from cedos.session.protocol.schedulers.decided import DecidedScheduler


class Adviser(NamedTuple):
    """Who chooses networks for each label, and the scheduler that follows."""

    scheduler: DecidedScheduler
    chooser: Chooser
    thrifty: bool = False
