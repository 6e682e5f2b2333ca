"""LangChain's ``ChatOpenAI`` against a live server with a real, small model: tools and structured output."""

from typing import Any

import pytest
from pydantic import BaseModel, Field

langchain_openai = pytest.importorskip(
    "langchain_openai", reason="LangChain is not installed; pip install 'octavo[clients]'"
)


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
    streamed = list(llm.stream("What is the capital of France?"))
    assert "".join(chunk.content for chunk in streamed) == plain.content != ""
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
