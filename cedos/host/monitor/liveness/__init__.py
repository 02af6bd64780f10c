"""Judge whether a network is dead.

A network can be up and carry nothing. Each sign of that is a kind of witness (`Witness` in `liveness`).
What finds the sign tells the network's `Liveness` of it by `heard`, `missed` or `intercepted`. `Liveness`
weighs all witnesses and gives the verdict, which a `Context` carries;
`cedos/selector/decision/liveness.py` says what a verdict means for decisions.

| sign | found by | witness |
|---|---|---|
| pings are lost | `cedos/host/monitor/probing`, told by `cedos/controller/networks/context.py` | `PING` |
| look-ups are lost | `cedos/host/monitor/probing`, told by `cedos/daemon/networks/observer.py` | `NAME` |
| the radio has no connection | a provider, by its indicator `available` | `RADIO` |
| a flow or a ping waits, and nothing is heard | `silence` | `TRANSFER`, `PING` |
| connections have no answer, or one elsewhere only | `unanswered` | `CONNECTION`, `ELSEWHERE` |
| a test page does not come, or comes changed | `portal_check`, `portal_verdict` | `PAGE`, `NAME` |
| a well-known host does not prove that it is itself | `tls_check` | `CONNECTION` |

A new sign is a member of `Witness`, with its rules in `liveness` and a caller that reports it.
`portal_watch` says when the page and the host are asked. All times are those of the monotonic clock.
`portal_check` and `tls_check` use the network, `portal_watch` has a timer; the other modules are pure.
"""
