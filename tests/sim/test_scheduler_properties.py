"""The scheduler's invariants over random arrivals, aborts, pools, budgets and priorities.

The simulated model's tokens depend on every key that a block table leads to, so equality with ``continuation`` (which
has no cache) checks sharing, preemption and hits at once; integrity is checked after every step besides.
"""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulation import VOCAB, Simulation, continuation, make_config, pooled_sum

SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def workloads(draw: st.DrawFn) -> dict:
    """An engine and a script of arrivals and aborts for it."""
    block_size = draw(st.sampled_from([1, 2, 4, 16]))
    max_model_len = draw(st.integers(16, 64))
    blocks_of_one = -(-max_model_len // block_size)
    max_num_seqs = draw(st.integers(1, 8))
    chunked = draw(st.booleans())
    budget = draw(st.integers(max(max_num_seqs, 4), 40)) if chunked else max_model_len + draw(st.integers(0, 8))
    config = {
        "block_size": block_size,
        "max_model_len": max_model_len,
        "num_blocks": 1 + blocks_of_one + draw(st.integers(0, 2 * blocks_of_one)),
        "max_num_seqs": max_num_seqs,
        "budget": max(budget, max_num_seqs),
        "chunked": chunked,
        "overlap": draw(st.booleans()),
        "caching": draw(st.booleans()),
        "policy": draw(st.sampled_from(["fcfs", "priority"])),
    }
    # Few distinct beginnings, so that prefixes are really shared.
    stems = draw(st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=24), min_size=1, max_size=3))
    requests = []
    for _ in range(draw(st.integers(1, 14))):
        prompt = draw(st.sampled_from(stems)) + draw(st.lists(st.integers(0, VOCAB - 1), max_size=6))
        prompt = prompt[: max_model_len - 1]
        requests.append(
            {
                "prompt": prompt,
                "max_tokens": draw(st.integers(1, max_model_len - len(prompt))),
                "seed": draw(st.integers(0, 3)),
                "priority": draw(st.integers(0, 2)),
                "pools": draw(st.sampled_from([None, None, "last", "mean"])),
                "eos": draw(st.lists(st.integers(0, VOCAB - 1), max_size=6)),
                "arrives": draw(st.integers(0, 12)),
                "aborts": draw(st.one_of(st.none(), st.none(), st.integers(0, 30))),
            }
        )
    return {"config": config, "requests": requests}


def expected(request: dict) -> tuple[list[int], str]:
    """What a request gets when it is alone and nothing is cached."""
    if request["pools"] is not None:
        return [], "stop"
    tokens = continuation(request["prompt"], request["max_tokens"], request["seed"], VOCAB)
    for index, token in enumerate(tokens):
        if token in request["eos"]:
            return tokens[: index + 1], "stop"
    return tokens, "length"


def play(workload: dict) -> Simulation:
    simulation = Simulation(make_config(**workload["config"]))
    requests = workload["requests"]
    for tick in range(31):
        for handle, request in enumerate(requests):
            if request["arrives"] == tick:
                keys = ("max_tokens", "seed", "priority", "eos", "pools")
                simulation.add(handle, request["prompt"], **{key: request[key] for key in keys})
            due = request["aborts"] == tick and handle in simulation.outputs
            if due and simulation.scheduler.abort(0, handle):
                simulation.finished[handle] = "abort"
                simulation.scheduler.check_integrity()
        simulation.step()
        simulation.scheduler.check_integrity()
    simulation.run()
    return simulation


@SETTINGS
@given(workloads())
def test_every_request_gets_the_tokens_it_would_get_alone(workload: dict) -> None:
    simulation = play(workload)
    for handle, request in enumerate(workload["requests"]):
        tokens, reason = expected(request)
        got = simulation.outputs[handle]
        if simulation.finished[handle] == "abort":
            assert got == tokens[: len(got)]
        else:
            assert (got, simulation.finished[handle]) == (tokens, reason)
            vector = None if request["pools"] is None else pooled_sum(request["prompt"])
            assert simulation.vectors.get(handle) == vector
        if request["pools"] == "mean":
            assert not simulation.cached.get(handle)
    simulation.assert_all_free()


@SETTINGS
@given(workloads())
def test_both_loops_give_the_same_tokens(workload: dict) -> None:
    workload["requests"] = [{**request, "aborts": None} for request in workload["requests"]]
    results = []
    for overlap in (False, True):
        workload["config"]["overlap"] = overlap
        simulation = play(workload)
        results.append((simulation.outputs, simulation.vectors, simulation.finished, simulation.stop_tokens))
    assert results[0] == results[1]


@SETTINGS
@given(workloads())
def test_every_step_stays_within_its_budget(workload: dict) -> None:
    simulation = Simulation(make_config(**workload["config"]))
    simulation.executor.keep_steps = True
    for handle, request in enumerate(workload["requests"]):
        keys = ("max_tokens", "seed", "pools")
        simulation.add(handle, request["prompt"], **{key: request[key] for key in keys})
    simulation.run()
    decodes = 0
    for step in simulation.executor.steps:
        if step.decodes is not None:
            decodes = len(step.decodes)
        assert step.num_tokens <= workload["config"]["budget"]
        assert decodes + len(step.chunks) <= workload["config"]["max_num_seqs"]
        assert all(chunk.num_tokens > 0 for chunk in step.chunks)
