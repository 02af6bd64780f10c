"""Figures that are put together from several run folders; one file is one set (`cedos-emu figures`).

A set defines `figures`, from finished runs to what its JSON file holds, and `lines`, which puts that in
lines for people. Where `figures` has a second parameter `places`, it is given the collection.
"""
