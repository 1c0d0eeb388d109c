"""The operating system and Python as every stage uses them: processes, locks, signals, imports, files."""
