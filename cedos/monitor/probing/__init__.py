"""Heavier probes against `cedos probe-server`: UDP trains and short TCP transfers (Delphi, Table 2).

`wire` is the packets, `dispersion` what arrivals say of a network, `train` and `tcp_probe` the client,
`server` the other end, `result` and `ledger` what every probe found and cost (Table 3).
"""
