"""Slurm as guardrun meets it: reading jobs and nodes, drains, requeues, batch scripts, prolog and epilog."""

if __name__ != "guardrun.slurm":
    raise ImportError(f"import guardrun.slurm, not {__name__}: the folder is only found under that name")
