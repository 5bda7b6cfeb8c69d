"""The command `stratad`: its start, what looks after it while it serves, and its orderly end."""
