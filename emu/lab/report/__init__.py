"""Pictures, tables and a page, drawn from run folders only."""

from emu.lab.report.page import write
from emu.lab.report.table import print_table, print_together

__all__ = ["print_table", "print_together", "write"]
