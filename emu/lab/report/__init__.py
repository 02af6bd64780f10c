"""Pictures, tables and a page, drawn from run folders only."""

from emu.lab.report.page import write
from emu.lab.report.table import print_places, print_table

__all__ = ["print_places", "print_table", "write"]
