"""Chats: from messages and tools to a prompt, and from an answer's text back to its parts."""
