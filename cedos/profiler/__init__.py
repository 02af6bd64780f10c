"""Traffic Profiler: how many bytes a transfer will move, told near its start (Delphi, section 4).

`capture` lets only the packets through that begin an HTTP message or a TLS handshake; `http` and `tls`
read them; `sizes` remembers what each server sent before; `profiler` joins these into events. Only
`capture` touches the operating system.
"""
