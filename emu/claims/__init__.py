"""Claims: each figure of the papers and of ours, held against the result file that it comes from.

`docs/claims.toml` is the list. `expressions` computes a number from result files, `claim_list` reads
the list and compares, `pages` writes the tables, `measuring` runs an entry's command again.
"""
