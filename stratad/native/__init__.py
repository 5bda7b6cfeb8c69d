"""The other side of the border: a plan carried out, and a loaded model, over the native module."""
