"""Embeddings by the official ``openai`` client, of a live server whose model also generates."""

import httpx
import numpy as np
import openai
import pytest
from openai import OpenAI

MODEL = "SmolLM2-135M-Instruct"
TEXTS = ["The cat sleeps.", "A cat is sleeping.", "Interest rates rose by a quarter of a point."]


def test_the_clients_vectors_are_those_of_plain_numbers(client: OpenAI) -> None:
    # Left alone, the client asks for base64 and decodes it.
    decoded = client.embeddings.create(model=MODEL, input=TEXTS)
    plain = client.embeddings.create(model=MODEL, input=TEXTS, encoding_format="float")
    assert [entry.index for entry in decoded.data] == [0, 1, 2]
    assert decoded.usage == plain.usage and decoded.usage.prompt_tokens > 10
    for entry, other in zip(decoded.data, plain.data, strict=True):
        assert len(entry.embedding) == 576
        assert np.allclose(entry.embedding, other.embedding, atol=1e-6)
        assert np.linalg.norm(entry.embedding) == pytest.approx(1, abs=1e-5)


def test_token_ids_and_text_have_one_vector(client: OpenAI, server_url: str) -> None:
    ids = httpx.post(f"{server_url}/tokenize", json={"prompt": TEXTS[0]}).json()["tokens"]
    (text,) = client.embeddings.create(model=MODEL, input=TEXTS[0]).data
    for given in (ids, [ids]):
        (entry,) = client.embeddings.create(model=MODEL, input=given).data
        assert np.allclose(entry.embedding, text.embedding, atol=1e-5)


def test_what_the_model_cannot_do_raises_the_clients_error(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        client.embeddings.create(model=MODEL, input="a", dimensions=64)
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="text-embedding-3-small", input="a")


def test_a_ranking_beside_a_generation_puts_the_same_text_first(client: OpenAI, server_url: str) -> None:
    body = {"query": TEXTS[0], "documents": TEXTS[::-1]}
    stream = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=32, stream=True)
    next(iter(stream))
    ranking = httpx.post(f"{server_url}/v1/rerank", json=body, timeout=60).json()
    assert len(list(stream)) > 3
    assert ranking["results"][0]["index"] == 2
    assert ranking["results"][0]["relevance_score"] == pytest.approx(1, abs=1e-4)
