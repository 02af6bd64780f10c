"""Frames as data, and how records pack and unpack them."""
