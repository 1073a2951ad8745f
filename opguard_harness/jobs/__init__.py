"""Jobs: work that outlives the call, the client and the server that asked for it."""
