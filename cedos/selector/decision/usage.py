"""How the bytes of an MPTCP transfer divide between its two networks: what metered use is made of."""


def second_share(
    primary_time_s: float, second_time_s: float, mptcp_time_s: float, join_s: float
) -> float:
    """The expected share (0 to 1) of an MPTCP transfer that goes over its second network.

    Both subflows send at the rates that their networks would give the transfer alone, the second
    one only from its join on. So a request that is over before the join costs the second network
    nothing, and a long download divides in proportion to the rates.

    `primary_time_s`: time of the transfer over the primary network alone.
    `join_s`: from the start until the second subflow can carry data.
    """
    shared_s = max(mptcp_time_s - join_s, 0.0)
    second = shared_s / max(second_time_s, 1e-9)
    primary = mptcp_time_s / max(primary_time_s, 1e-9)
    return second / (second + primary) if second > 0.0 else 0.0
