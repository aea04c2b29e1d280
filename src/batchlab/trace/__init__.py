"""The iteration trace: reading and verifying it. Imports nothing of the simulator."""
