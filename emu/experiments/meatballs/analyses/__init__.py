"""Chapter 4's figures, each by one file, from places alone."""
