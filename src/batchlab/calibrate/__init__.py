"""Cost models fitted to measurements."""
