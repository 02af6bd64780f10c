"""Chapter 3's figures, each by one file, from places alone."""
