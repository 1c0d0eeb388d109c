"""Verdicts on real networks, each rebuilt by one command on the reader's own machine."""
