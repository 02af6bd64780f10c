"""The programs of the experiments: each a client and a server in processes of their own.

`python -m emu.experiments.sessions.apps ROLE NAME` reads its options as one line of JSON from
standard input and writes what it found as one line; `Program` starts one and asks it.
"""
