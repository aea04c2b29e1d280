"""What simulators of LLM serving say about their own accuracy."""

from batchlab.published.record import Record, Value

_WHY = "another simulator's accuracy is shown by running that simulator"

RECORDS = (
    Record(
        name="vidur-accuracy",
        claim="Vidur: under 9 % error in latency",
        system="Vidur, with its own profiles of kernels and its model of vLLM V0",
        model="LLaMA2-7B and 70B, InternLM-20B, Qwen-72B",
        precision="fp16",
        hardware="A100-80GB and H100, 1 to 4 GPUs",
        baseline="the real engine that it models, in its authors' fork",
        metric="error of the median and P95 of normalised latency",
        denominator="the measured latency",
        workload="static (all requests there at the start) and dynamic at 85 % of capacity, lengths of public chat and"
        " summary data sets",
        values=(
            Value(what="over the range", value=9, unit="%", said="under"),
            Value(what="static, P95", value=3.33, unit="%", said="at most"),
            Value(what="dynamic at 85 % of capacity", value=5, unit="%", said="under"),
        ),
        source="Agrawal et al., Vidur: A Large-Scale Simulation Framework for LLM Inference, MLSys 2024",
        not_shown="accuracy at saturation, for newer engines, or where no profile exists",
        not_reproduced=_WHY,
    ),
    Record(
        name="llmservingsim-accuracy",
        claim="LLMServingSim 2.0: mean TPOT within 1.7 %, mean TTFT from -13.6 to +1.3 %",
        system="LLMServingSim 2.0, with its own profiles of vLLM's layers",
        model="Llama-3.1-8B, Qwen3-32B, Qwen3-30B-A3B",
        precision="bf16",
        hardware="RTX PRO 6000 (1 GPU; tensor parallel 2; data x expert parallel 2) and RTX 4090",
        baseline="a real vLLM 0.19 in the same four set-ups",
        metric="error of mean TPOT and mean TTFT, signed",
        denominator="the measured mean",
        workload="300 ShareGPT requests, about 10 requests/s, Poisson",
        values=(
            Value(what="TPOT mean", value=-1.7, to=0.8, unit="%"),
            Value(what="TTFT mean", value=-13.6, to=1.3, unit="%"),
        ),
        source="LLMServingSim's validation page and the summaries in its repository",
        not_shown="error for single requests, other loads, or GPUs without a profile",
        not_reproduced=_WHY,
    ),
    Record(
        name="blis-accuracy",
        claim="BLIS: median errors of 6.7 % (E2E), 17.6 % (TTFT) and 7.1 % (ITL)",
        system="BLIS (inference-sim), with coefficients trained on measured runs",
        model="dense and mixture-of-experts models from 8B to 141B parameters",
        precision="each model's default in vLLM; the authors do not list it by experiment",
        hardware="H100, A100-80GB and L40S",
        baseline="a real vLLM",
        metric="median over experiments of the error in mean latency",
        denominator="the measured mean",
        workload="its authors' validation experiments: ServeGen traces for chat, code, role play and reasoning",
        values=(
            Value(what="E2E", value=6.7, unit="%"),
            Value(what="TTFT", value=17.6, unit="%"),
            Value(what="ITL", value=7.1, unit="%"),
        ),
        source="the BLIS project's own documentation (inference-sim)",
        not_shown="error for single requests or for the tail; a median says nothing about the worst experiment",
        notes=("The project has published several validation sets; their medians lie from 6.7 to 9 % for E2E.",),
        not_reproduced=_WHY,
    ),
)
