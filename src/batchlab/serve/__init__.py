"""A server that speaks OpenAI's API and computes nothing: a real scheduler decides, and tokens come at its times."""
