"""All that concerns systemd: its notifications, its units, and the files we write for it."""
