"""Compare texts by a chat model in both orders, with counts and tests."""
