"""``/v1/embeddings``, ``/v1/score`` and ``/v1/rerank`` over the stub engine: shapes, encodings, and what is refused."""

import asyncio
import base64
from typing import Any

import numpy as np
import pytest
from live_app import live, send_request
from stub_app import CHAT, COMPLETIONS, HI, MODEL, StubApp, check_error, run
from stub_engine import StubEngine, until

from octavo.core.pooling_config import PoolingConfig

EMBEDDINGS = "/v1/embeddings"
SCORE = "/v1/score"
RERANK = "/v1/rerank"
PAIRS = PoolingConfig(kind="classify", normalize=False)


def post(path: str, body: Any, **engine: Any) -> Any:
    """The JSON of an answer that must be one."""
    response = run(StubApp(StubEngine(**engine)).post(path, body))
    assert response.status_code == 200, response.text
    return response.json()


def refused(path: str, body: Any, param: str | None = None, **engine: Any) -> str:
    """The message of a refusal."""
    return check_error(run(StubApp(StubEngine(**engine)).post(path, body)), 400, param)["message"]


def vectors(body: dict[str, Any], **engine: Any) -> list[np.ndarray]:
    data = post(EMBEDDINGS, body, **engine)["data"]
    assert [entry["index"] for entry in data] == list(range(len(data)))
    return [np.array(entry["embedding"], dtype=np.float32) for entry in data]


def test_an_answer_has_a_vector_for_each_input_and_the_token_counts() -> None:
    answer = post(EMBEDDINGS, {"input": ["Hello world", "He"], "model": "other-name", "user": "someone"})
    assert (answer["object"], answer["model"]) == ("list", "other-name")
    assert [entry["object"] for entry in answer["data"]] == ["embedding", "embedding"]
    assert [len(entry["embedding"]) for entry in answer["data"]] == [8, 8]
    assert answer["usage"] == {"prompt_tokens": 4, "total_tokens": 4}


def test_texts_and_their_token_ids_have_the_same_vectors() -> None:
    tokenizer = StubEngine().tokenizer
    assert tokenizer is not None
    texts = ["Hello world", "Hello"]
    ids = [tokenizer.encode(text) for text in texts]
    expected = vectors({"input": texts})
    for given in (ids, [[*one] for one in ids]):
        assert all(map(np.array_equal, vectors({"input": given}), expected))
    assert np.array_equal(vectors({"input": ids[0]})[0], expected[0])
    assert np.array_equal(vectors({"input": texts[1]})[0], expected[1])


def test_base64_holds_the_same_numbers_as_little_endian_floats() -> None:
    plain = vectors({"input": ["a", "b"], "encoding_format": "float"})
    data = post(EMBEDDINGS, {"input": ["a", "b"], "encoding_format": "base64"})["data"]
    assert all(
        np.array_equal(np.frombuffer(base64.b64decode(entry["embedding"]), "<f4"), vector)
        for entry, vector in zip(data, plain, strict=True)
    )


def test_vectors_have_length_one_unless_asked_otherwise() -> None:
    (unit,) = vectors({"input": "a"})
    (whole,) = vectors({"input": "a", "normalize": False})
    assert np.linalg.norm(unit) == pytest.approx(1, abs=1e-6)
    assert np.allclose(unit * np.linalg.norm(whole), whole, atol=1e-6)


def test_a_model_that_allows_it_gives_shorter_vectors_of_length_one() -> None:
    (whole,) = vectors({"input": "a", "dimensions": 8})
    for config in (PoolingConfig(matryoshka=True), PoolingConfig(matryoshka=True, dimensions=[3, 8])):
        (short,) = vectors({"input": "a", "dimensions": 3}, pooling=config)
        assert np.allclose(short, whole[:3] / np.linalg.norm(whole[:3]), atol=1e-6)


