"""Times every variant in turns, traces it, and turns the traces into numbers."""
