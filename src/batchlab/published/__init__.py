"""Published results of LLM serving with all their conditions, and what simulation makes of them."""
