"""Graders that are models: loaded once a replica, batched by length, on a GPU where there is one."""
