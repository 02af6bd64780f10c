"""The session protocol: streams and IROBs over any number of paths. Pure: no I/O, no clock."""
