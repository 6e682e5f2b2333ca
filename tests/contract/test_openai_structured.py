"""Structured answers with the official ``openai`` client: ``parse()`` with pydantic models, ``response_format``."""

import datetime
import json
import re
from typing import Literal

import pytest
from openai import BadRequestError, OpenAI
from pydantic import BaseModel, Field

MODEL = "SmolLM2-135M-Instruct"
QUESTION = [{"role": "user", "content": "Invent a pet and its owner."}]


class Cat(BaseModel):
    """One kind of pet."""

    kind: Literal["cat"]
    lives: int = Field(ge=1, le=9)


class Dog(BaseModel):
    """Another."""

    kind: Literal["dog"]
    barks: bool


class Household(BaseModel):
    """What people send: nesting, unions, bounds, patterns, dates, optional parts."""

    owner: str = Field(pattern="^[A-Z][a-z]{1,9}$")
    pet: Cat | Dog = Field(discriminator="kind")
    since: datetime.date
    rooms: list[Literal["kitchen", "attic"]] = Field(min_length=1, max_length=2)
    note: str | None = Field(max_length=12)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_parse_gives_the_pydantic_model(client: OpenAI, seed: int) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=QUESTION, response_format=Household, seed=seed, max_tokens=200  # type: ignore[arg-type]
    )  # fmt: skip
    choice = answer.choices[0]
    assert choice.finish_reason == "stop"
    household = choice.message.parsed
    assert household is not None and household.pet.kind in ("cat", "dog")


def test_a_parsed_stream_ends_with_the_same_model(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=QUESTION, response_format=Household, seed=1, max_tokens=200  # type: ignore[arg-type]
    ) as stream:  # fmt: skip
        final = stream.get_final_completion()
    plain = client.chat.completions.parse(
        model=MODEL, messages=QUESTION, response_format=Household, seed=1, max_tokens=200  # type: ignore[arg-type]
    )  # fmt: skip
    assert final.choices[0].message.parsed == plain.choices[0].message.parsed is not None


def test_json_mode_gives_an_object(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": 'Say {"a": 1} in JSON.'}],
        response_format={"type": "json_object"},
        temperature=0,
        max_tokens=100,
    ).choices[0]
    if answer.finish_reason == "stop":
        assert isinstance(json.loads(answer.message.content or ""), dict)
    else:
        assert (answer.message.content or "").lstrip().startswith("{")


def test_vllms_extra_body_works(client: OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="My telephone number is ", max_tokens=20, extra_body={"guided_regex": "[0-9]{3}-[0-9]{4}"}
    ).choices[0]
    assert re.fullmatch("[0-9]{3}-[0-9]{4}", answer.text) and answer.finish_reason == "stop"


def test_what_cannot_be_enforced_is_the_clients_error(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="uniqueItems") as caught:
        client.chat.completions.create(
            model=MODEL,
            messages=QUESTION,  # type: ignore[arg-type]
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "s", "schema": {"type": "array", "uniqueItems": True}},
            },
        )
    assert caught.value.param == "response_format"
