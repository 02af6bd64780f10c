"""Speech recognised on the device, on a server, or on both: the policy, and who computes (4.5.5.2)."""
