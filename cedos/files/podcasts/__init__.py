"""Subscriptions whose episodes are here in time, over unmetered networks as far as possible.

`feed` reads what publishers write, `subscriptions` what the user wants, `episode_book` what is here,
`fetching` brings it, and `retries` says when it is tried again.
"""
