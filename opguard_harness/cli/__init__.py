"""The shell. Commands only translate: options into requests, results into text; the edge prints and exits."""
