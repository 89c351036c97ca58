"""What looks show: stacks, what each rank does, who waits for whom."""
