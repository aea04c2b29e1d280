"""The scenario that sweeps and tunings are tried on: small, and with some requests beyond an objective."""

SCENARIO = """
[engine]
policy = "vllm"
max_num_seqs = 8
max_num_batched_tokens = 64
num_gpu_blocks = 100
[cost]
model = "linear"
unit = "ns"
per_iteration = 5_000_000
prefill_token = 20_000
[workload.generate]
num_prompts = 60
seed = 3
arrivals = "poisson"
request_rate = 20
prompt = { distribution = "uniform", min = 1, max = 200 }
output = { distribution = "exponential", mean = 20 }
"""
