"""Requests that want a vector, among those that generate, on the simulated model."""

from simulation import Simulation, continuation, make_config, pooled_sum

PROMPT = list(range(1, 21))


def test_a_vector_comes_when_the_last_chunk_is_computed_and_ends_the_request() -> None:
    simulation = Simulation(make_config(budget=8, overlap=False))
    simulation.add(1, PROMPT, pools="last")
    assert [sum(len(message.pooled) for message in simulation.step()) for _ in range(3)] == [0, 0, 1]
    assert simulation.vectors == {1: pooled_sum(PROMPT)}
    assert simulation.finished == {1: "stop"} and simulation.outputs == {1: []}
    simulation.assert_all_free()


def test_a_prompt_may_fill_the_whole_context() -> None:
    simulation = Simulation(make_config(max_model_len=20, block_size=4))
    simulation.add(1, PROMPT, pools="last")
    simulation.run()
    assert simulation.vectors == {1: pooled_sum(PROMPT)}
    simulation.assert_all_free()


def test_generations_in_the_same_steps_are_not_disturbed() -> None:
    simulation = Simulation(make_config(budget=12))
    for handle in range(6):
        pools = "mean" if handle % 2 else None
        simulation.add(handle, PROMPT[: 4 + handle * 3], max_tokens=9, seed=handle, pools=pools)
    simulation.run()
    for handle in range(6):
        prompt = PROMPT[: 4 + handle * 3]
        if handle % 2:
            assert simulation.vectors[handle] == pooled_sum(prompt)
        else:
            assert simulation.outputs[handle] == continuation(prompt, 9, handle, 97)


def test_a_cached_prefix_serves_the_last_token_and_not_a_mean() -> None:
    simulation = Simulation(make_config(block_size=4))
    for handle, pools in enumerate((None, "last", "mean")):
        simulation.add(handle, PROMPT, max_tokens=2, pools=pools)
        simulation.run()
    assert simulation.cached == {0: 0, 1: 16, 2: 0}
    assert simulation.vectors == {1: pooled_sum(PROMPT), 2: pooled_sum(PROMPT)}


def test_what_is_computed_for_a_vector_serves_a_generation() -> None:
    simulation = Simulation(make_config(block_size=4))
    for handle, pools in enumerate(("mean", None)):
        simulation.add(handle, PROMPT, max_tokens=2, pools=pools)
        simulation.run()
    assert simulation.cached == {0: 0, 1: 16}


def test_the_vector_of_an_aborted_request_does_not_become_that_of_the_next_one_in_its_slot() -> None:
    simulation = Simulation(make_config(max_num_seqs=1, overlap=True))
    simulation.add(1, PROMPT, pools="last")
    simulation.step()  # on the device, not back yet
    simulation.scheduler.abort(0, 1)
    simulation.add(2, PROMPT[:7], pools="last")
    simulation.run()
    assert simulation.vectors == {2: pooled_sum(PROMPT[:7])}
    simulation.assert_all_free()
