"""`guardctl web`: a folder of runs as a page, served on loopback by a process of its own."""
