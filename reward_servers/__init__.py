"""Turn finished texts into scores: every reward, every metric, and the servers that run them."""
