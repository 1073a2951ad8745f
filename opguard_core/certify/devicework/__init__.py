"""Device work on the offline side: kernel names, coverage, what unattributed work leaves open, kernels of a pivot."""
