"""The one decision: choose the strategy that carries out a transfer by one cost for each."""
