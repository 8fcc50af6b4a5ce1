"""A server with OpenAI's protocol in front of an engine; it records every token."""
