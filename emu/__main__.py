"""`python -m emu`: the same as the command `cedos-emu`."""

from emu.commands.cedos_emu import main

main()
