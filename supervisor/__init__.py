"""guardrun.supervisor"""

if __name__ != "guardrun.supervisor":
    raise ImportError(f"import guardrun.supervisor, not {__name__}: the folder is only found under that name")
