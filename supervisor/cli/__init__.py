"""guardctl's verbs, a file each, and what they share: finding a run, asking its supervisor, printing."""
