"""Active probes (Delphi, Table 2): pings and look-ups, with what they cost."""
