"""Files in the state and the runtime directory, by which the daemon and stratactl find what the other left."""
