"""The privileged part: a process of its own, which alone may change the host."""
