"""Networks simulated from the delivery opportunities of their traces."""
