"""The border between Python and the native engine: a loaded model as protocols and values, and its verdict."""
