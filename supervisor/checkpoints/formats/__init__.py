"""The formats that guardrun knows: one small adapter each."""
