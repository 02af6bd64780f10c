"""The one decision: which strategy carries out a transfer, by one cost for each."""
