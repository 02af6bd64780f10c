"""What the proxy carries for which server, and over which networks: for people, by the daemon."""
