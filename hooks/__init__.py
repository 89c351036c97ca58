"""guardrun.hooks"""

if __name__ != "guardrun.hooks":
    raise ImportError(f"import guardrun.hooks, not {__name__}: the folder is only found under that name")
