"""Why a request waited: where the time between its arrival and its end went. Reads events only."""
