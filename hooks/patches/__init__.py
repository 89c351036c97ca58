"""What is wrapped in torch and in the interpreter, one file each."""
