"""The providers of indicators: nl80211, ModemManager, UPower, phones, series of a place.

One source, one file: an `IndicatorProvider` (`provider`), put to the others in `providers()` of
`cedos/daemon/observer.py`.
"""
