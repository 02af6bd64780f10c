"""Places replayed without a clock: what networks would have done, computed from their traces."""
