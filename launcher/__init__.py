"""What stands in torchrun's place: the command line, the ranks of each attempt, the control channel."""

if __name__ != "guardrun.launcher":
    raise ImportError(f"import guardrun.launcher, not {__name__}: the folder is only found under that name")
