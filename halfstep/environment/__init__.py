"""Checks of `params.yaml` and everything that it names, and the description of the machine. Imports no TensorFlow."""
