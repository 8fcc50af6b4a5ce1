"""Checks of one subject each: adapters, chat, environments, models, prompts, samplers."""
