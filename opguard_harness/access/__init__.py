"""What a call may touch: roots, programs, variables; checked before a tool sees its arguments."""
