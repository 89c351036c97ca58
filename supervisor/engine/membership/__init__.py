"""The nodes of a job: who takes part, who is lost, who returns."""
