"""A comparison as a Perfetto timeline: what to show, how it nests, and the drawing of it."""
