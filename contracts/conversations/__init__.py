"""Conversations: messages, chat templates, and their settings."""
