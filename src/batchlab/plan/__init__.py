"""Planning: many runs of one scenario that differ in what is asked about, and what they answer."""
