"""`python -m emu`: the same as the command `cedos-emu`."""

from emu.cli import main

main()
