"""Numbers that are put together from several run folders; one file is one set (`cedos-emu figures`).

A set defines `figures`, which turns finished runs into the content of a JSON file, and `lines`, which
puts that content in lines for people. Where `figures` has a second parameter `places`, it is given the
collection. `notebooks/` draws pictures from such files.
"""
