"""What the daemon is doing, as values and documents: for HTTP, metrics and stratactl."""
