"""The tables of fields of the APIs beside completions."""

import pytest

from octavo.api.fields import CHAT_FIELDS, EndpointFields, nearest_name
from octavo.api.messages.protocol import COUNT_TOKENS_FIELDS, MESSAGES_FIELDS
from octavo.api.responses.protocol import RESPONSES_FIELDS

TABLES = [RESPONSES_FIELDS, MESSAGES_FIELDS, COUNT_TOKENS_FIELDS]


@pytest.mark.parametrize("fields", TABLES)
def test_every_name_is_in_one_place_and_is_no_slip_of_another(fields: EndpointFields) -> None:
    assert not fields.offered & fields.without_effect
    assert not fields.offered & fields.refused.keys()
    assert not fields.without_effect & fields.refused.keys()
    known = sorted(fields.offered | fields.without_effect | fields.refused.keys())
    for name in known:
        assert nearest_name(name, known) == name


def test_every_field_of_the_official_clients_is_known() -> None:
    from anthropic.types.beta.message_create_params import MessageCreateParamsBase
    from openai.types.chat.completion_create_params import CompletionCreateParamsBase
    from openai.types.responses.response_create_params import ResponseCreateParamsBase

    # Headers of the request, not fields of its body.
    headers = {"betas", "user_profile_id", "workspace_id"}
    for given, fields in (
        (ResponseCreateParamsBase, RESPONSES_FIELDS),
        (MessageCreateParamsBase, MESSAGES_FIELDS),
        (CompletionCreateParamsBase, CHAT_FIELDS),
    ):
        known = fields.offered | fields.without_effect | fields.refused.keys()
        assert set(given.__annotations__) - headers <= known
