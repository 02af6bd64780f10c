"""Pictures, tables and a page, drawn from run folders only."""

from emu.report.page import write
from emu.report.table import print_table, print_together

__all__ = ["print_table", "print_together", "write"]
