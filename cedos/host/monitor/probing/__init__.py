"""Active probes (Delphi, Table 2): pings, lookups, UDP trains and TCP transfers, with what they cost.

Trains and transfers go to `cedos probe-server` (`server`), which says what `wire` defines.
"""