@pytest.mark.parametrize(
    ("config", "dimensions", "told"),
    [
        (PoolingConfig(), 4, "not trained for it"),
        (PoolingConfig(matryoshka=True), 9, "between 1 and 8"),
        (PoolingConfig(matryoshka=True, dimensions=[2, 4]), 3, "one of [2, 4]"),
    ],
)
def test_dimensions_that_a_model_does_not_have_are_refused(config: PoolingConfig, dimensions: int, told: str) -> None:
    assert told in refused(EMBEDDINGS, {"input": "a", "dimensions": dimensions}, "dimensions", pooling=config)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": [[1], []]}, "input"),
        ({"input": [[100000]]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": [5] * 65}, "input"),
        ({"input": "x" * 65}, "input"),
        ({"input": "x" * 6500}, "input"),
        ({"input": {"a": 1}}, "input"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": "8"}, "dimensions"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "a", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"input": "a", "dimension": 8}, "dimension"),
        ({"messages": HI, "input": "a"}, "messages"),
        ({"input": "a", "request_id": "two words"}, "request_id"),
    ],
)
def test_what_is_wrong_with_a_request_is_told_by_name(body: dict[str, Any], param: str) -> None:
    refused(EMBEDDINGS, body, param, context=64)


def test_too_long_an_input_is_refused_with_the_limit_or_cut_to_it() -> None:
    body = {"input": ["Hello world", "x" * 70]}
    message = refused(EMBEDDINGS, body, "input", context=64)
    assert "64" in message and "70" in message and "truncate_prompt_tokens" in message
    for cut, tokens in ((-1, 67), (3, 6)):
        answer = post(EMBEDDINGS, body | {"truncate_prompt_tokens": cut}, context=64)
        assert answer["usage"]["prompt_tokens"] == tokens
    ids = post(EMBEDDINGS, {"input": [[5] * 70], "truncate_prompt_tokens": 10}, context=64)
    assert ids["usage"]["prompt_tokens"] == 10


def test_an_unknown_field_is_named_in_the_header() -> None:
    response = run(StubApp().post(EMBEDDINGS, {"input": "a", "somewhere": 1}))
    assert response.headers["x-octavo-ignored-fields"] == "somewhere"


def test_a_model_that_is_not_served_is_a_404() -> None:
    check_error(run(StubApp().post(EMBEDDINGS, {"input": "a", "model": "none"})), 404, "model")


def cosine(first: str, second: str) -> float:
    return float(np.dot(*vectors({"input": [first, second]})))


def test_scores_of_an_embedder_are_cosines_one_to_one_and_one_to_many() -> None:
    single = post(SCORE, {"text_1": "a", "text_2": "b", "model": MODEL})
    assert single["object"] == "list" and single["id"].startswith("score-") and single["model"] == MODEL
    assert single["usage"] == {"prompt_tokens": 2, "total_tokens": 2}
    (entry,) = single["data"]
    assert (entry["object"], entry["index"]) == ("score", 0)
    assert entry["score"] == pytest.approx(cosine("a", "b"), abs=1e-6)
    for first, pairs in (("a", [("a", "b"), ("a", "c")]), (["a", "d"], [("a", "b"), ("d", "c")])):
        answer = post(SCORE, {"text_1": first, "text_2": ["b", "c"]})
        assert [entry["score"] for entry in answer["data"]] == pytest.approx(
            [cosine(*pair) for pair in pairs], abs=1e-6
        )


def test_a_ranking_has_the_best_documents_first() -> None:
    texts = ["b", "Hello", "world", "c"]
    body: dict[str, Any] = {"query": "a", "documents": texts}
    whole = post(RERANK, body)
    assert whole["id"].startswith("rerank-")
    scores = [cosine("a", text) for text in texts]
    order = sorted(range(4), key=lambda index: -scores[index])
    assert [result["index"] for result in whole["results"]] == order
    assert [result["document"]["text"] for result in whole["results"]] == [texts[index] for index in order]
    assert [result["relevance_score"] for result in whole["results"]] == pytest.approx(
        [scores[index] for index in order], abs=1e-6
    )
    assert post("/rerank", body)["results"] == whole["results"]
    assert post(RERANK, body | {"top_n": 2})["results"] == whole["results"][:2]
    assert post(RERANK, body | {"documents": [{"text": text} for text in texts]})["results"] == whole["results"]
    bare = post(RERANK, body | {"return_documents": False, "top_n": 9})["results"]
    assert [set(result) for result in bare] == [{"index", "relevance_score"}] * 4


def test_equal_documents_keep_their_order() -> None:
    results = post(RERANK, {"query": "a", "documents": ["b"] * 5})["results"]
    assert [result["index"] for result in results] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (SCORE, {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "text_1"),
        (SCORE, {"text_1": ["a", "b"], "text_2": "c"}, "text_1"),
        (SCORE, {"text_1": [], "text_2": "c"}, "text_1"),
        (SCORE, {"text_1": "a", "text_2": []}, "text_2"),
        (SCORE, {"text_1": "a"}, "text_2"),
        (SCORE, {"text_1": "a", "text_2": "x" * 300}, "text_2"),
        (SCORE, {"text_1": "a", "text_2": ["b"] * 2049}, "text_2"),
        (SCORE, {"text_1": "", "text_2": "a"}, "text_1"),
        (SCORE, {"text_1": ["a", "b"], "text_2": ["c", ""]}, "text_2"),
        (SCORE, {"text_1": "x" * 300, "text_2": "a"}, "text_1"),
        (SCORE, {"text_1": "x" * 6500, "text_2": "a"}, "text_1"),
        (RERANK, {"query": "", "documents": ["a"]}, "query"),
        (RERANK, {"query": "x" * 300, "documents": ["a", "b"]}, "query"),
        (RERANK, {"query": "x" * 6500, "documents": ["a", "b"]}, "query"),
        (RERANK, {"query": "a", "documents": ["a", "x" * 300]}, "documents"),
        (RERANK, {"query": "a", "documents": []}, "documents"),
        (RERANK, {"query": "a", "documents": ["b"], "top_n": 0}, "top_n"),
        (RERANK, {"query": ["a"], "documents": ["b"]}, "query"),
        (RERANK, {"query": "a", "documents": [{"body": "b"}]}, "documents[0].text"),
        (RERANK, {"query": "a", "documents": ["b"], "rank_fields": ["text"]}, "rank_fields"),
    ],
)
def test_what_is_wrong_with_pairs_is_told_by_name(path: str, body: dict[str, Any], param: str) -> None:
    refused(path, body, param)


