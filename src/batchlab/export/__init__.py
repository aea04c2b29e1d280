"""A trace for other eyes: spans of each request, tables, Chrome traces and charts. Reads events only."""
