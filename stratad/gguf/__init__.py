"""Model files: the header of a GGUF file, and the facts of a model in it. Tensor data is never read."""
