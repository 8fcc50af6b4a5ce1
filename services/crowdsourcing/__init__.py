"""People's judgements of what models write: pages to ask for them, and what the answers say."""
