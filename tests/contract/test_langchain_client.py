"""LangChain's ``ChatOpenAI`` against a live server with a real, small model: tools and structured output."""

from typing import Any

import pytest
from pydantic import BaseModel, Field

langchain_openai = pytest.importorskip(
    "langchain_openai", reason="LangChain is not installed; make test-clients installs it"
)
pytestmark = pytest.mark.clients


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=120)


class Weather(BaseModel):
    """The weather of a city."""

    city: str = Field(max_length=20)
    days: int = Field(ge=1, le=9)


def model(server_url: str, **fields: Any) -> Any:
    """The chat model under test."""
    settings: dict[str, Any] = {"temperature": 0, "max_tokens": 100, "max_retries": 0, "timeout": 120, **fields}
    return langchain_openai.ChatOpenAI(
        model="SmolLM2-135M-Instruct", base_url=f"{server_url}/v1", api_key="not-needed", **settings
    )


def test_plain_and_streamed_answers_are_the_same(server_url: str) -> None:
    llm = model(server_url, max_tokens=12)
    plain = llm.invoke("What is the capital of France?")
    streamed = list(llm.stream("What is the capital of France?", stream_usage=True))
    assert "".join(chunk.content for chunk in streamed) == plain.content != ""
    assert [chunk.usage_metadata for chunk in streamed if chunk.usage_metadata][-1]["output_tokens"] <= 12
    assert plain.usage_metadata["output_tokens"] <= 12


@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
def test_structured_output_comes_back_as_a_model(server_url: str, method: str) -> None:
    found = model(server_url).with_structured_output(Person, method=method).invoke("Bob is 30 years old.")
    assert isinstance(found, Person)


def test_calls_are_the_same_streamed_and_plain_and_results_go_back(server_url: str) -> None:
    llm = model(server_url)
    calling = llm.bind_tools([Weather], tool_choice="any", parallel_tool_calls=False)
    plain = calling.invoke("The weather in Paris for 3 days?")
    gathered = None
    for chunk in calling.stream("The weather in Paris for 3 days?"):
        gathered = chunk if gathered is None else gathered + chunk
    assert gathered is not None
    [ours], [theirs] = gathered.tool_calls, plain.tool_calls
    assert (ours["name"], ours["args"]) == (theirs["name"], theirs["args"]) and Weather(**ours["args"])
    assert plain.response_metadata["finish_reason"] == "tool_calls"
    result = {"role": "tool", "content": "sunny", "tool_call_id": theirs["id"]}
    answer = llm.bind_tools([Weather]).invoke([{"role": "user", "content": "Weather?"}, plain, result])
    assert answer.content or answer.tool_calls


def test_the_responses_api_is_reached(server_url: str) -> None:
    llm = model(server_url, use_responses_api=True, max_tokens=16)
    plain = llm.invoke("What is the capital of France?")
    assert "Paris" in plain.text
    assert "".join(chunk.text for chunk in llm.stream("What is the capital of France?")) == plain.text


def test_a_prompt_over_the_context_raises_the_error_of_that_name(server_url: str) -> None:
    with pytest.raises(langchain_openai.chat_models.base.OpenAIContextOverflowError):
        model(server_url).invoke("word " * 600)


def test_embeddings_of_documents_and_of_a_query_are_alike(server_url: str) -> None:
    embeddings = langchain_openai.OpenAIEmbeddings(
        model="SmolLM2-135M-Instruct",
        base_url=f"{server_url}/v1",
        api_key="not-needed",
        check_embedding_ctx_length=False,  # it would send ids of OpenAI's own tokenizer in place of the text
    )
    documents = embeddings.embed_documents(["a cat", "a dog"])
    assert embeddings.embed_query("a cat") == pytest.approx(documents[0], abs=1e-5)
    assert documents[0] != pytest.approx(documents[1], abs=1e-3)
