"""First packets into a dead network go out again over another one."""
