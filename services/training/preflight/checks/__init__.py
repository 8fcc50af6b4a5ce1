"""Checks of single subjects: adapters, chat, environments, models, prompts, samplers."""
