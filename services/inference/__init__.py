"""Trained models at work: generate, evaluate, score, chat, publish."""
