"""What a tool is, its schemas, and the check of its arguments; knows no single tool."""
