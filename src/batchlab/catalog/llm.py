"""What a language model is to a cost model: its shape, and the weights and operations that follow from it."""

from pydantic import model_validator

from batchlab.settings import Count, CountOrZero, Table


class Experts(Table):
    """Mixture of experts: `layers` of the model's layers send each token to `per_token` of `count` experts."""

    layers: Count
    count: Count
    per_token: Count
    ffn: Count
    """Width of one routed expert."""
    shared_ffn: CountOrZero = 0
    """Width of what every token passes beside them."""

    @model_validator(mode="after")
    def _few_of_many(self) -> "Experts":
        if self.per_token > self.count:
            raise ValueError(f"{self.per_token} experts a token, of only {self.count}")
        return self


class LatentAttention(Table):
    """Multi-head latent attention (DeepSeek-V2, 2024): one compressed key-value vector a token instead of heads."""

    q_rank: Count | None
    """Width that queries are compressed to; None if they are not."""
    kv_rank: Count
    rope: Count
    nope: Count
    value: Count


class Llm(Table):
    """A decoder-only transformer. Weights are counted without biases and norms, less than 0.1 % of them."""

    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    ffn: Count
    """Width of the feed-forward part of layers without experts."""
    vocab: Count
    gated: bool = True
    """Whether that part has three matrices (SwiGLU and the like) or two."""
    tied: bool = False
    """Whether the output matrix is the embedding's."""
    positions: CountOrZero = 0
    """Learned position vectors."""
    experts: Experts | None = None
    latent: LatentAttention | None = None
    window: Count | None = None
    """Tokens that a layer with a sliding window looks at, itself included."""
    window_layers: CountOrZero = 0
    weight_dtype: str | None = None
    """How its layers' weights are stored, if not as the activations are."""

    @model_validator(mode="after")
    def _layers_add_up(self) -> "Llm":
        if self.experts is not None and self.experts.layers > self.layers:
            raise ValueError(f"{self.experts.layers} layers with experts, of only {self.layers}")
        if self.window_layers > self.layers:
            raise ValueError(f"{self.window_layers} layers with a sliding window, of only {self.layers}")
        return self

    @property
    def attention_weights(self) -> int:
        """Of one layer."""
        latent = self.latent
        if latent is None:
            return self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        query = self.heads * (latent.nope + latent.rope)
        queries = self.hidden * query if latent.q_rank is None else latent.q_rank * (self.hidden + query)
        keys_values = self.hidden * (latent.kv_rank + latent.rope)
        keys_values += latent.kv_rank * self.heads * (latent.nope + latent.value)
        return queries + keys_values + self.heads * latent.value * self.hidden

    @property
    def expert_weights(self) -> int:
        """Of one routed expert of one layer, 0 without experts."""
        return 0 if self.experts is None else self._ffn_weights(self.experts.ffn)

    @property
    def dense_weights(self) -> int:
        """Of all layers, what every token is multiplied with: all but routed experts."""
        total = self.layers * self.attention_weights
        if self.experts is None:
            return total + self.layers * self._ffn_weights(self.ffn)
        routers = self.hidden * self.experts.count
        total += self.experts.layers * (self._ffn_weights(self.experts.shared_ffn) + routers)
        return total + (self.layers - self.experts.layers) * self._ffn_weights(self.ffn)

    @property
    def routed_weights(self) -> int:
        """Of all routed experts of all layers."""
        return 0 if self.experts is None else self.experts.layers * self.experts.count * self.expert_weights

    @property
    def head_weights(self) -> int:
        """Of the output matrix, which makes a token of a last layer's vector."""
        return self.vocab * self.hidden

    @property
    def embedding_weights(self) -> int:
        """Of what is looked up, not multiplied with: token and position vectors, the tied output matrix not counted."""
        return (0 if self.tied else self.head_weights) + self.positions * self.hidden

    @property
    def parameters(self) -> int:
        """All weights."""
        return self.dense_weights + self.routed_weights + self.head_weights + self.embedding_weights

    @property
    def active_parameters(self) -> int:
        """Weights that one token is multiplied with, the output matrix included."""
        routed = 0 if self.experts is None else self.experts.layers * self.experts.per_token * self.expert_weights
        return self.dense_weights + routed + self.head_weights

    @property
    def step_ffn(self) -> int:
        """Width of the feed-forward activations of one token at a time, for the memory that they need."""
        routed = 0 if self.experts is None else self.experts.per_token * self.experts.ffn + self.experts.shared_ffn
        dense = self.ffn if self.experts is None or self.experts.layers < self.layers else 0
        return max(routed, dense)

    def kv_values(self, tensor_parallel: int = 1) -> int:
        """Numbers that one token keeps in one layer on each GPU: keys and values, whole heads, one at least.

        A latent vector is on every GPU.
        """
        if self.latent is not None:
            return self.latent.kv_rank + self.latent.rope
        return 2 * self.head_dim * -(-self.kv_heads // tensor_parallel)

    def pair_operations(self, decode: bool) -> int:
        """Operations of one layer for one query token with one key token.

        Latent attention works on the compressed vectors in a decode, on keys and values made of them in a prefill.
        """
        latent = self.latent
        if latent is None:
            return 4 * self.heads * self.head_dim
        if decode:
            return 2 * self.heads * (2 * latent.kv_rank + latent.rope)
        return 2 * self.heads * (latent.nope + latent.rope + latent.value)

    def _ffn_weights(self, width: int) -> int:
        return (3 if self.gated else 2) * self.hidden * width
