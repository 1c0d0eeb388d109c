"""The machine: processors, memory and GPUs, what limits them, and why a GPU cannot be used."""
