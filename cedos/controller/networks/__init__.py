"""The known facts of the networks: indicators, and whether each lives.

A network can be up and carry nothing. Each sign of that is a kind of witness (`Witness`). What finds the
sign tells the network's `Liveness` of it by `on_heard`, `missed` or `intercepted`. `Liveness` weighs all
witnesses and gives the verdict, which a `Context` carries. What a verdict means for decisions is in
`cedos/selector/decision/liveness.py`.

| sign | found by | witness |
|---|---|---|
| pings are lost | `context`, of `cedos/host/monitor/probing` | `PING` |
| look-ups are lost | `cedos/daemon/observer.py` | `NAME` |
| the radio has no connection | a provider, by its indicator `available` | `RADIO` |
| a flow or a ping waits, and nothing is heard | `silence` | `TRANSFER`, `PING` |
| connections have no answer, or one elsewhere only | `unanswered` | `CONNECTION`, `ELSEWHERE` |
| a test page does not come, or comes changed | `portals` | `PAGE`, `NAME` |
| a well-known host does not prove that it is itself | `portals` | `CONNECTION` |

A new sign is a member of `Witness`, with its rules in `liveness` and a caller that reports it.
"""
