"""guardrun.slurm"""

if __name__ != "guardrun.slurm":
    raise ImportError(f"import guardrun.slurm, not {__name__}: the folder is only found under that name")
