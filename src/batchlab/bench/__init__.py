"""Load on a served model over HTTP, and what came back. Times in ns from the start of the load."""
