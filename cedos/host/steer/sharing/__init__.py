"""Changes in this host's kernel for sharing bandwidth with neighbours (CBSP), on either side.

A requestor has one more address for each helper on the shared link, with a rule "from this address by
way of this helper". The helper forwards from that address to the gateway and nowhere else, behind NAT.
So each helper is a path of its own to sessions and to MPTCP, and no byte passes through this program.

Everything bears the number `SHARING_PROTOCOL`, but for what is journaled:

| | the helper's | the requestor's |
|---|---|---|
| addresses | | one a helper, from 169.254.0.0/16; the metric is its price |
| rules | to the requestor; from it to the gateway; else nowhere | from the address by its helper alone |
| routes | to the requestor and the gateway | to the gateway by the helper |
| neighbours | the requestor, as it was when it was admitted | |
| chains | `CEDOSHARE_*` | |
| journaled | forwarding of the two interfaces | the limit of MPTCP's subflows |

Each side keeps a journal (`cedos.host.steer.journal`) of its own, apart from the daemon's: the daemon
need not run, and none of them undoes the others' changes.
"""
