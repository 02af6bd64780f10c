"""`python -m cedos`: the same as the command `cedos`."""

from cedos.commands.cedos import main

main()
