"""Anyscale, June 2023: static batching, FasterTransformer, continuous batching and vLLM on one GPU."""

from typing import Any

from batchlab.published.record import Record, Supposition, Value

_SUPPOSED = Supposition(
    who="the authors",
    what="that reserving KV memory as it is needed gave vLLM its further lead over the other continuous"
    " systems; they did"
    " not take its optimisations apart, so the lead is the whole engine's and not that of PagedAttention alone",
)
_SOURCE = (
    "Daniel et al., How continuous batching enables 23x throughput in LLM inference while reducing p50"
    " latency, Anyscale,"
    " June 2023, and its benchmark's code"
)
_CONDITIONS: dict[str, Any] = {
    "model": "OPT-13B",
    "precision": "fp16",
    "hardware": "1 x A100-40GB",
    "metric": "throughput: prompt and output tokens together, per second",
    "denominator": "wall time from the first send to the last completion",
    "workload": "1,000 requests of 512 random prompt tokens, all sent at once; outputs round(exponential of mean 128),"
    " drawn again above a cap of 32, 128, 512 or 1,536; EOS ignored",
    "source": _SOURCE,
}
_OFFLINE = "an offline burst: no capacity under a latency objective, and prompt tokens are most of what is counted"
_HEADLINE = "The headlines fit cap 1,536, where 1,898 over about 81 tokens/s is 23.4 (derived)."

RECORDS = (
    Record(
        name="anyscale-static",
        claim="naive static batching: about 81 tokens/s at cap 1,536",
        system="Hugging Face pipelines behind a server that waits for all requests",
        baseline="none: it is the baseline of the others; batches of at most 16, 12, 8 and 4 at the four caps",
        values=(Value(what="cap 1536", value=81, unit="tokens/s", said="about"),),
        not_shown=f"{_OFFLINE}; the other three caps were not found",
        notes=("It decodes every batch to the longest output over all requests, which no engine in service does.",),
        reproduction="anyscale:static",
        **_CONDITIONS,
    ),
    Record(
        name="anyscale-ft",
        claim="FasterTransformer: 4x naive static batching",
        system="FasterTransformer behind a server that polls once a second",
        baseline="naive static batching, Hugging Face pipelines (anyscale-static)",
        values=(Value(what="over static", value=4, unit="x"),),
        not_shown=f"{_OFFLINE}; its tokens/s were not found",
        notes=(_HEADLINE, "Batches of at most 16, 12, 8 and 4, each padded to its own longest output."),
        reproduction="anyscale:fastertransformer",
        **_CONDITIONS,
    ),
    Record(
        name="anyscale-continuous",
        claim="continuous batching: up to 8x naive static batching",
        system="Ray Serve and Hugging Face text-generation-inference",
        baseline="naive static batching, Hugging Face pipelines (anyscale-static)",
        values=(Value(what="over static", value=8, unit="x", said="up to"),),
        not_shown=f"{_OFFLINE}; nothing of a general factor of continuous batching",
        notes=(_HEADLINE, "Token caps of the continuous systems: 8,700, 7,500, 8,100 and 8,100 at the four caps."),
        not_reproduced="the two systems' tokens/s were never published as numbers, nor what their servers cost a step",
        **_CONDITIONS,
    ),
    Record(
        name="anyscale-23x",
        claim="vLLM: up to 23x naive static batching",
        system="vLLM 0.1, the whole engine",
        baseline="naive static batching, Hugging Face pipelines (anyscale-static)",
        values=(Value(what="over static", value=23, unit="x", said="up to"),),
        not_shown=f"{_OFFLINE}; the share of any single technique: over continuous batching the further"
        " factor is about 3",
        supposed=(_SUPPOSED,),
        notes=(
            _HEADLINE,
            "About 6x remains when each static batch is padded to its own longest output only (derived).",
        ),
        reproduction="anyscale:ratio",
        **_CONDITIONS,
    ),
    Record(
        name="anyscale-vllm",
        claim="vLLM: 6,121, 3,592, 2,029 and 1,898 tokens/s at the four caps",
        system="vLLM 0.1, the whole engine",
        baseline="none: absolute throughput",
        values=tuple(
            Value(what=f"cap {cap}", value=value, unit="tokens/s")
            for cap, value in ((32, 6121), (128, 3592), (512, 2029), (1536, 1898))
        ),
        not_shown=f"{_OFFLINE}; which of vLLM's techniques gives how much",
        supposed=(_SUPPOSED,),
        notes=("The published row and its repeat (anyscale-vllm-repeat) differ by 6 to 15 %: that is the noise.",),
        reproduction="anyscale:vllm_row",
        **_CONDITIONS,
    ),
    Record(
        name="anyscale-vllm-repeat",
        claim="an independent repeat: 5,752, 3,180, 1,734 and 1,653 tokens/s",
        system="vLLM 0.1.2, the whole engine",
        baseline="the published row (anyscale-vllm)",
        values=tuple(
            Value(what=f"cap {cap}", value=value, unit="tokens/s")
            for cap, value in ((32, 5752), (128, 3180), (512, 1734), (1536, 1653))
        ),
        not_shown=_OFFLINE,
        reproduction="anyscale:vllm_repeat",
        **_CONDITIONS,
    ),
    Record(
        name="anyscale-latency",
        claim="vLLM: 3.6 s at 1 request/s and 4.6 s at 4",
        system="vLLM 0.1, the whole engine",
        baseline="its independent repeat with vLLM 0.1.2",
        **_CONDITIONS
        | {
            "metric": "median latency of a request, end to end",
            "denominator": "none: seconds a request",
            "workload": "prompts uniform from 128 to 384 tokens, at 1 and at 4 requests/s",
        },
        values=(
            Value(what="1 request/s", value=3.6, unit="s"),
            Value(what="4 requests/s", value=4.6, unit="s"),
            Value(what="repeat, 1 request/s", value=3.6, unit="s"),
            Value(what="repeat, 4 requests/s", value=7.1, unit="s"),
        ),
        not_shown="the tail of the latencies, and the load at which the engine saturates",
        not_reproduced="the original and its repeat differ by half at 4 requests/s, so there is nothing to meet",
    ),
)
