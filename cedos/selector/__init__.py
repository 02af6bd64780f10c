"""The Network Selector: facts and predictions in, one decision out. Pure: no I/O, no clock."""
