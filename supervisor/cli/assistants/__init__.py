"""guardctl's questions as tools for an assistant: Model Context Protocol, over standard input and output."""
