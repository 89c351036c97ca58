"""The launcher's side of its supervisor: the process, the channel, and what to do without one."""
