"""Budgets as prices: resources with a supply that is to last for a period (dissertation, 3.1.2).

`Resource` in `cedos/budget_kinds.py` lists the kinds of budget. A keeper keeps one budget over all its
periods, a `PriceController` moves its price, `prices` puts all prices together.
"""
