"""Where indicators come from: nl80211, ModemManager, UPower, phones, series of a place."""
