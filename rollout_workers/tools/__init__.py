"""Tools that a model calls: their schemas, their calls in an answer, and an MCP server."""
