"""What ranks show: boards, stacks, exits."""
