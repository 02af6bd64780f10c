"""The kernel's interfaces, each structure once: netlink, sockets, BPF, interfaces, privileges."""
