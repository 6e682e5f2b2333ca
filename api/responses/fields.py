"""Fields of the Responses API beside those of its Struct; ``api/fields.py`` says what becomes of each kind."""

from ..fields import EndpointFields, whatever
from .protocol import ResponsesRequest

RESPONSES_FIELDS = EndpointFields(
    ResponsesRequest,
    # The last two bound hosted tools and a cache that is managed by itself: neither can change an answer here.
    frozenset({"max_tool_calls", "prompt_cache_retention", "prompt_cache_options"}),
    {
        "background": (False,),
        "background_options": ({},),
        "context_management": ([],),
        "image": ({},),
        "n": (1,),
        "modalities": (["text"],),
        "response_format": ({"type": "text"},),
        **whatever("conversation prompt moderation access_programs messages max_tokens max_completion_tokens"),
    },
)
