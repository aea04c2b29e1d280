"""A measured run replayed: what the simulation predicts beside what was measured."""
