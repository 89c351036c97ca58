"""Whether replicas are equal: sums of the bits of what a rank holds, for the supervisor to compare."""
