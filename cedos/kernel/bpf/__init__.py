"""Small programs on a cgroup's sockets, and filters on what this process's own receive."""
