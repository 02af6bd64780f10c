"""Networks whose rate, delay and coverage follow a script, second by second.

The papers' idealised comparisons ("one network that is always the best one") have a round trip that
changes while packets are on their way. The same engine carries what they are compared with.
"""
