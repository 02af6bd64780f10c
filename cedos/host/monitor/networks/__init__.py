"""Which networks there are, and how much they carry."""
