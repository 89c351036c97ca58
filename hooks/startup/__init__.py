"""From the first line of a rank to hooks that wait for what they wrap."""
