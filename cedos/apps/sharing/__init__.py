"""CBSP: bandwidth from neighbours. `protocol/` is pure; the files beside it do its I/O.

Paper: Tsai, Chou, Lan, "Avoiding Biased-Feeding in the Scheduling of Collaborative Multipath TCP",
PLoS ONE 11(8), 2016. The bytes are specified in `docs/sharing-protocol.md`.
"""
