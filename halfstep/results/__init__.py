"""The files that stages leave for one another: for each its type, its writer and its reader."""
