"""Several machines that are one gateway: what they share lies in Redis."""
