"""Is the job held up, by whom, and for how long may it be?"""
