"""Models that grade: loaded once for each replica, batched by length, on a GPU if there is one."""
