"""The protocol between requestor, helper and gateway. Pure: datagrams and events in, commands out.

`messages` are the bytes, `certificates` say who may take part. `requestor` and `helper` are the two state
machines; `receipts` and `accounting` are who owes what to whom.

Every `now_s` is in seconds since 1970, from a clock that never goes back: the driver adds the time
since its start to the wall clock of its start.
"""
