"""Fields of the Messages API beside those of its Structs; ``api/fields.py`` says what becomes of each kind."""

from typing import Any

from ..fields import EndpointFields, whatever
from .protocol import CountTokensRequest, MessagesRequest

# Caching needs no asking for; the others choose among machines and prices of the reference API.
_WITHOUT_EFFECT = frozenset(
    "metadata service_tier cache_control inference_geo speed user_profile_id workspace_id billing_policy "
    "fallback_credit_token".split()
)
_REFUSED: dict[str, tuple[Any, ...]] = {
    **whatever("container compaction thread diagnostics output_format"),
    "mcp_servers": ([],),
    "fallbacks": ([],),
    "stop": ([],),
    "n": (1,),
}

MESSAGES_FIELDS = EndpointFields(MessagesRequest, _WITHOUT_EFFECT, _REFUSED)
COUNT_TOKENS_FIELDS = EndpointFields(CountTokensRequest, _WITHOUT_EFFECT, _REFUSED)
