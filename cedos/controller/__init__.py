"""The controller: events in, commands out. Pure: no I/O, no clock; `now_s` is an argument."""
