"""The commands. Each file has one subcommand of `cedos` as `command`; `cedos.py` lists them."""
