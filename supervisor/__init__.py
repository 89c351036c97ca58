"""A run's supervisor, the node agent and guardctl; what they decide is in core, which is pure."""

if __name__ != "guardrun.supervisor":
    raise ImportError(f"import guardrun.supervisor, not {__name__}: the folder is only found under that name")
