"""What people type. One file is one subcommand of `cedos`, its `command`; listed in `cedos.py`."""
