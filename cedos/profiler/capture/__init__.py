"""First packets of flows: the filter in the kernel, and the socket that reads them."""
