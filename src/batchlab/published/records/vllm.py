"""vLLM, SOSP 2023."""

from typing import Any

from batchlab.published.record import Record, Supposition, Value

_CONDITIONS: dict[str, Any] = {
    "precision": "fp16",
    "source": "Kwon et al., Efficient Memory Management for Large Language Model Serving with"
    " PagedAttention, SOSP 2023",
}
_ORCAS = (
    "Orca, rebuilt by the authors over a buddy allocator: Max reserves 2,048 tokens a request, Pow2 its"
    " output rounded up to"
    " a power of two, Oracle its true output"
)
_SHAREGPT = "ShareGPT lengths (mean prompt 161.31, output 337.99 tokens), Poisson arrivals for 1 h"
_13B: dict[str, Any] = {
    "model": "OPT-13B",
    "hardware": "1 x A100-40GB, 12 GB of KV memory = 15.7K slots",
    "baseline": _ORCAS,
}

RECORDS = (
    Record(
        name="vllm-ratios",
        claim="vLLM: 1.7x to 2.7x the rate of Orca (Oracle), 2.7x to 8x of Orca (Max), up to 22x of FasterTransformer",
        system="vLLM, the whole engine; block size 16",
        model="OPT-13B, OPT-66B, OPT-175B",
        hardware="1 x A100-40 (13B, 15.7K KV slots); 4 x A100-40 (66B, 9.7K); 8 x A100-80 (175B, 60.1K)",
        baseline=f"{_ORCAS}; and FasterTransformer under a request-level scheduler",
        metric="request rate at about the same mean normalised latency (latency end to end / output tokens)",
        denominator="the baseline's rate at that latency",
        workload=_SHAREGPT,
        values=(
            Value(what="over Orca (Oracle)", value=1.7, to=2.7, unit="x"),
            Value(what="over Orca (Max)", value=2.7, to=8.0, unit="x"),
            Value(what="over FasterTransformer", value=22, unit="x", said="up to"),
        ),
        not_shown="the share of any single technique; anything about short requests (Alpaca: mean 19.31 and"
        " 58.45) from these",
        supposed=(
            Supposition(
                who="the authors",
                what="that the lead comes from batching more requests, because blocks waste less memory",
            ),
        ),
        not_reproduced="the curves exist only as pictures, and the exact ShareGPT lengths behind them were"
        " not published",
        **_CONDITIONS,
    ),
    Record(
        name="vllm-batch",
        claim="30.42 requests batched on average, where the three Orcas have 7.00, 9.81 and 13.62",
        system="vLLM, the whole engine; block size 16",
        metric="requests in a batch, on average",
        denominator="time",
        workload=f"{_SHAREGPT}, at 2 requests/s",
        values=(
            Value(what="Orca (Max)", value=7.00, unit="requests"),
            Value(what="Orca (Pow2)", value=9.81, unit="requests"),
            Value(what="Orca (Oracle)", value=13.62, unit="requests"),
            Value(what="vLLM", value=30.42, unit="requests"),
        ),
        not_shown="throughput: at this rate the Orcas are saturated and vLLM is at its knee",
        reproduction="vllm:batch",
        **_13B,
        **_CONDITIONS,
    ),
    Record(
        name="vllm-kv-use",
        claim="96.3 % of KV memory holds token states, where the three Orcas have 20.4, 26.8 and 38.2 %",
        system="vLLM, the whole engine; block size 16",
        metric="share of KV memory that holds token states, on average",
        denominator="the KV memory of the engine, 15.7K slots",
        workload=f"{_SHAREGPT}, the engine full",
        values=(
            Value(what="Orca (Max)", value=20.4, unit="%"),
            Value(what="Orca (Pow2)", value=26.8, unit="%"),
            Value(what="Orca (Oracle)", value=38.2, unit="%"),
            Value(what="vLLM", value=96.3, unit="%"),
        ),
        not_shown="throughput; vLLM's share is that of a full engine, at lower load memory is simply free",
        reproduction="vllm:kv_use",
        **_13B,
        **_CONDITIONS,
    ),
)
