"""GPUs: which are here, what they are for, the runtimes and offload of this process, and the most used experts."""
