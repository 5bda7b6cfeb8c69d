"""Decoding: requests from the queue to their last token, several side by side, and the prompts kept for them."""
