"""`python -m cedos`: the same as the command `cedos`."""

from cedos.cli import main

main()
