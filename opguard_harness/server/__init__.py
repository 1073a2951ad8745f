"""The MCP server: one file adapts the registry, the others carry bytes."""
