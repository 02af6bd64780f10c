"""Judge whether a network is dead.

A network can be up and carry nothing. Each sign of that is found by one module here and kept as an
indicator of the context; `cedos/selector/decision/liveness.py` reads the indicators and decides.

| sign | found by | indicator |
|---|---|---|
| pings are lost, and nothing else comes back | `pings` | `ping_loss`, `available` |
| a flow or a ping waits, and nothing is heard | `silence` | `silence_s` |
| connections to several servers have no answer | `unanswered`, then a check | `captive` |
| a test page comes back changed | `portal_check` fetches, `portal_verdict` judges | `captive` |

`portal_watch` says when a network is checked, and how long a verdict holds. All times are those of the
monotonic clock; everything but `portal_check` and the timer of `portal_watch` is pure.
"""
