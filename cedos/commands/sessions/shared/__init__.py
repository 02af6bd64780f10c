"""What several of these programs share: sources on the command line, sessions, what they say."""
