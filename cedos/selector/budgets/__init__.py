"""Budgets as prices: resources with a supply that is to last for a period (dissertation, 3.1.2).

What can be budgeted is `Resource` in `cedos/model.py`. A keeper has one budget over all its periods, a
`Controller` moves its price, `prices` puts all prices together.
"""
