"""Driving the tools as an agent does: three ways to call them, made-up stored work, and agents that know only what they are told."""