def test_of_two_texts_in_one_prompt_the_longer_one_is_too_long() -> None:
    for query, document, param in (("x" * 200, "y" * 100, "query"), ("x" * 100, "y" * 200, "documents")):
        body = {"query": query, "documents": [document]}
        refused(RERANK, body, param, pooling=PAIRS, architecture="BertForSequenceClassification")


def test_a_cross_encoder_gets_each_pair_as_one_prompt() -> None:
    app = StubApp(StubEngine(pooling=PAIRS, architecture="BertForSequenceClassification"))
    answer = run(app.post(SCORE, {"text_1": "He", "text_2": ["ll", "Hello world"]}))
    assert answer.status_code == 200 and len(answer.json()["data"]) == 2
    tokenizer = app.engine.tokenizer
    assert tokenizer is not None
    assert [ids for _, ids, _ in app.engine.started] == [
        tokenizer.encode("He") + tokenizer.encode(text) for text in ("ll", "Hello world")
    ]


def test_what_a_model_cannot_do_is_a_400_that_says_what_it_can() -> None:
    encoder: dict[str, Any] = {"architecture": "BertModel"}
    for path, body in (
        (CHAT, {"messages": HI}),
        (COMPLETIONS, {"prompt": "a"}),
        ("/v1/responses", {"input": "a"}),
        ("/v1/messages", {"messages": HI, "max_tokens": 1}),
    ):
        response = run(StubApp(StubEngine(**encoder)).post(path, body))
        assert response.status_code == 400 and "embeddings" in response.json()["error"]["message"]
    pairs = refused(EMBEDDINGS, {"input": "a"}, pooling=PAIRS, architecture="BertForSequenceClassification")
    assert "scores of pairs" in pairs


def test_a_client_that_leaves_stops_all_its_prompts() -> None:
    async def scenario() -> None:
        app = StubApp(StubEngine(hold_after=0))
        async with live(app) as port:
            _, writer = await send_request(port, EMBEDDINGS, {"input": ["a", "b", "c"]})
            await until(lambda: len(app.engine.running) == 3)
            writer.close()
            await until(lambda: len(app.engine.aborted) == 3)
            await until(lambda: len(app.context.open_requests) == 0)

    asyncio.run(scenario())


def test_a_dying_engine_is_an_error_of_the_whole_answer() -> None:
    response = run(StubApp(StubEngine(fail_after=0)).post(EMBEDDINGS, {"input": ["a", "b"]}))
    assert check_error(response, 503)["code"] == "engine_dead"
