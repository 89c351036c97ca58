"""systemd as the node agent meets it: sd_notify, the journal, units."""

if __name__ != "guardrun.systemd":
    raise ImportError(f"import guardrun.systemd, not {__name__}: the folder is only found under that name")
