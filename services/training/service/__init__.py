"""A training service for the `tinker` SDK: futures, sessions, a journal, a trainer and a sampler."""
