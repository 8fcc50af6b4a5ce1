"""An address that speaks OpenAI's protocol, in front of an engine; it records every token."""
