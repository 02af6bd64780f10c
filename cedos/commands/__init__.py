"""The commands of `cedos`; each module's `command` is one."""
