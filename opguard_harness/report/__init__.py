"""What people read: the short answer on a terminal, and the escapes that keep hostile text harmless."""
