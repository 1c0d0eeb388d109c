"""Lists what the reasons advise, each change as a line to paste."""
