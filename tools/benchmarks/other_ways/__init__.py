"""Holds halfstep's verdict against what a user would do otherwise; `__main__` says how."""
