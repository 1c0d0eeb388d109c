"""Lists what the reasons advise, carries it out as DVC experiments, and says what each change brought."""
