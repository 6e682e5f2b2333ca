"""Numbers that the engine reports about itself: one record per step and one per finished request."""

import msgspec


class SchedulerStats(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The scheduler's state after one step, and what that step did."""

    step: int
    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_blocks: int
    """Blocks that can be handed out (the null block is not counted)."""
    num_prompt_tokens: int
    """Prompt tokens computed in this step."""
    num_generated_tokens: int
    """Tokens sampled in this step."""
    num_preemptions: int
    """Preemptions since the start."""
    prefix_queries: int
    """Prompt tokens looked up in the prefix cache since the start."""
    prefix_hits: int
    """Prompt tokens found there since the start."""
    step_seconds: float
    """Wall time from schedule to the end of update."""

    @property
    def kv_usage(self) -> float:
        """Share of the pool's blocks that running requests hold, 0 to 1."""
        return 1.0 - self.num_free_blocks / self.num_blocks if self.num_blocks else 0.0


class FinishedRequestStats(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request's numbers, of all its completions, made when the last one ends. Times are seconds."""

    finish_reason: str
    """``stop``, ``length`` or ``abort``."""
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    queue_seconds: float
    """From arrival to the first time it was scheduled."""
    prefill_seconds: float
    """From then to its first token."""
    decode_seconds: float
    """From the first token to the last."""
    e2e_seconds: float
    n: int = 1
