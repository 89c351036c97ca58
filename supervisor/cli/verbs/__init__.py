"""guardctl's verbs, a file each."""
