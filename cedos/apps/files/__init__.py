"""Files over sessions: `cedos-serve`, `cedos-get`, `cedos-put` and `cedos-pod`.

A session survives its networks; these programs survive their own crashes as well. Received bytes are in a
partial file with a note of its version. The next attempt names both and gets the rest; SHA-256 over
the whole file is checked at the end. `messages` are the bytes, `partial` the half-finished file, `tree`
what is served, `serving` and `getting` the two ends.
"""
