"""What is known of LLMs token by token: how long the requests of a service are, and what steps of a model take on a GPU
type.

Owns the values and their checks. Times are of one replica that has a whole GPU; nothing is said of parts of a GPU or of
groups of them. How latencies follow from steps is the business of `solvers.models`.
"""

from __future__ import annotations

from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import ProfileOrigin
from solvers.domain.value import check_name, check_not_negative, check_positive, check_range, check_text, value
from solvers.errors import FieldError

TOKENS_MAX = 10_000_000
STEP_MS_MAX = 1e7
SEQUENCES_MAX = 65536


@value
class TokenLengths:
    """How long requests are: tokens of the prompt and of the answer. `input_tokens_p99` says how long the longest two
    in a hundred prompts are; None: all prompts are alike.
    """

    input_tokens_mean: float
    output_tokens_mean: float
    input_tokens_p99: float | None = None

    def __post_init__(self) -> None:
        check_range("input_tokens_mean", self.input_tokens_mean, 1, TOKENS_MAX)
        check_range("output_tokens_mean", self.output_tokens_mean, 1, TOKENS_MAX)
        check_range("input_tokens_p99", self.input_tokens_p99, 1, TOKENS_MAX)
        if self.input_tokens_p99 is not None and self.input_tokens_p99 < self.input_tokens_mean:
            raise FieldError("input_tokens_p99", "input_tokens_p99 must not be below input_tokens_mean")


@value
class TokenProfile:
    """Steps of one model on a whole GPU of one type. A decode step gives one token to each of B sequences that have
    cached C tokens together and takes fixed + per_sequence * B + per_token * C; a prefill of T prompt tokens takes
    fixed + per_token * T + per_token_squared * T * T.
    """

    model: ModelName
    gpu_type: GpuTypeName
    decode_fixed_ms: float
    decode_per_sequence_ms: float
    decode_per_token_ms: float
    prefill_fixed_ms: float
    prefill_per_token_ms: float
    prefill_per_token_squared_ms: float = 0.0
    memory_mib_weights: float
    kv_cache_mib_per_token: float
    sequences_max: int | None = None
    """The most that its server runs at once; None: no bound of its own."""
    origin: ProfileOrigin = ProfileOrigin.MEASURED
    source: str = "operator"

    def __post_init__(self) -> None:
        check_name("model", self.model)
        check_name("gpu_type", self.gpu_type)
        for field in (
            "decode_fixed_ms", "decode_per_sequence_ms", "decode_per_token_ms", "prefill_fixed_ms",
            "prefill_per_token_ms", "prefill_per_token_squared_ms",
        ):  # fmt: skip
            check_not_negative(field, getattr(self, field))
            check_range(field, getattr(self, field), 0, STEP_MS_MAX)
        check_positive("memory_mib_weights", self.memory_mib_weights)
        check_positive("kv_cache_mib_per_token", self.kv_cache_mib_per_token)
        check_range("sequences_max", self.sequences_max, 1, SEQUENCES_MAX)
        check_text("source", self.source)
        if self.decode_fixed_ms <= 0:
            raise FieldError("decode_fixed_ms", "decode_fixed_ms must be positive")
