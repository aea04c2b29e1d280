"""Orca, OSDI 2022."""

from typing import Any

from batchlab.published.record import Record, Value

_CONDITIONS: dict[str, Any] = {
    "precision": "fp16",
    "workload": "synthetic: prompts uniform from 32 to 512 tokens, outputs uniform from 1 to 128 and"
    " exactly so (no EOS),"
    " Poisson arrivals",
    "source": "Yu et al., Orca: A Distributed Serving System for Transformer-Based Generative Models, OSDI"
    " 2022, section 6",
}

RECORDS = (
    Record(
        name="orca-175b",
        claim="Orca: 36.9x the request rate of FasterTransformer at 190 ms a token",
        system="Orca, the whole system: iteration-level scheduling, selective batching, its own control"
        " plane and kernels",
        model="GPT-3 architecture, 175B: 96 layers, hidden 12,288, at most 2,048 tokens",
        hardware="16 x A100-40GB, 8 a machine: tensor parallel 8 x pipeline 2, NVLink, 1.6 Tb/s InfiniBand",
        baseline="FasterTransformer under a request-level scheduler of at most max_bs requests, the better of (max_bs,"
        " microbatch) = (1, 1) and (8, 8); it reserves KV memory for 2,048 tokens a request",
        metric="requests/s at a median of 190 ms normalised latency (latency end to end / output tokens)",
        denominator="FasterTransformer's rate under the same median: 0.185 requests/s",
        values=(
            Value(what="ratio", value=36.9, unit="x"),
            Value(what="ratio of the printed figures", value=36.81, unit="x", derived=True),
            Value(what="Orca", value=6.81, unit="requests/s"),
            Value(what="FasterTransformer", value=0.185, unit="requests/s"),
        ),
        not_shown="a general factor: the ratio is that of two whole systems at one latency, where"
        " request-level batching"
        " can hardly batch; the point is Orca's saturation",
        notes=("190 ms is twice the normalised execution time of orca(128), so that time is about 95 ms.",),
        reproduction="orca:ratio",
        **_CONDITIONS,
    ),
    Record(
        name="orca-101b-ft",
        claim="FasterTransformer: at most 0.49 requests/s with 101B",
        system="FasterTransformer under a request-level scheduler",
        model="GPT-3 architecture, 101B: 80 layers, hidden 10,240, at most 2,048 tokens",
        hardware="8 x A100-40GB: tensor parallel 8, NVLink",
        baseline="none: absolute rate of Orca's baseline at its best setting",
        metric="requests/s at saturation",
        denominator="wall time",
        values=(Value(what="peak", value=0.49, unit="requests/s"),),
        not_shown="latency: at its peak the queue grows without bound",
        notes=(
            "A batch's first iteration runs at its shortest prompt, so it takes max(in + out) - min(in) iterations.",
            "With pipeline stages the paper gives up to 47 % for the control plane; 101B has none.",
        ),
        reproduction="orca:fastertransformer_peak",
        **_CONDITIONS,
    ),
)
