"""Programs of Debian's packages, as they are, watched from outside while their networks change."""
