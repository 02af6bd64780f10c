"""Tables and figures of the papers on sessions, measured live: run as root."""
