"""CBSP's evaluation: a video over helpers, by SWTC and by lowest RTT. Simulated."""
