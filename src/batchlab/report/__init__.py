"""One self-contained HTML page about runs, sweeps and capacities. Reads events and saved answers only."""
