"""Terms and texts that are the same everywhere: precisions, formats, outcomes, numbers and names as text."""
