"""The testbed: emulated phones that replay real traces, workloads, policies, runs and reports."""
