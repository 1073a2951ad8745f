"""How clients are told about the server: one entry, the files and lines made from it, and their place in a client's own file."""
