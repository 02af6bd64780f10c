"""Files over sessions: `cedos-serve` and `cedos-get`.

A session survives its networks; these two survive their own crashes as well. What has arrived lies in
a partial file with a note of which version of the file it is; whoever asks again says so and gets the
rest, and SHA-256 over the whole file is checked at the end. `messages` are the bytes, `partial` the
half-finished file, `tree` what is served, `serving` and `getting` the two ends.
"""
