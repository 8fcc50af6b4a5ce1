"""Rewards and metrics that a user wrote: their forms, their trial calls, and their sandbox."""
