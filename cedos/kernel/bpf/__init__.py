"""Small programs on a cgroup's sockets."""
