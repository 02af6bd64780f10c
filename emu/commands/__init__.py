"""The commands of `cedos-emu`: one file each, with a `command`."""
